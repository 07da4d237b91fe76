//! `saga_orchestrator`: creates jobs and applies their results. The only role that changes a saga.

use crate::StoreResult;
use async_trait::async_trait;
use hooksaga_saga::{Applied, JobId, JobResult, Saga, SagaId, SagaStatus, SubscriptionId, Timestamp};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

/// How many jobs a pass may create.
#[derive(Clone, Debug)]
pub struct Admission {
    /// For subscriptions that differ from `default_room`.
    pub room: HashMap<SubscriptionId, u32>,
    /// For every other subscription.
    pub default_room: u32,
    /// At most so many jobs in one pass.
    pub limit: u32,
    /// The subscriptions that are known to have something due; nothing: look at all. A back end that finds them all
    /// as cheaply need not care.
    pub only: Option<BTreeSet<SubscriptionId>>,
}

impl Admission {
    /// How many jobs of this subscription the pass may create.
    pub fn room_of(&self, id: SubscriptionId) -> u32 {
        self.room.get(&id).copied().unwrap_or(self.default_room)
    }

    /// Whether the pass looks at this subscription.
    pub fn looks_at(&self, id: SubscriptionId) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&id))
    }
}

/// A due saga, whose job now exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledSaga {
    pub saga_id: SagaId,
    pub subscription_id: SubscriptionId,
    /// The job's key, as read from the saga: [`OrchestratorStore::mark_in_progress`] needs it unchanged.
    pub attempt_at: Timestamp,
    pub correlation_id: String,
    /// The job that this pass inserted; nothing if it was there already.
    pub job_id: Option<JobId>,
}

/// One pass of scheduling.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The database's clock.
    pub now: Timestamp,
    pub sagas: Vec<ScheduledSaga>,
}

/// A finished job beside the saga it belongs to. But for the move to InProgress neither can change other than by this
/// job's result, which is locked.
#[derive(Clone, Debug)]
pub struct FinishedJob {
    pub job_id: JobId,
    pub saga_id: SagaId,
    pub subscription_id: SubscriptionId,
    pub saga: Saga,
    pub result: JobResult,
}

/// Decides what a finished job does to its saga, given the database's now: the pure state machine,
/// called inside the transaction that holds the locks. Shared, not borrowed: an embedded back end calls it on
/// the thread that writes.
pub type Decide = Arc<dyn Fn(&FinishedJob, Timestamp) -> Applied + Send + Sync>;

/// A result that this pass took off the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedResult {
    pub job_id: JobId,
    pub saga_id: SagaId,
    pub subscription_id: SubscriptionId,
    pub correlation_id: String,
    /// The saga's status after it.
    pub status: SagaStatus,
    pub attempt_count: u32,
    pub next_attempt_at: Timestamp,
    /// False: it had been applied before.
    pub changed: bool,
    pub result: JobResult,
    /// How long the attempt took.
    pub duration: Duration,
    /// When the saga was created: for the delivery's total latency.
    pub saga_created_at: Timestamp,
}

/// A finished job as it was read, with what is told of it afterwards.
#[derive(Clone, Debug)]
pub struct QueuedResult {
    pub finished: FinishedJob,
    pub correlation_id: String,
    pub duration: Duration,
    pub saga_created_at: Timestamp,
}

impl QueuedResult {
    /// What became of it: `changed` says whether the decision was written.
    pub fn into_applied(self, decision: Applied, changed: bool) -> AppliedResult {
        let FinishedJob { job_id, saga_id, subscription_id, saga: before, result } = self.finished;
        let saga = match decision {
            Applied::Changed { saga, .. } if changed => saga,
            Applied::Changed { .. } | Applied::Already => before,
        };
        AppliedResult {
            job_id,
            saga_id,
            subscription_id,
            correlation_id: self.correlation_id,
            status: saga.status,
            attempt_count: saga.attempt_count,
            next_attempt_at: saga.next_attempt_at,
            changed,
            result,
            duration: self.duration,
            saga_created_at: self.saga_created_at,
        }
    }
}

/// One pass of applying results.
#[derive(Clone, Debug)]
pub struct ApplyBatch {
    /// The database's clock.
    pub now: Timestamp,
    pub results: Vec<AppliedResult>,
}

#[async_trait]
pub trait OrchestratorStore: Send + Sync {
    /// Finds due sagas (Pending, or PendingRetry with attempts left, `next_attempt_at` reached) of active
    /// and verified subscriptions, oldest first within each and no more than each has room for, and inserts
    /// the job with key (saga, `next_attempt_at`) for each; one that exists stays as it is. Sagas are not
    /// changed. Work of paused subscriptions is not visited.
    async fn schedule(&self, admission: &Admission) -> StoreResult<Scheduled>;

    /// How many jobs of each subscription are open: Pending, Leased, or finished with a result that is not
    /// applied yet. Reads open work only.
    async fn open_jobs(&self) -> StoreResult<HashMap<SubscriptionId, u32>>;

    /// Moves sagas to InProgress whose status is Pending or PendingRetry and whose `next_attempt_at` is
    /// still the given one, and whose job is there: a back end that can lose a job which it has answered must look.
    /// Answers how many moved.
    async fn mark_in_progress(&self, sagas: &[(SagaId, Timestamp)]) -> StoreResult<u64>;

    /// Locks up to `limit` queued results (those that nobody else has locked), reads their finished jobs (unless the
    /// queue holds what is wanted of them) and their sagas, asks `decide`, writes the decisions in the order of saga
    /// ids (guarded by InProgress and the JOB's `attempt_at`; a promotion is written first), queues those that this
    /// write made DeadLettered, counts them for the statistics, and takes the results off the queue. A queued job
    /// that is not seen finished is left where it is, if it can be queued at all.
    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch>;
}
