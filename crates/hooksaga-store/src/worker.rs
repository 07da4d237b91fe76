//! `job_worker`: leases jobs and reports how they ended.

use crate::{Lease, LeaseRef, LeaseToken, StoreResult, StoredSecret};
use async_trait::async_trait;
use hooksaga_saga::{EventId, JobId, Outcome, SagaId, SubscriptionId, Timestamp};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// All that one attempt needs besides its target.
#[derive(Clone, Debug)]
pub struct DeliveryJob {
    pub saga_id: SagaId,
    pub subscription_id: SubscriptionId,
    pub event_id: EventId,
    pub event_type: String,
    pub correlation_id: String,
    pub payload: Arc<str>,
    /// From 1.
    pub attempt: u32,
    pub lease_resets: u32,
    pub attempt_at: Timestamp,
}

/// Where a subscription's deliveries go, read with the claim.
#[derive(Clone, Debug)]
pub struct Target {
    pub callback_url: String,
    /// Active and verified. If not, the job is to be handed back.
    pub deliverable: bool,
    /// Valid signing secrets, newest first.
    pub secrets: Vec<StoredSecret>,
}

/// Jobs that were claimed together.
#[derive(Clone, Debug)]
pub struct ClaimedBatch {
    /// The database's clock.
    pub now: Timestamp,
    pub jobs: Vec<Lease<DeliveryJob>>,
    /// The target of every job's subscription.
    pub targets: HashMap<SubscriptionId, Arc<Target>>,
}

/// How one leased job ended.
#[derive(Clone, Debug)]
pub struct JobReport {
    pub lease: LeaseRef,
    pub outcome: Outcome,
    /// The status of the HTTP answer, if there was one.
    pub response_status: Option<u16>,
    pub duration: Duration,
    /// The beginning of a failed attempt's answer.
    pub response_excerpt: Option<String>,
}

impl JobReport {
    /// The longest excerpt that the schema takes, in bytes.
    pub const EXCERPT_BYTES: usize = 4096;

    /// The excerpt as every back end stores it, whatever was answered: one that a column refuses would hold
    /// up its whole batch.
    pub fn storable_excerpt(&self) -> Option<String> {
        self.response_excerpt.as_deref().map(|excerpt| {
            let mut text = excerpt.replace('\0', "\u{fffd}");
            text.truncate(text.floor_char_boundary(Self::EXCERPT_BYTES));
            text
        })
    }
}

#[async_trait]
pub trait WorkerStore: Send + Sync {
    /// Leases up to `limit` Pending jobs whose not-before has passed, earliest first, skipping those that
    /// somebody else is claiming, under `token`.
    async fn claim(&self, limit: u32, lease: Duration, token: LeaseToken) -> StoreResult<ClaimedBatch>;

    /// Gives leased jobs back, to be claimed again not before `delay` from now; fenced. Answers the jobs
    /// that changed.
    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>>;

    /// Writes results and queues them for the orchestrator; fenced: where the lease is no longer held
    /// nothing changes. Answers the jobs that changed.
    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>>;

    /// The key ids under which valid secrets are sealed: a start-up check.
    async fn secret_key_ids(&self) -> StoreResult<Vec<String>>;
}
