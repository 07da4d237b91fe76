//! The dead letter component: a letter with the event's payload for every delivery that was given up.
//!
//! Promises: one letter per DeadLettered saga, whatever crashes in between.
//!
//! Not done here: deciding that a delivery is dead (the orchestrator does), requeueing ([`Requeue`](crate::Requeue) does).

use crate::{
    DELIVERY_LOG_TARGET, DeliveryLog, Driver, Metrics, Progress, Shutdown, Signals, batch_size::BatchSize,
    driver::Rhythm,
};
use hooksaga_store::{DeadLetterStore, Stage, StoreResult};
use std::{sync::Arc, time::Instant};

pub struct DeadLetters {
    store: Arc<dyn DeadLetterStore>,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
    letters: BatchSize,
}

impl DeadLetters {
    /// Letters per pass; each copies a payload, so a pass stays short.
    const BATCH: u32 = 200;
    const NAME: &str = "dead_letters";

    pub fn new(
        store: Arc<dyn DeadLetterStore>,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
    ) -> Self {
        Self { store, signals, metrics, log, letters: BatchSize::new(Self::BATCH) }
    }

    pub async fn run(&self, shutdown: &Shutdown) {
        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::WokenSeldom(Stage::DeadLetters),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        driver.run(|| self.run_once()).await;
    }

    pub async fn run_once(&self) -> StoreResult<Progress> {
        let started = Instant::now();
        let limit = self.letters.get();
        let buried = self.letters.noting(self.store.bury(limit).await)?;
        if !buried.is_empty() {
            self.metrics.pass(Self::NAME, started.elapsed());
            self.metrics
                .buried(buried.iter().filter(|letter| letter.dead_letter_id.is_some()).count() as u64);
        }
        if self.log.wants(true) {
            for letter in &buried {
                tracing::warn!(
                    target: DELIVERY_LOG_TARGET,
                    stage = Self::NAME,
                    delivery_status = "DeadLettered",
                    tenant = letter.tenant.as_str(),
                    correlation_id = letter.correlation_id.as_str(),
                    saga_id = letter.saga_id.0,
                    event_id = letter.event_id.0,
                    subscription_id = letter.subscription_id.0,
                    dead_letter_id = letter.dead_letter_id.map(|id| id.0),
                    error_code = %letter.final_error_code,
                    "dead letter stored"
                );
            }
        }
        Ok(Progress::of_batch(buried.len(), limit))
    }
}
