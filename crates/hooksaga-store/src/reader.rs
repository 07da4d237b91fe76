//! `api_reader`: everything that the API and the metrics show. It cannot read secrets.

use crate::{
    AuditFilter, AuditRecord, DeadLetterFilter, EventHead, Inventory, ListQuery, LivingWorker, Page,
    PageRequest, QueueGauges, Redrive, Stats, StoreResult, TenantGauges, TenantScope, Unmatched,
};
use async_trait::async_trait;
use hooksaga_saga::{
    CallbackUrl, CorrelationId, DeadLetterId, DisabledReason, ErrorCode, EventId, EventType, ExternalId,
    Held, JobId, JobStatus, Latencies, RedriveId, SagaId, SagaStatus, SubscriptionId, Timestamp, Topic,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    pub event_type: Option<EventType>,
    pub external_id: Option<ExternalId>,
    pub correlation_id: Option<CorrelationId>,
    /// Created at or after.
    pub created_after: Option<Timestamp>,
    /// Created before.
    pub created_before: Option<Timestamp>,
}

/// One event with everything about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventDetail {
    pub head: EventHead,
    pub payload: Arc<str>,
    /// Whether the router has dealt with it.
    pub routed: bool,
    /// Subscriptions of its topics that could not be delivered to when it was routed.
    pub unmatched: Unmatched,
    /// Its deliveries, oldest first, at most 500.
    pub deliveries: Vec<Delivery>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerificationStatus {
    /// A round is under way or asked for.
    Pending,
    /// The callback URL is verified, and no round is under way.
    Verified,
    /// The last round was given up and the URL is not verified.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    pub status: VerificationStatus,
    /// Why the last check failed; `None` after one that succeeded.
    pub last_error: Option<ErrorCode>,
    pub checked_at: Option<Timestamp>,
    /// Who vouched for the present URL, if nobody asked the endpoint itself.
    pub trusted: Option<Trusted>,
}

/// Somebody vouched for a callback URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trusted {
    /// The name of the key that did.
    pub by: String,
    pub at: Timestamp,
}

/// Why the caretaker switched a subscription off, and when. It stays until the subscription is activated again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disabled {
    pub reason: DisabledReason,
    pub at: Timestamp,
}

/// A subscription as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub id: SubscriptionId,
    pub tenant: String,
    /// The canonical text of its topics: sorted, distinct, joined with commas.
    pub event_type: String,
    pub callback_url: String,
    pub description: Option<String>,
    pub active: bool,
    pub verified: bool,
    pub max_retry_limit: Option<u32>,
    /// Attempts started per second.
    pub rate_limit: Option<u32>,
    pub disabled: Option<Disabled>,
    /// The names of its static request headers.
    pub headers: Vec<String>,
    pub verification: Verification,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Subscription {
    /// Why its open deliveries wait; `None` if they go on.
    pub fn held(&self) -> Option<Held> {
        Held::of(self.active, self.verified, self.disabled.map(|disabled| disabled.reason))
    }
}

/// How a subscription's endpoint has been doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Deliveries that succeeded in the last 24 hours.
    pub delivered: u64,
    /// Attempts that failed in the last 24 hours.
    pub failed: u64,
    /// Deliveries that were given up in the last 24 hours.
    pub dead_lettered: u64,
    /// How long attempts took in the last 24 hours.
    pub latencies: Latencies,
    /// Open deliveries that wait for their next attempt to begin: for their turn, their time, or their subscription to be
    /// active and verified. The count ends at [`Health::MOST_WAITING`].
    pub waiting: u64,
    /// Whenever that was.
    pub last_failure: Option<LastFailure>,
}

impl Health {
    pub const MOST_WAITING: u32 = 10_000;
}

/// The last attempt that failed at a subscription's endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastFailure {
    pub saga_id: SagaId,
    pub error_code: ErrorCode,
    /// `None` if there was no response, or if the attempt is no longer stored.
    pub response_status: Option<u16>,
    pub at: Timestamp,
}

/// A subscription that could be delivered to, and whose attempts have all failed since a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingEndpoint {
    pub subscription_id: SubscriptionId,
    pub callback_url: String,
    /// The first failure since its last success.
    pub since: Timestamp,
    /// Attempts that failed since then.
    pub failures: u64,
    /// Of the last attempt.
    pub last_error: ErrorCode,
    /// When the first of the deliveries that wait is due; `None` if none waits.
    pub next_attempt_at: Option<Timestamp>,
    /// Deliveries that wait. The count ends at [`FailingEndpoint::MOST_WAITING`].
    pub waiting: u64,
}

impl FailingEndpoint {
    pub const MOST_WAITING: u32 = 100;
    /// How long after its last failure one that has nothing to deliver is no longer called failing: nobody knows.
    pub const QUIET_AFTER: Duration = Duration::from_secs(3600);
}

/// Endpoints that fail: those that have failed for longest, those that began last, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailingEndpoints {
    /// The one that has failed for longest first.
    pub shown: Vec<FailingEndpoint>,
    /// The count ends at [`FailingEndpoints::MOST_COUNTED`].
    pub total: u64,
}

impl FailingEndpoints {
    pub const MOST_COUNTED: u32 = 1000;

    /// `oldest`: those that have failed for longest, in this order. `newest`: those that began last, the last one first.
    /// An endpoint may be among both.
    pub fn of(oldest: Vec<FailingEndpoint>, newest: Vec<FailingEndpoint>) -> Self {
        let mut shown = oldest;
        let known: BTreeSet<i64> = shown.iter().map(|endpoint| endpoint.subscription_id.0).collect();
        shown
            .extend(newest.into_iter().rev().filter(|endpoint| !known.contains(&endpoint.subscription_id.0)));
        Self { total: shown.len() as u64, shown }
    }

    /// Whether there can be more than those that were read, `each` from both ends.
    pub fn may_be_more(&self, each: u32) -> bool {
        self.total >= 2 * u64::from(each)
    }
}

/// A subscription and how its endpoint has been doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionDetail {
    pub subscription: Subscription,
    pub health: Health,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionFilter {
    /// Has exactly this topic.
    pub event_type: Option<Topic>,
    pub callback_url: Option<CallbackUrl>,
    pub active: Option<bool>,
    pub verified: Option<bool>,
    /// Switched off by the caretaker.
    pub disabled: Option<bool>,
    /// Switched off by the caretaker at or after.
    pub disabled_after: Option<Timestamp>,
}

/// A delivery saga as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub saga_id: SagaId,
    pub tenant: String,
    pub event_id: EventId,
    pub event_type: String,
    pub external_id: Option<String>,
    pub correlation_id: String,
    pub subscription_id: SubscriptionId,
    /// Where the subscription's deliveries go at present.
    pub callback_url: String,
    pub generation: u32,
    pub status: SagaStatus,
    pub attempt_count: u32,
    pub max_retry_limit: u32,
    pub next_attempt_at: Timestamp,
    pub final_error_code: Option<ErrorCode>,
    /// Of the last attempt that got a response.
    pub last_response_status: Option<u16>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Open, and waiting for its subscription to be active and verified.
    pub held: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    /// Any of these; all if there is none. A set, because statements are prepared once for each: a caller who repeats them or
    /// changes their order asks for nothing new.
    pub statuses: BTreeSet<SagaStatus>,
    pub subscription_id: Option<SubscriptionId>,
    pub event_id: Option<EventId>,
    pub event_type: Option<EventType>,
    pub external_id: Option<ExternalId>,
    pub correlation_id: Option<CorrelationId>,
    /// Created at or after.
    pub created_after: Option<Timestamp>,
    /// Created before.
    pub created_before: Option<Timestamp>,
}

/// One job of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub job_id: JobId,
    /// When it was due.
    pub attempt_at: Timestamp,
    /// When it was really sent; `None` if it was not.
    pub started_at: Option<Timestamp>,
    /// Where it was sent; `None` if it was not.
    pub callback_url: Option<String>,
    /// When the endpoint wants the next attempt at the earliest (`Retry-After`), if it said so.
    pub retry_at: Option<Timestamp>,
    pub status: JobStatus,
    pub response_status: Option<u16>,
    pub error_code: Option<ErrorCode>,
    pub duration_ms: Option<u32>,
    pub response_excerpt: Option<String>,
    pub lease_resets: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryDetail {
    pub delivery: Delivery,
    /// Oldest first.
    pub attempts: Vec<Attempt>,
}

/// A dead letter without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterSummary {
    pub id: DeadLetterId,
    pub tenant: String,
    pub saga_id: SagaId,
    pub event_id: EventId,
    pub event_type: String,
    pub subscription_id: SubscriptionId,
    pub final_error_code: ErrorCode,
    pub created_at: Timestamp,
    /// The saga that a requeue made of it.
    pub requeued_saga_id: Option<SagaId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterDetail {
    pub summary: DeadLetterSummary,
    pub payload: Arc<str>,
}

#[async_trait]
pub trait ReaderStore: Send + Sync {
    async fn events(&self, wanted: ListQuery<'_, EventFilter>) -> StoreResult<Page<EventHead>>;
    async fn event(&self, scope: &TenantScope, id: EventId) -> StoreResult<Option<EventDetail>>;

    async fn subscriptions(
        &self,
        wanted: ListQuery<'_, SubscriptionFilter>,
    ) -> StoreResult<Page<Subscription>>;
    async fn subscription(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<Subscription>>;

    /// The callback URLs of these subscriptions, as far as they are there, in any order.
    async fn callback_urls(
        &self,
        scope: &TenantScope,
        ids: &[SubscriptionId],
    ) -> StoreResult<Vec<(SubscriptionId, String)>>;

    /// With its health: bounded work, whatever waits and however much was delivered.
    async fn subscription_detail(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<SubscriptionDetail>>;

    async fn deliveries(&self, wanted: ListQuery<'_, DeliveryFilter>) -> StoreResult<Page<Delivery>>;
    async fn delivery(&self, scope: &TenantScope, id: SagaId) -> StoreResult<Option<DeliveryDetail>>;

    /// These deliveries without their attempts, as far as they are there, in any order.
    async fn deliveries_of(&self, scope: &TenantScope, ids: &[SagaId]) -> StoreResult<Vec<Delivery>>;

    async fn dead_letters(
        &self,
        wanted: ListQuery<'_, DeadLetterFilter>,
    ) -> StoreResult<Page<DeadLetterSummary>>;
    async fn dead_letter(
        &self,
        scope: &TenantScope,
        id: DeadLetterId,
    ) -> StoreResult<Option<DeadLetterDetail>>;

    /// A tenant's own, which are those of its subscriptions and those that were confined to it.
    async fn redrives(&self, scope: &TenantScope, page: PageRequest) -> StoreResult<Page<Redrive>>;
    async fn redrive(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<Option<Redrive>>;

    /// Who did what, newest first.
    async fn audit(&self, wanted: ListQuery<'_, AuditFilter>) -> StoreResult<Page<AuditRecord>>;

    /// Endpoints that fail: `each` of those that have failed for longest, and of those that began last. Takes as long as
    /// there are runs of failures, however much waits.
    async fn failing(&self, scope: &TenantScope, each: u32) -> StoreResult<FailingEndpoints>;

    /// The server's. Counts what is open, which takes as long as there is much of it.
    async fn gauges(&self) -> StoreResult<QueueGauges>;

    /// One tenant's.
    async fn tenant_gauges(&self, tenant: &str) -> StoreResult<TenantGauges>;

    async fn stats(&self, scope: &TenantScope) -> StoreResult<Stats>;

    /// The statistics without what each subscription did, which costs most of it.
    async fn stats_in_all(&self, scope: &TenantScope) -> StoreResult<Stats>;

    /// Worker processes whose heartbeat is recent, oldest first, at most 1000.
    async fn workers(&self) -> StoreResult<Vec<LivingWorker>>;

    /// Bounded, but not as cheap as the gauges: ask once a minute.
    async fn inventory(&self) -> StoreResult<Inventory>;

    /// Cheap: the database responds and this program works on its schema, whose version is returned.
    async fn ready(&self) -> StoreResult<i64>;
}
