//! The saga orchestrator: the only component that changes a saga, and the only one that creates jobs.
//!
//! Its loops share it. `schedule` gives due sagas their jobs, as many per subscription as the allotment says;
//! `apply` turns finished jobs into the next state of their sagas; a slow third one looks for sagas that a clock which was
//! ahead has stranded. What it knows in memory, how endpoints behave and
//! when retries fall due, is about speed and fairness: losing it costs a few round trips.
//!
//! Promises: at most one active job per saga, every result applied exactly once, with any number of
//! orchestrators and after any crash; the state machine of `hooksaga_saga` takes every decision.
//!
//! Not done here: HTTP, leases, reading payloads, writing events or subscriptions.

mod apply;
mod due;
mod lanes;
mod schedule;
mod stranded;

use crate::{DeliveryLog, Driver, Metrics, Shutdown, Signals, batch_size::BatchSize, driver::Rhythm};
use due::DueTimes;
use hooksaga_saga::{FurthestAttempt, RetryPolicy, apply_result};
use hooksaga_store::{Decide, OrchestratorStore, Stage};
use lanes::Lanes;
use schedule::FullScan;
use std::sync::Arc;
use stranded::Stranded;

pub struct Orchestrator {
    store: Arc<dyn OrchestratorStore>,
    decide: Decide,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
    lanes: Lanes,
    due: DueTimes,
    full_scan: FullScan,
    /// Jobs that a pass creates, and results that one applies.
    jobs: BatchSize,
    results: BatchSize,
    stranded: Stranded,
}

impl Orchestrator {
    pub fn new(
        store: Arc<dyn OrchestratorStore>,
        policy: RetryPolicy,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
    ) -> Self {
        let decide: Decide = Arc::new(move |job, now| apply_result(&job.saga, &job.result, &policy, now));
        Self {
            store,
            decide,
            signals,
            metrics,
            log,
            lanes: Lanes::default(),
            due: DueTimes::new(),
            full_scan: FullScan::default(),
            jobs: BatchSize::new(schedule::BATCH),
            results: BatchSize::new(apply::BATCH),
            stranded: Stranded::new(FurthestAttempt::of(&policy)),
        }
    }

    /// Runs its loops, each at its own pace.
    pub async fn run(&self, shutdown: &Shutdown) {
        let driver = |name, stage| Driver {
            name,
            rhythm: Rhythm::Woken(stage),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        let schedule = driver(schedule::NAME, Stage::Schedule);
        let apply = driver(apply::NAME, Stage::Apply);
        let look = Driver {
            name: stranded::NAME,
            rhythm: Rhythm::Every(stranded::EVERY),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        tokio::join!(
            schedule.run(|| self.schedule_repeatedly()),
            apply.run(|| self.apply_once()),
            look.run(|| self.stranded_once())
        );
        // What is left is the next pass's, in any process; here nobody makes one.
        if let Err(error) = self.store.move_rest().await {
            self.metrics.store_error(schedule::NAME, &error);
        }
    }
}
