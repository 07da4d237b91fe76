//! The worker: leases jobs, POSTs their payloads, reports how it went.
//!
//! Promises: it claims no more than it can start now; one job is one attempt; no POST starts unless it must
//! end within its lease, by a clock that was read before the lease began; no transaction is open during a
//! POST; results are written under the lease's token, so that one that comes too late changes nothing. A
//! crash at any point loses nothing: the lease runs out and the delivery happens again.
//!
//! On the order to stop it claims nothing more, gives back what it had not started, and finishes and reports
//! what is in flight. The caller bounds how long that may take.
//!
//! Not done here: deciding about retries, touching sagas, creating jobs.

mod attempt;
mod prepare;
mod report;

use crate::{
    DeliveryClient, DeliveryLog, Driver, Metrics, Progress, SecretKey, Shutdown, Signals, driver::Rhythm,
    random_i64,
};
use attempt::Settled;
use hooksaga_store::{LeaseToken, Stage, StoreResult, WorkerStore};
use report::Reporter;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};

/// What a lease must have besides the timeout of a POST: time to claim, and time to write the result. A
/// configuration without it is refused at the start.
pub const LEASE_MARGIN: Duration = Duration::from_millis(500);
/// The part of [`LEASE_MARGIN`] that must be left when a POST starts. The other part is for the claim: were
/// all of it still needed here, a lease of exactly timeout and margin would never let one start.
const REPORT_MARGIN: Duration = Duration::from_millis(250);

/// How a worker works. `http_timeout` + [`LEASE_MARGIN`] must fit into `lease_duration`.
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// POSTs at a time.
    pub concurrency: u32,
    /// The longest that one POST may take, in all.
    pub http_timeout: Duration,
    pub lease_duration: Duration,
}

pub struct Worker {
    store: Arc<dyn WorkerStore>,
    client: DeliveryClient,
    key: Arc<SecretKey>,
    config: WorkerConfig,
    signals: Signals,
    metrics: Arc<Metrics>,
    reporter: Arc<Reporter>,
}

impl Worker {
    const NAME: &str = "worker";
    /// Jobs per claim: each brings its payload along.
    const BATCH: u32 = 1000;
    /// While fewer than a quarter of the slots are free, so long is waited for more to become free: claims
    /// of a few jobs each would cost more than the deliveries.
    const GATHER: Duration = Duration::from_millis(5);

    pub fn new(
        store: Arc<dyn WorkerStore>,
        client: DeliveryClient,
        key: Arc<SecretKey>,
        config: WorkerConfig,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
    ) -> Self {
        let reporter = Arc::new(Reporter::new(store.clone(), signals.clone(), metrics.clone(), log));
        Self { store, client, key, config, signals, metrics, reporter }
    }

    /// Works until the order to stop, and then until everything claimed is reported or given back. Ends before
    /// the order only if results can no longer be written, which is a bug.
    pub async fn run(&self, shutdown: &Shutdown) {
        let concurrency = usize::try_from(self.config.concurrency).unwrap_or(usize::MAX).max(1);
        let slots = Arc::new(Semaphore::new(concurrency));
        // Bounded: when results cannot be written, slots stay taken and nothing more is claimed.
        let (settled, results) = mpsc::channel(concurrency);
        let reporter = self.reporter.clone();
        let mut reporting = tokio::spawn(async move { reporter.run(results).await });

        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::Woken(Stage::Worker),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        tokio::select! {
            () = driver.run(|| self.claim_and_start(&slots, &settled, shutdown)) => {}
            // This side of the channel is open: only a panic ends the reporter. What is sent from now on
            // would never be written down, and be sent again and again.
            ended = &mut reporting => {
                tracing::error!(failure = ?ended.err(), "nobody writes results any more: the worker ends");
                return;
            }
        }

        // The reporter ends when the last attempt has dropped its end of the channel.
        drop(settled);
        if let Err(error) = reporting.await {
            tracing::error!(%error, "results were not written; their leases will run out");
        }
    }

    /// Claims as many jobs as there are free slots, starts them, and does not wait for them.
    async fn claim_and_start(
        &self,
        slots: &Arc<Semaphore>,
        settled: &mpsc::Sender<Settled>,
        shutdown: &Shutdown,
    ) -> StoreResult<Progress> {
        let free = tokio::select! {
            free = self.free_slots(slots) => free,
            () = shutdown.wait() => return Ok(Progress::IDLE),
        };
        let limit = free.min(Self::BATCH);
        let work = self.claim(limit).await?;
        let claimed = work.attempts.len() + work.settled.len();
        for done in work.settled {
            // Fails only when the reporter is gone; then the lease runs out.
            let _ = settled.send(done).await;
        }
        for attempt in work.attempts {
            let slot = slots.clone().acquire_owned().await.expect("this semaphore is never closed");
            let (client, settled, shutdown) = (self.client.clone(), settled.clone(), shutdown.clone());
            let timeout = self.config.http_timeout;
            tokio::spawn(async move {
                let done = attempt.carry_out(&client, timeout, &shutdown).await;
                let _ = settled.send(done).await;
                drop(slot);
            });
        }
        Ok(Progress::of_batch(claimed, limit))
    }

    /// Waits until a slot is free, and a little for company if few are.
    async fn free_slots(&self, slots: &Semaphore) -> u32 {
        let enough = (self.config.concurrency / 4).max(1);
        if slots.available_permits() < enough as usize {
            // The permits go back at once: this only waits.
            let _ = tokio::time::timeout(Self::GATHER, slots.acquire_many(enough)).await;
            let _ = slots.acquire().await;
        }
        // Only this loop takes permits, so there is at least one now.
        u32::try_from(slots.available_permits()).unwrap_or(u32::MAX)
    }

    async fn claim(&self, limit: u32) -> StoreResult<prepare::Work> {
        // Read before the claim is sent: the lease begins no earlier, so it lasts at least this long.
        let asked = Instant::now();
        let token = LeaseToken(random_i64());
        let batch = self.store.claim(limit, self.config.lease_duration, token).await?;
        if !batch.jobs.is_empty() {
            self.metrics.pass("claim", asked.elapsed());
        }
        Ok(prepare::prepare(batch, &self.key, &self.config, asked))
    }

    /// One pass: claims what is due, delivers all of it, reports, and returns.
    pub async fn run_once(&self) -> StoreResult<Progress> {
        self.run_once_until(&Shutdown::new()).await
    }

    /// The same; attempts that have not started when the order to stop comes are given back.
    pub async fn run_once_until(&self, shutdown: &Shutdown) -> StoreResult<Progress> {
        let limit = self.config.concurrency.min(Self::BATCH);
        let work = self.claim(limit).await?;
        let claimed = work.attempts.len() + work.settled.len();
        let mut running = tokio::task::JoinSet::new();
        for attempt in work.attempts {
            let (client, shutdown) = (self.client.clone(), shutdown.clone());
            let timeout = self.config.http_timeout;
            running.spawn(async move { attempt.carry_out(&client, timeout, &shutdown).await });
        }
        let mut settled = work.settled;
        settled.extend(running.join_all().await);
        self.reporter.settle(settled).await;
        Ok(Progress::of_batch(claimed, limit))
    }
}
