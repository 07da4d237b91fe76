//! Stores that let every call through but one.

use async_trait::async_trait;
use hooksaga_saga::{
    ErrorCode, EventId, Expiry, FurthestAttempt, JobId, Lead, RedriveId, Retention, SubscriptionId, Timestamp,
};
use hooksaga_store::{
    Allotted, Announcement, Appended, ApplyBatch, ArchivedDelivery, ArchivedEvent, Buried, CancelOutcome,
    CaretakerStore, ClaimLimits, ClaimedBatch, CleanerStore, DeadLetterStore, Decide, Disable, EventPart,
    EventPlace, Examined, HeldBuckets, IngestStore, JanitorStore, JobReport, JobsCreated, LeaseRef,
    LeaseRequest, ListedLimits, Move, NewEvent, NewRedrive, OldEvents, OrchestratorStore, RedriveStep,
    RedriveStore, Removed, RemovedPart, RemovedRecords, RequeueStep, RequeuedBatch, ResendOutcome,
    ResetLease, RouteBatch, RouteLimits, RouterStore, RunningLimits, ScanStep, Scheduled, SendAgain,
    SendTest, SmallLimits, StartOutcome, Starting, Starts, StepLimits, StoreError, StoreResult, Stores,
    StrandedStep, TenantScope, TestOutcome, TroubledPage, TroubledPlace, WaitingPage, WorkerBeat, WorkerLoad,
    WorkerStore,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// How the one call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An error, and nothing happened.
    ErrorBefore,
    /// An error, although it was committed.
    ErrorAfter,
    /// The process is killed before anything happened.
    KillBefore,
    /// The process is killed after the commit.
    KillAfter,
}

/// Which call fails, counted over all stores.
pub(crate) struct FaultPlan {
    n: usize,
    fault: Fault,
    calls: AtomicUsize,
    killed: Notify,
}

impl FaultPlan {
    pub(crate) fn new(n: usize, fault: Fault) -> Self {
        Self { n, fault, calls: AtomicUsize::new(0), killed: Notify::new() }
    }

    /// Returns when the process is to be killed.
    pub(crate) async fn killed(&self) {
        self.killed.notified().await;
    }

    /// Whether the call came.
    pub(crate) fn happened(&self) -> bool {
        self.calls.load(Ordering::SeqCst) > self.n
    }

    async fn call<T>(&self, call: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
        if self.calls.fetch_add(1, Ordering::SeqCst) != self.n {
            return call.await;
        }
        if matches!(self.fault, Fault::ErrorAfter | Fault::KillAfter) {
            call.await?;
        }
        self.strike().await
    }

    /// Whether the one call is this step in the middle of another.
    fn is_now(&self) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst) == self.n
    }

    async fn strike<T>(&self) -> StoreResult<T> {
        if matches!(self.fault, Fault::KillBefore | Fault::KillAfter) {
            self.killed.notify_one();
            std::future::pending::<()>().await;
        }
        Err(StoreError::Unavailable("injected".to_owned()))
    }
}

struct Faulty<S: ?Sized> {
    inner: Arc<S>,
    plan: Arc<FaultPlan>,
}

/// The stores of the pipeline's components under a plan. The rest stays as it is.
pub(crate) fn faulty(stores: &Stores, plan: &Arc<FaultPlan>) -> Stores {
    fn wrap<S: ?Sized>(inner: &Arc<S>, plan: &Arc<FaultPlan>) -> Arc<Faulty<S>> {
        Arc::new(Faulty { inner: inner.clone(), plan: plan.clone() })
    }
    Stores {
        ingest: wrap(&stores.ingest, plan),
        router: wrap(&stores.router, plan),
        orchestrator: wrap(&stores.orchestrator, plan),
        worker: wrap(&stores.worker, plan),
        cleaner: wrap(&stores.cleaner, plan),
        dead_letters: wrap(&stores.dead_letters, plan),
        janitor: wrap(&stores.janitor, plan),
        redrives: wrap(&stores.redrives, plan),
        caretaker: wrap(&stores.caretaker, plan),
        ..stores.clone()
    }
}

#[async_trait]
impl IngestStore for Faulty<dyn IngestStore> {
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<Appended>> {
        self.plan.call(self.inner.append(events)).await
    }

    async fn store_payload_limit(&self, bytes: u64) -> StoreResult<()> {
        self.plan.call(self.inner.store_payload_limit(bytes)).await
    }
}

#[async_trait]
impl RouterStore for Faulty<dyn RouterStore> {
    async fn route(&self, limits: RouteLimits, default_limit: u32) -> StoreResult<RouteBatch> {
        self.plan.call(self.inner.route(limits, default_limit)).await
    }

    async fn queued(&self, after: EventId, limit: u32) -> StoreResult<Vec<EventId>> {
        self.plan.call(self.inner.queued(after, limit)).await
    }

    async fn route_small(&self, events: &[EventId], limits: SmallLimits) -> StoreResult<Examined> {
        self.plan.call(self.inner.route_small(events, limits)).await
    }

    async fn route_listed(&self, events: &[EventId], limits: ListedLimits) -> StoreResult<RouteBatch> {
        self.plan.call(self.inner.route_listed(events, limits)).await
    }
}

#[async_trait]
impl OrchestratorStore for Faulty<dyn OrchestratorStore> {
    async fn waiting(&self, after: Option<SubscriptionId>, limit: u32) -> StoreResult<WaitingPage> {
        self.plan.call(self.inner.waiting(after, limit)).await
    }

    /// Two transactions: the step between them is one at which it can fail, too.
    async fn create_jobs(&self, allotted: &[Allotted], created: JobsCreated<'_>) -> StoreResult<Scheduled> {
        let broken = AtomicBool::new(false);
        let between = || {
            if self.plan.is_now() {
                broken.store(true, Ordering::SeqCst);
                return Move::Never;
            }
            created()
        };
        let done = self.plan.call(self.inner.create_jobs(allotted, &between)).await;
        if broken.load(Ordering::SeqCst) { self.plan.strike().await } else { done }
    }

    fn until_move(&self) -> Option<Duration> {
        self.inner.until_move()
    }

    async fn move_rest(&self) -> StoreResult<()> {
        self.plan.call(self.inner.move_rest()).await
    }

    async fn schedule_stranded(
        &self,
        after: Option<SubscriptionId>,
        beyond: FurthestAttempt,
    ) -> StoreResult<StrandedStep> {
        self.plan.call(self.inner.schedule_stranded(after, beyond)).await
    }

    async fn load(&self) -> StoreResult<WorkerLoad> {
        self.plan.call(self.inner.load()).await
    }

    async fn failing(&self, limit: u32) -> StoreResult<Vec<(SubscriptionId, ErrorCode)>> {
        self.plan.call(self.inner.failing(limit)).await
    }

    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch> {
        self.plan.call(self.inner.apply(limit, decide)).await
    }
}

#[async_trait]
impl WorkerStore for Faulty<dyn WorkerStore> {
    async fn claim(&self, limits: &ClaimLimits, lease: LeaseRequest) -> StoreResult<ClaimedBatch> {
        self.plan.call(self.inner.claim(limits, lease)).await
    }

    async fn park(&self, leases: &[LeaseRef]) -> StoreResult<Vec<JobId>> {
        self.plan.call(self.inner.park(leases)).await
    }

    async fn unpark(&self, limit: u32) -> StoreResult<u64> {
        self.plan.call(self.inner.unpark(limit)).await
    }

    async fn heartbeat(&self, beat: &WorkerBeat) -> StoreResult<()> {
        self.plan.call(self.inner.heartbeat(beat)).await
    }

    async fn leave(&self, worker_id: i64) -> StoreResult<()> {
        self.plan.call(self.inner.leave(worker_id)).await
    }

    async fn start_limited(
        &self,
        starting: &[Starting],
        lead: Lead,
        held: HeldBuckets,
    ) -> StoreResult<Starts> {
        self.plan.call(self.inner.start_limited(starting, lead, held)).await
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        self.plan.call(self.inner.hand_back(leases, delay)).await
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        self.plan.call(self.inner.report(reports)).await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        self.plan.call(self.inner.secret_key_ids()).await
    }
}

#[async_trait]
impl CleanerStore for Faulty<dyn CleanerStore> {
    async fn reset_expired(&self, limit: u32) -> StoreResult<Vec<ResetLease>> {
        self.plan.call(self.inner.reset_expired(limit)).await
    }

    async fn free_stranded(&self, limit: u32, lease: Duration, hand_back: Duration) -> StoreResult<u64> {
        self.plan.call(self.inner.free_stranded(limit, lease, hand_back)).await
    }
}

#[async_trait]
impl DeadLetterStore for Faulty<dyn DeadLetterStore> {
    async fn bury(&self, limit: u32) -> StoreResult<Vec<Buried>> {
        self.plan.call(self.inner.bury(limit)).await
    }

    async fn send_again(&self, scope: &TenantScope, wanted: SendAgain) -> StoreResult<ResendOutcome> {
        self.plan.call(self.inner.send_again(scope, wanted)).await
    }

    async fn send_test(&self, scope: &TenantScope, wanted: SendTest) -> StoreResult<TestOutcome> {
        self.plan.call(self.inner.send_test(scope, wanted)).await
    }

    async fn requeue_step(&self, scope: &TenantScope, step: &RequeueStep) -> StoreResult<RequeuedBatch> {
        self.plan.call(self.inner.requeue_step(scope, step)).await
    }
}

#[async_trait]
impl JanitorStore for Faulty<dyn JanitorStore> {
    async fn old_events(&self, retention: &Retention, step: ScanStep<EventPlace>) -> StoreResult<OldEvents> {
        self.plan.call(self.inner.old_events(retention, step)).await
    }

    async fn archived_events(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedEvent>> {
        self.plan.call(self.inner.archived_events(events)).await
    }

    async fn archived_deliveries(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedDelivery>> {
        self.plan.call(self.inner.archived_deliveries(events)).await
    }

    async fn archived_page(&self, part: EventPart) -> StoreResult<Vec<ArchivedDelivery>> {
        self.plan.call(self.inner.archived_page(part)).await
    }

    async fn remove(&self, events: &[EventId], expiry: Expiry) -> StoreResult<Removed> {
        self.plan.call(self.inner.remove(events, expiry)).await
    }

    async fn remove_part(&self, part: EventPart, expiry: Expiry) -> StoreResult<RemovedPart> {
        self.plan.call(self.inner.remove_part(part, expiry)).await
    }

    async fn remove_records(&self, kept_for: Option<Duration>, limit: u32) -> StoreResult<RemovedRecords> {
        self.plan.call(self.inner.remove_records(kept_for, limit)).await
    }

    async fn roll_up_counts(&self, limit: u32) -> StoreResult<bool> {
        self.plan.call(self.inner.roll_up_counts(limit)).await
    }
}

#[async_trait]
impl RedriveStore for Faulty<dyn RedriveStore> {
    async fn start(&self, new: NewRedrive<'_>, limits: RunningLimits) -> StoreResult<StartOutcome> {
        self.plan.call(self.inner.start(new, limits)).await
    }

    async fn cancel(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<CancelOutcome> {
        self.plan.call(self.inner.cancel(scope, id)).await
    }

    async fn advance(&self, limits: StepLimits) -> StoreResult<Option<RedriveStep>> {
        self.plan.call(self.inner.advance(limits)).await
    }

    async fn catch_up(
        &self,
        limits: StepLimits,
        window: Option<Duration>,
    ) -> StoreResult<Option<RedriveStep>> {
        self.plan.call(self.inner.catch_up(limits, window)).await
    }

    async fn put_off_catch_up(&self, wait: Duration) -> StoreResult<()> {
        self.plan.call(self.inner.put_off_catch_up(wait)).await
    }

    async fn put_off_redrive(&self) -> StoreResult<()> {
        self.plan.call(self.inner.put_off_redrive()).await
    }

    async fn running(&self) -> StoreResult<u64> {
        self.plan.call(self.inner.running()).await
    }
}

#[async_trait]
impl CaretakerStore for Faulty<dyn CaretakerStore> {
    async fn gone(&self, limit: u32) -> StoreResult<Vec<Disable>> {
        self.plan.call(self.inner.gone(limit)).await
    }

    async fn troubled(
        &self,
        failing_for: Duration,
        step: ScanStep<TroubledPlace>,
    ) -> StoreResult<TroubledPage> {
        self.plan.call(self.inner.troubled(failing_for, step)).await
    }

    async fn disable(&self, causes: &[Disable]) -> StoreResult<Vec<Announcement>> {
        self.plan.call(self.inner.disable(causes)).await
    }

    async fn note_failing(&self, runs: &[(SubscriptionId, Timestamp)]) -> StoreResult<Vec<Announcement>> {
        self.plan.call(self.inner.note_failing(runs)).await
    }

    async fn note_verified(&self, limit: u32) -> StoreResult<u32> {
        self.plan.call(self.inner.note_verified(limit)).await
    }

    async fn announcements(&self, limit: u32) -> StoreResult<Vec<Announcement>> {
        self.plan.call(self.inner.announcements(limit)).await
    }

    async fn announce(&self, events: &[(Announcement, NewEvent)]) -> StoreResult<Vec<EventId>> {
        self.plan.call(self.inner.announce(events)).await
    }
}
