//! `saga_orchestrator`: creates jobs and applies their results. The only role that changes a saga.

use crate::{StoreResult, Trace};
use async_trait::async_trait;
use hooksaga_saga::{
    Applied, ErrorCode, FurthestAttempt, JobId, JobResult, Saga, SagaId, SagaStatus, SubscriptionId,
    Timestamp,
};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// Subscriptions with due work, as one bounded look finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPage {
    /// Active and verified, with at least one due saga, in the order of their ids.
    pub subscriptions: Vec<SubscriptionId>,
    /// Where the next look resumes: behind this subscription. None if this look reached the end.
    pub resume_after: Option<SubscriptionId>,
}

/// How many jobs of one subscription a pass may create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allotted {
    pub subscription_id: SubscriptionId,
    pub jobs: u32,
}

/// What the workers can do, and what they have to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Worker processes whose heartbeat is recent.
    pub workers: u32,
    /// Their slots together.
    pub slots: u32,
    /// How long ago the last heartbeat was of the worker that has been silent for longest, of those that may hold leases
    /// ([`WORKER_LEASES_END_AFTER`](crate::WORKER_LEASES_END_AFTER)). `None` if there are none: a worker that is told to
    /// stop removes its row.
    pub silence: Option<Duration>,
    /// Open jobs by subscription: Pending (parked ones aside), Leased, or finished with a result that is not applied yet.
    pub open: HashMap<SubscriptionId, u32>,
}

/// Called between the two transactions of [`OrchestratorStore::create_jobs`], when the jobs exist: workers need not wait for
/// the move. Says when that is made.
pub type JobsCreated<'a> = &'a (dyn Fn() -> Move + Send + Sync);

/// When a pass moves the sagas whose jobs it has created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Now,
    /// Now or later ([`OrchestratorStore::move_rest`]): the back end decides.
    Later,
    /// As after a crash: the next pass moves them.
    Never,
}

/// A due saga, whose job now exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledSaga {
    pub saga_id: SagaId,
    pub subscription_id: SubscriptionId,
    /// The job's key, as read from the saga.
    pub attempt_at: Timestamp,
    pub trace: Trace,
    /// The job that this pass inserted; `None` if it was there already.
    pub job_id: Option<JobId>,
}

/// One step through the subscriptions, looking for sagas that lie further ahead than they could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrandedStep {
    /// Sagas that have their job now.
    pub sagas: u64,
    /// Where the next step resumes: behind this subscription. `None` if this one reached the end.
    pub resume_after: Option<SubscriptionId>,
}

/// One pass of scheduling.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The database's clock.
    pub now: Timestamp,
    pub sagas: Vec<ScheduledSaga>,
    /// Subscriptions whose rate limit let fewer through than they were allotted.
    pub limited: Vec<Limited>,
}

/// A subscription that its rate limit holds back, or whose limit another process is just applying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    pub subscription_id: SubscriptionId,
    /// How long to wait before it is worth while to ask again.
    pub wait: Duration,
}

impl Limited {
    /// Another process is applying its limit: it is asked for again when that has most likely ended.
    pub fn held(subscription_id: SubscriptionId) -> Self {
        Self { subscription_id, wait: Duration::from_millis(50) }
    }
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
    pub trace: Trace,
    /// The saga's status after it.
    pub status: SagaStatus,
    pub attempt_count: u32,
    pub next_attempt_at: Timestamp,
    /// False: it had been applied before.
    pub changed: bool,
    pub result: JobResult,
    /// How long the attempt took.
    pub duration: Duration,
}

/// A finished job as it was read, with what the log and metrics say about it.
#[derive(Clone, Debug)]
pub struct QueuedResult {
    pub finished: FinishedJob,
    pub trace: Trace,
    pub duration: Duration,
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
            trace: self.trace,
            status: saga.status,
            attempt_count: saga.attempt_count,
            next_attempt_at: saga.next_attempt_at,
            changed,
            result,
            duration: self.duration,
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
    /// Subscriptions with due sagas (Pending, or PendingRetry with attempts left, `next_attempt_at` reached), found by index
    /// hops: one entry per subscription that waits, however much waits there. Looks at no more than `limit` subscriptions
    /// behind `after`; those that are paused, unverified or not due yet are passed over but count.
    async fn waiting(&self, after: Option<SubscriptionId>, limit: u32) -> StoreResult<WaitingPage>;

    /// Two transactions. The first inserts, for each allotted subscription that is active and verified, the job with key
    /// (saga, `next_attempt_at`) for its oldest due sagas, no more than allotted; a job that exists stays as it is, and the
    /// saga counts and is returned all the same. New jobs may be claimed from now on, in the order in which they were
    /// admitted. The second moves those sagas to InProgress, where the status is still Pending or PendingRetry and
    /// `next_attempt_at` is the job's. Of a subscription with a rate limit no more jobs are created than the limit lets
    /// through now; what was let through is stored in the first transaction. A back end that can lose a job which it has
    /// reported as created must see that it is still there.
    async fn create_jobs(&self, allotted: &[Allotted], created: JobsCreated<'_>) -> StoreResult<Scheduled>;

    /// How long until [`move_rest`](Self::move_rest) is to be called; `None` if no move was left for later. Until it is
    /// made, passes of this process leave such a saga out.
    fn until_move(&self) -> Option<Duration> {
        None
    }

    /// Makes the moves that were left for later and that no result has made since. Where it fails, the next pass makes them.
    async fn move_rest(&self) -> StoreResult<()> {
        Ok(())
    }

    /// For sagas that a clock which was ahead has stranded: those whose `next_attempt_at` lies further from now than a first
    /// attempt or a retry could have put it count as due, if their subscription can be delivered to. Does for them what
    /// [`create_jobs`](Self::create_jobs) does, in two transactions: `next_attempt_at` itself is not touched. Works on a
    /// bounded number of subscriptions behind `after`, and of sagas of each. First attempts among very many retries may
    /// be passed over, until some of those are due.
    async fn schedule_stranded(
        &self,
        after: Option<SubscriptionId>,
        beyond: FurthestAttempt,
    ) -> StoreResult<StrandedStep>;

    /// Reads open work and heartbeats only.
    async fn load(&self) -> StoreResult<WorkerLoad>;

    /// Up to `limit` subscriptions whose attempts all fail at present, each with the code of the last failure; those that
    /// have failed for longest first. By index, from the counters: for a process that starts.
    async fn failing(&self, limit: u32) -> StoreResult<Vec<(SubscriptionId, ErrorCode)>>;

    /// Locks up to `limit` queued results (those that nobody else has locked), reads their finished jobs (unless the
    /// queue holds everything that is needed of them) and their sagas, asks `decide`, writes the decisions in the order
    /// of saga ids (guarded by InProgress and the JOB's `attempt_at`; a promotion is written first), queues those that
    /// this write made DeadLettered, counts them for the statistics and for their endpoints' runs of failures, and takes
    /// the results off the queue. A queued job that is not seen finished is left where it is, if it can be queued at all.
    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch>;
}
