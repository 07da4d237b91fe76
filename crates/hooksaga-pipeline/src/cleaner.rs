//! The lease reset cleaner: jobs whose worker is gone become claimable again.
//!
//! Promises: a Leased job whose lease has run out is Pending again within the interval, and how often that
//! happened to it is counted. Any number of copies may run.
//!
//! Not done here: touching sagas, or giving a job up (a worker does, once it has been reset too often).

use crate::{DELIVERY_LOG_TARGET, DeliveryLog, Driver, Metrics, Progress, Shutdown, Signals, driver::Rhythm};
use hooksaga_store::{CleanerStore, Stage, StoreResult};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub struct Cleaner {
    store: Arc<dyn CleanerStore>,
    interval: Duration,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
}

impl Cleaner {
    /// Jobs per pass.
    const BATCH: u32 = 1000;
    const NAME: &str = "cleaner";

    pub fn new(
        store: Arc<dyn CleanerStore>,
        interval: Duration,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
    ) -> Self {
        Self { store, interval, signals, metrics, log }
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
                    correlation_id = job.correlation_id.as_str(),
                    saga_id = job.saga_id.0,
                    job_id = job.job_id.0,
                    lease_resets = job.lease_resets,
                    "the lease ran out: another worker may take the job"
                );
            }
        }
        Ok(Progress::of_batch(reset.len(), Self::BATCH))
    }
}
