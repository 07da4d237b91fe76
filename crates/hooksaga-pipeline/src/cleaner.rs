//! The lease reset cleaner: jobs whose worker is gone become claimable again.
//!
//! Promises: a Leased job whose lease has run out is Pending again within the interval, and how often that
//! happened to it is counted. A job whose lease or not-before lies further ahead than it could, because a clock was ahead,
//! is freed too. Any number of copies may run.
//!
//! Not done here: touching sagas, or giving a job up (a worker does, once it has been reset too often).

use crate::{DELIVERY_LOG_TARGET, DeliveryLog, Driver, Metrics, Progress, Shutdown, Signals, driver::Rhythm};
use hooksaga_saga::{furthest_hand_back, furthest_lease};
use hooksaga_store::{CleanerStore, Stage, StoreResult};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

pub struct Cleaner {
    store: Arc<dyn CleanerStore>,
    interval: Duration,
    lease_duration: Duration,
    /// When stranded jobs were last looked for.
    looked: Mutex<Option<Instant>>,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
}

impl Cleaner {
    /// Jobs per pass.
    const BATCH: u32 = 1000;
    const NAME: &str = "cleaner";
    /// How often stranded jobs are looked for.
    const STRANDED_EVERY: Duration = Duration::from_secs(10);

    /// `lease_duration` is that of the workers.
    pub fn new(
        store: Arc<dyn CleanerStore>,
        interval: Duration,
        lease_duration: Duration,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
    ) -> Self {
        Self { store, interval, lease_duration, looked: Mutex::default(), signals, metrics, log }
    }

    pub async fn run(&self, shutdown: &Shutdown) {
        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::Every(self.interval),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        driver.run(|| self.run_once()).await;
    }

    pub async fn run_once(&self) -> StoreResult<Progress> {
        let started = Instant::now();
        let reset = self.store.reset_expired(Self::BATCH).await?;
        if !reset.is_empty() {
            self.signals.wake(Stage::Worker);
            self.metrics.pass(Self::NAME, started.elapsed());
            self.metrics.leases_reset(reset.len() as u64);
        }
        if self.log.wants(true) {
            for job in &reset {
                tracing::warn!(
                    target: DELIVERY_LOG_TARGET,
                    stage = Self::NAME,
                    delivery_status = "LeaseReset",
                    tenant = job.trace.tenant.as_str(),
                    correlation_id = job.trace.correlation_id.as_str(),
                    saga_id = job.saga_id.0,
                    job_id = job.job_id.0,
                    lease_resets = job.lease_resets,
                    "the lease ran out: another worker may take the job"
                );
            }
        }
        let looked = *self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.is_none_or(|at| at.elapsed() >= Self::STRANDED_EVERY) {
            self.free_stranded().await?;
            *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        Ok(Progress::of_batch(reset.len(), Self::BATCH))
    }

    /// Frees jobs that a clock which was ahead has put out of reach.
    async fn free_stranded(&self) -> StoreResult<()> {
        let (lease, hand_back) = (furthest_lease(self.lease_duration), furthest_hand_back());
        let most = u64::from(Self::BATCH) * 2;
        loop {
            let freed = self.store.free_stranded(Self::BATCH, lease, hand_back).await?;
            if freed > 0 {
                tracing::warn!(
                    component = Self::NAME,
                    jobs = freed,
                    "jobs were put off impossibly far ahead (was the database's clock wrong?); treating them as due"
                );
                self.signals.wake(Stage::Worker);
            }
            if freed < most / 2 {
                return Ok(());
            }
        }
    }
}
