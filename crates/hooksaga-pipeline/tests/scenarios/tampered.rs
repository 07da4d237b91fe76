//! A worker's store that does what it should, but for one thing.

use async_trait::async_trait;
use hooksaga_saga::{JobId, Lead};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, HeldBuckets, JobReport, LeaseRef, LeaseRequest, Starting, Starts, StoreError,
    StoreResult, WorkerBeat, WorkerStore,
};
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

pub(super) struct Tampered {
    inner: Arc<dyn WorkerStore>,
    /// Why results cannot be written now, if they cannot.
    refusal: Box<dyn Fn() -> Option<StoreError> + Send + Sync>,
    /// How long it takes to hear that.
    silence: Duration,
    /// Decisions about limited starts reach the worker only at multiples of this, from the first one on.
    late: Duration,
    first: OnceLock<Instant>,
}

impl Tampered {
    /// Results are refused while `refusal` returns an error.
    pub(super) fn refusing(
        inner: Arc<dyn WorkerStore>,
        refusal: impl Fn() -> Option<StoreError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::refusing_after(Duration::ZERO, inner, refusal)
    }

    /// The same, and each refusal takes this long: as when the connection is dead.
    pub(super) fn refusing_after(
        silence: Duration,
        inner: Arc<dyn WorkerStore>,
        refusal: impl Fn() -> Option<StoreError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (late, first) = (Duration::ZERO, OnceLock::new());
        Arc::new(Self { inner, refusal: Box::new(refusal), silence, late, first })
    }

    /// The commits of limited starts end together, once in so long.
    pub(super) fn deciding_late(inner: Arc<dyn WorkerStore>, late: Duration) -> Arc<Self> {
        let (silence, first) = (Duration::ZERO, OnceLock::new());
        Arc::new(Self { inner, refusal: Box::new(|| None), silence, late, first })
    }
}

#[async_trait]
impl WorkerStore for Tampered {
    async fn claim(&self, limits: &ClaimLimits, lease: LeaseRequest) -> StoreResult<ClaimedBatch> {
        self.inner.claim(limits, lease).await
    }

    async fn start_limited(
        &self,
        starting: &[Starting],
        lead: Lead,
        held: HeldBuckets,
    ) -> StoreResult<Starts> {
        let first = *self.first.get_or_init(Instant::now);
        let starts = self.inner.start_limited(starting, lead, held).await;
        if !self.late.is_zero() {
            let rest = self.late.as_nanos() - first.elapsed().as_nanos() % self.late.as_nanos();
            tokio::time::sleep(Duration::from_nanos(u64::try_from(rest).unwrap())).await;
        }
        starts
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        self.inner.hand_back(leases, delay).await
    }

    async fn park(&self, leases: &[LeaseRef]) -> StoreResult<Vec<JobId>> {
        self.inner.park(leases).await
    }

    async fn unpark(&self, limit: u32) -> StoreResult<u64> {
        self.inner.unpark(limit).await
    }

    async fn heartbeat(&self, beat: &WorkerBeat) -> StoreResult<()> {
        self.inner.heartbeat(beat).await
    }

    async fn leave(&self, worker_id: i64) -> StoreResult<()> {
        self.inner.leave(worker_id).await
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        match (self.refusal)() {
            Some(error) => {
                tokio::time::sleep(self.silence).await;
                Err(error)
            }
            None => self.inner.report(reports).await,
        }
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        self.inner.secret_key_ids().await
    }
}
