//! The saga orchestrator: the only component that changes a saga, and the only one that creates jobs.
//!
//! Two loops share it. `schedule` gives due sagas their jobs, within each subscription's admission window;
//! `apply` turns finished jobs into the next state of their sagas. What it knows in memory, the windows and
//! the times at which retries fall due, is about speed and fairness: losing it costs a few round trips.
//!
//! Promises: at most one active job per saga, every result applied exactly once, with any number of
//! orchestrators and after any crash; the state machine of `hooksaga_saga` takes every decision.
//!
//! Not done here: HTTP, leases, reading payloads, writing events or subscriptions.

mod apply;
mod due;
mod schedule;
mod windows;

use crate::{DeliveryLog, Driver, Metrics, Shutdown, Signals, driver::Rhythm};
use due::DueTimes;
use hooksaga_saga::{RetryPolicy, apply_result};
use hooksaga_store::{Decide, OrchestratorStore, Stage};
use std::{
    sync::{Arc, Mutex},
    time::Instant,
};
use windows::Windows;

pub struct Orchestrator {
    store: Arc<dyn OrchestratorStore>,
    decide: Decide,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
    windows: Windows,
    due: DueTimes,
    /// When a pass last looked for something to schedule everywhere.
    looked_everywhere: Mutex<Option<Instant>>,
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
            windows: Windows::default(),
            due: DueTimes::new(),
            looked_everywhere: Mutex::default(),
        }
    }

    /// Runs both loops, each at its own pace.
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
        tokio::join!(schedule.run(|| self.schedule_once()), apply.run(|| self.apply_once()));
    }
}
