//! `job_worker`: leases jobs and reports how they ended.

use crate::{ClockReading, Lease, LeaseRef, LeaseRequest, SealedSecret, StoreResult, StoredSecret};
use async_trait::async_trait;
use hooksaga_saga::{
    EventId, JobId, Lead, Outcome, RateLimit, Reservation, SagaId, SubscriptionId, Timestamp,
};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// All that one attempt needs besides its target.
#[derive(Clone, Debug)]
pub struct DeliveryJob {
    pub saga_id: SagaId,
    pub subscription_id: SubscriptionId,
    pub event_id: EventId,
    pub tenant: String,
    pub event_type: String,
    pub correlation_id: String,
    pub payload: Arc<str>,
    /// When the event was accepted.
    pub accepted_at: Timestamp,
    /// From 1.
    pub attempt: u32,
    pub lease_resets: u32,
    pub attempt_at: Timestamp,
}

/// Where a subscription's deliveries go, read with the claim.
#[derive(Clone, Debug)]
pub struct Target {
    pub callback_url: String,
    /// Active and verified, or deleted. If not, the job is to be parked.
    pub deliverable: bool,
    /// How many attempts may be started per second, if that is limited.
    pub rate_limit: Option<RateLimit>,
    /// The subscription was deleted: the job fails without being sent.
    pub deleted: bool,
    /// Valid signing secrets, newest first.
    pub secrets: Vec<StoredSecret>,
    /// Static request headers for this URL, sealed.
    pub headers: Option<SealedSecret>,
}

/// Jobs that were claimed together.
#[derive(Clone, Debug)]
pub struct ClaimedBatch {
    /// The database's clock.
    pub now: Timestamp,
    pub jobs: Vec<Lease<DeliveryJob>>,
    /// The limit of payload bytes ended the claim, or others who took a part of it: more can be claimed.
    pub cut_short: bool,
    /// The target of every job's subscription.
    pub targets: HashMap<SubscriptionId, Arc<Target>>,
}

/// Leased jobs of a subscription with a rate limit that are to start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Starting {
    pub subscription_id: SubscriptionId,
    pub limit: RateLimit,
    pub jobs: u32,
}

/// How many of them may, and when.
#[derive(Clone, Debug)]
pub struct Starts {
    /// What the moments count from.
    pub clock: ClockReading,
    /// One per entry, in their order; none where the bucket was held by somebody else and passed over.
    pub reserved: Vec<Option<Reservation>>,
}

/// How one leased job ended.
#[derive(Clone, Debug)]
pub struct JobReport {
    pub lease: LeaseRef,
    pub outcome: Outcome,
    /// When it was really sent, by the database's clock; `None` if it was not.
    pub started_at: Option<Timestamp>,
    /// Where it was sent; `None` if it was not.
    pub callback_url: Option<String>,
    /// The status of the HTTP response, if there was one.
    pub response_status: Option<u16>,
    /// When a failing endpoint wants to be asked again, if it said so.
    pub retry_at: Option<Timestamp>,
    pub duration: Duration,
    /// The beginning of a failed attempt's response.
    pub response_excerpt: Option<String>,
}

impl JobReport {
    /// The longest excerpt that the schema takes, in bytes.
    pub const EXCERPT_BYTES: usize = 4096;

    /// The excerpt as every back end stores it, whatever came back: one that a column refuses would hold
    /// up its whole batch.
    pub fn storable_excerpt(&self) -> Option<String> {
        self.response_excerpt.as_deref().map(|excerpt| {
            let mut text = excerpt.replace('\0', "\u{fffd}");
            text.truncate(text.floor_char_boundary(Self::EXCERPT_BYTES));
            text
        })
    }
}

/// What becomes of buckets that another process has locked. It may be frozen, and keep them for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBuckets {
    PassOver,
    WaitFor,
}

/// What one claim may take.
#[derive(Clone, Debug)]
pub struct ClaimLimits {
    pub jobs: u32,
    /// Payload bytes in all. The first job is taken whatever its size.
    pub payload_bytes: u64,
    /// Subscriptions whose jobs are passed over: they have as many in flight here as they may.
    pub skip: Vec<SubscriptionId>,
}

/// One worker process, as its heartbeat describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerBeat {
    /// Random, drawn when the process starts.
    pub worker_id: i64,
    /// POSTs at a time.
    pub slots: u32,
    pub version: String,
}

/// A worker whose last heartbeat is older than this counts as gone.
pub const WORKER_GONE_AFTER: Duration = Duration::from_secs(15);

/// A worker whose last heartbeat is older than this holds no leases any more: the default lease.
pub const WORKER_LEASES_END_AFTER: Duration = Duration::from_secs(60);

#[async_trait]
pub trait WorkerStore: Send + Sync {
    /// Leases Pending jobs whose not-before has passed, in the order in which they were admitted, within `limits`,
    /// skipping those that somebody else is claiming.
    async fn claim(&self, limits: &ClaimLimits, lease: LeaseRequest) -> StoreResult<ClaimedBatch>;

    /// Counts starts against the rate limits of their subscriptions, exactly, whoever else starts some, for moments that
    /// begin with the lead. The clock is read while the buckets are locked. Each subscription is named once.
    async fn start_limited(
        &self,
        starting: &[Starting],
        lead: Lead,
        held: HeldBuckets,
    ) -> StoreResult<Starts>;

    /// Gives leased jobs back, to be claimed again not before `delay` from now; fenced. Returns the jobs
    /// that changed.
    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>>;

    /// Gives leased jobs back until their subscription is active and verified again, or deleted; fenced. A parked job is
    /// Pending with a not-before that never comes ([`Timestamp::MAX`]), so no claim looks at it. One whose subscription is
    /// deliverable by now can be claimed at once instead. Returns the jobs that changed.
    async fn park(&self, leases: &[LeaseRef]) -> StoreResult<Vec<JobId>>;

    /// Parked jobs of subscriptions that are active and verified again, or deleted, can be claimed from now on, in short
    /// transactions of at most `limit` jobs each. Returns how many; fewer than `limit` only when none is left.
    async fn unpark(&self, limit: u32) -> StoreResult<u64>;

    /// Says that this process is alive, and forgets those that have been gone for an hour.
    async fn heartbeat(&self, beat: &WorkerBeat) -> StoreResult<()>;

    /// This process stops: its heartbeat is removed.
    async fn leave(&self, worker_id: i64) -> StoreResult<()>;

    /// Writes results and queues them for the orchestrator; fenced: where the lease is no longer held
    /// nothing changes. Returns the jobs that changed.
    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>>;

    /// Whether results that are on their way can be applied in the same commit. Then whoever applies them is woken when
    /// their report is sent, else when it is committed.
    fn shares_commits(&self) -> bool {
        false
    }

    /// The key ids under which valid secrets and headers are sealed: a start-up check.
    async fn secret_key_ids(&self) -> StoreResult<Vec<String>>;
}
