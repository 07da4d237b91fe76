//! Stores that let every call through but one.

use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, JobId, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{
    Admission, Appended, ApplyBatch, Buried, ClaimedBatch, CleanerStore, DeadLetterStore, Decide,
    IngestStore, JobReport, LeaseRef, LeaseToken, NewEvent, OrchestratorStore, RequeueOutcome,
    RequeueRequest, RequeueTally, ResetLease, RouteBatch, RouterStore, Scheduled, StoreError, StoreResult,
    Stores, WorkerStore,
};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
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
        ..stores.clone()
    }
}

#[async_trait]
impl IngestStore for Faulty<dyn IngestStore> {
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<Appended>> {
        self.plan.call(self.inner.append(events)).await
    }
}

#[async_trait]
impl RouterStore for Faulty<dyn RouterStore> {
    async fn route(&self, limit: u32, default_limit: u32) -> StoreResult<RouteBatch> {
        self.plan.call(self.inner.route(limit, default_limit)).await
    }
}

#[async_trait]
impl OrchestratorStore for Faulty<dyn OrchestratorStore> {
    async fn schedule(&self, admission: &Admission) -> StoreResult<Scheduled> {
        self.plan.call(self.inner.schedule(admission)).await
    }

    async fn open_jobs(&self) -> StoreResult<HashMap<SubscriptionId, u32>> {
        self.plan.call(self.inner.open_jobs()).await
    }

    async fn mark_in_progress(&self, sagas: &[(SagaId, Timestamp)]) -> StoreResult<u64> {
        self.plan.call(self.inner.mark_in_progress(sagas)).await
    }

    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch> {
        self.plan.call(self.inner.apply(limit, decide)).await
    }
}

#[async_trait]
impl WorkerStore for Faulty<dyn WorkerStore> {
    async fn claim(&self, limit: u32, lease: Duration, token: LeaseToken) -> StoreResult<ClaimedBatch> {
        self.plan.call(self.inner.claim(limit, lease, token)).await
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
}

#[async_trait]
impl DeadLetterStore for Faulty<dyn DeadLetterStore> {
    async fn bury(&self, limit: u32) -> StoreResult<Vec<Buried>> {
        self.plan.call(self.inner.bury(limit)).await
    }

    async fn requeue(&self, id: DeadLetterId, default_limit: u32) -> StoreResult<RequeueOutcome> {
        self.plan.call(self.inner.requeue(id, default_limit)).await
    }

    async fn requeue_matching(&self, request: &RequeueRequest) -> StoreResult<RequeueTally> {
        self.plan.call(self.inner.requeue_matching(request)).await
    }
}
