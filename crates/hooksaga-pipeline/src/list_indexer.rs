//! The index of lists: which blocks of deliveries and of events hold something of a subscription, tenant, type or time.
//!
//! Promises: what is settled is indexed within seconds, whoever created it; nothing waits for it. It takes a quarter of the
//! time of one connection at most. Lists are complete without it, only slower. Any number of copies may run.

use crate::{Driver, Metrics, Progress, Shutdown, Signals, driver::Rhythm};
use hooksaga_store::{List, ListIndexStore, SETTLED, StoreResult};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

pub struct ListIndexer {
    store: Arc<dyn ListIndexStore>,
    settled: Duration,
    /// When entries of removed rows were last looked for.
    trimmed: Mutex<Option<Instant>>,
    signals: Signals,
    metrics: Arc<Metrics>,
}

impl ListIndexer {
    /// Rows per step.
    const BATCH: u32 = 2048;
    const NAME: &str = "list_indexer";
    const EVERY: Duration = Duration::from_secs(10);
    const TRIM_EVERY: Duration = Duration::from_secs(60);
    /// After a step it rests for as many times as long as that took.
    const REST: u32 = 3;

    pub fn new(store: Arc<dyn ListIndexStore>, signals: Signals, metrics: Arc<Metrics>) -> Self {
        Self { store, settled: SETTLED, trimmed: Mutex::default(), signals, metrics }
    }

    /// The same with another age from which on rows are indexed.
    #[must_use]
    pub fn settled_after(mut self, settled: Duration) -> Self {
        self.settled = settled;
        self
    }

    pub async fn run(&self, shutdown: &Shutdown) {
        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::Every(Self::EVERY),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        driver.run(|| self.run_once()).await;
    }

    /// One step of each list.
    pub async fn run_once(&self) -> StoreResult<Progress> {
        let started = Instant::now();
        let (mut rows, mut more) = (0, false);
        for list in List::ALL {
            let step = self.store.index(list, Self::BATCH, self.settled).await?;
            rows += step.rows;
            more |= step.more;
        }
        more |= self.trim().await?;
        if rows > 0 {
            self.metrics.pass(Self::NAME, started.elapsed());
        }
        let rest = started.elapsed() * Self::REST;
        let until = more.then(|| rest.min(Self::EVERY));
        Ok(Progress::Idle { until })
    }

    /// Whether there may be more.
    async fn trim(&self) -> StoreResult<bool> {
        let trimmed = *self.trimmed.lock().unwrap_or_else(PoisonError::into_inner);
        if trimmed.is_some_and(|at| at.elapsed() < Self::TRIM_EVERY) {
            return Ok(false);
        }
        let mut removed = 0;
        for list in List::ALL {
            removed += self.store.trim(list, Self::BATCH).await?;
        }
        let more = removed >= u64::from(Self::BATCH);
        if !more {
            *self.trimmed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        Ok(more)
    }
}
