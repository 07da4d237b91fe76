//! The router: for each new event, one saga per subscription that wants it.
//!
//! Promises: every accepted event is routed, exactly once per subscription, by any number of routers; a pass
//! that is repeated changes nothing. Which subscriptions match is decided by the store after the events are
//! locked, so a change is seen by the next pass.
//!
//! A pass is bounded by the sagas that it writes. An event with more subscriptions than that takes several passes, each of which stores
//! its progress. After a pass that times out, the next one is half as large. After each pass that leaves a large event half routed,
//! small events are routed first: an event with few subscriptions does not wait behind one with thousands.
//!
//! Not done here: creating jobs, changing sagas, events or subscriptions, reading payloads.

use crate::{
    DELIVERY_LOG_TARGET, DeliveryLog, Driver, Metrics, Progress, Shutdown, Signals, batch_size::BatchSize,
    driver::Rhythm,
};
use hooksaga_store::{RouteBatch, RouteLimits, RouterStore, Stage, StoreResult};
use std::{collections::BTreeSet, sync::Arc, time::Instant};

pub struct Router {
    store: Arc<dyn RouterStore>,
    /// Attempts of sagas whose subscription has no limit of its own.
    default_limit: u32,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
    sagas: BatchSize,
}

impl Router {
    /// What a pass may cost: events taken, and sagas written. On SQLite, posts wait while a pass writes.
    const LIMITS: RouteLimits = RouteLimits { events: 1000, sagas: 2000 };
    /// Small events that are let past a crowd after each pass: how many of the newest are looked at, and how many
    /// subscriptions such an event has at most.
    const SMALL: RouteLimits = RouteLimits { events: 100, sagas: 20 };
    const NAME: &str = "router";

    pub fn new(
        store: Arc<dyn RouterStore>,
        default_limit: u32,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
    ) -> Self {
        Self { store, default_limit, signals, metrics, log, sagas: BatchSize::new(Self::LIMITS.sagas) }
    }

    pub async fn run(&self, shutdown: &Shutdown) {
        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::Woken(Stage::Router),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        driver.run(|| self.run_once()).await;
    }

    pub async fn run_once(&self) -> StoreResult<Progress> {
        let started = Instant::now();
        let sagas = self.sagas.get();
        let limits = RouteLimits { events: Self::LIMITS.events.min(sagas), sagas };
        let batch = self.sagas.noting(self.store.route(limits, self.default_limit).await)?;
        if !batch.events.is_empty() {
            self.metrics.pass(Self::NAME, started.elapsed());
            self.account(&batch);
        }
        if let Some(half_routed) = batch.events.iter().find(|event| !event.complete) {
            // One that few want was merely the last that the pass had room for; the next pass goes on with it at once.
            let considered = half_routed.sagas.len() as u64 + half_routed.unmatched.total();
            if considered > u64::from(Self::SMALL.sagas) {
                self.account(&self.store.route_small(Self::SMALL, self.default_limit).await?);
            }
            return Ok(Progress::Worked);
        }
        Ok(Progress::of_batch(batch.events.len(), limits.events))
    }

    fn account(&self, batch: &RouteBatch) {
        let sagas: usize = batch.events.iter().map(|event| event.sagas.len()).sum();
        let subscriptions: BTreeSet<_> =
            batch.events.iter().flat_map(|event| &event.sagas).map(|saga| saga.subscription_id).collect();
        self.signals.wake_schedule(subscriptions);
        self.metrics.routed(batch.events.len() as u64, sagas as u64);
        // An event that nobody takes is what an operator searches for, whether or not successes are logged.
        let (good, bad) = (self.log.wants(false), self.log.wants(true));
        if !bad {
            return;
        }
        for event in &batch.events {
            if event.unwanted || event.unmatched.total() > 0 {
                let unmatched = event.unmatched;
                let of_this_type = match unmatched.total() {
                    0 => String::new(),
                    _ => format!(" ({unmatched})"),
                };
                let what =
                    if event.unwanted { "matched no subscription" } else { "not sent to some subscriptions" };
                tracing::info!(
                    target: DELIVERY_LOG_TARGET,
                    stage = Self::NAME,
                    delivery_status = "Unrouted",
                    correlation_id = event.correlation_id.as_str(),
                    tenant = event.tenant.as_str(),
                    event_id = event.event_id.0,
                    paused = unmatched.paused,
                    disabled = unmatched.disabled,
                    unverified = unmatched.unverified,
                    "{what}{of_this_type}"
                );
            }
            for saga in event.sagas.iter().filter(|_| good) {
                tracing::info!(
                    target: DELIVERY_LOG_TARGET,
                    stage = Self::NAME,
                    delivery_status = "Pending",
                    tenant = event.tenant.as_str(),
                    correlation_id = event.correlation_id.as_str(),
                    saga_id = saga.saga_id.0,
                    event_id = event.event_id.0,
                    subscription_id = saga.subscription_id.0,
                    "routed"
                );
            }
        }
    }
}
