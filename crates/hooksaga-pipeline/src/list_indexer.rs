//! The index of lists: which blocks of deliveries and of events hold something of a subscription, tenant, type or time.
//!
//! Promises: settled rows are indexed within seconds, whichever process created them, and nothing waits for it. It uses
//! at most a quarter of the time of one connection. Lists are complete without it, only slower. Entries of blocks whose
//! rows were removed are deleted, in rounds over all of them. Any number of copies may run.

use crate::{Driver, Metrics, Progress, Shutdown, Signals, driver::Rhythm};
use hooksaga_store::{ListIndexStore, SETTLED, StoreResult};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A round over all blocks, for those that hold nothing any more.
#[derive(Clone, Copy, Default)]
struct BlockRound {
    /// Which list of the store's, and the block that the next step resumes behind.
    at: Option<(usize, i64)>,
    ended: Option<Instant>,
}

pub struct ListIndexer {
    store: Arc<dyn ListIndexStore>,
    settled: Duration,
    round: Mutex<BlockRound>,
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
        Self { store, settled: SETTLED, round: Mutex::default(), signals, metrics }
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
        for list in self.store.lists() {
            let step = self.store.index(*list, Self::BATCH, self.settled).await?;
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
        let round = *self.round.lock().unwrap_or_else(PoisonError::into_inner);
        let rests = round.ended.is_some_and(|at| at.elapsed() < Self::TRIM_EVERY);
        let (number, after) = match round.at {
            None if rests => return Ok(false),
            at => at.unwrap_or((0, -1)),
        };
        let Some(list) = self.store.lists().get(number) else { return Ok(false) };
        let step = self.store.trim(*list, after, Self::BATCH).await?;
        let next = match step.resume_after {
            Some(after) => Some((number, after)),
            None if number + 1 < self.store.lists().len() => Some((number + 1, -1)),
            None => None,
        };
        let round =
            BlockRound { at: next, ended: next.map_or_else(|| Some(Instant::now()), |_| round.ended) };
        *self.round.lock().unwrap_or_else(PoisonError::into_inner) = round;
        Ok(next.is_some())
    }
}
