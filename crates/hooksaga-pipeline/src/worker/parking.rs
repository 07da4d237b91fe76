//! Jobs of paused subscriptions: parked once, and freed when their subscription is active and verified again.
//!
//! A parked job costs nothing: no claim looks at it. Whoever resumes a subscription wakes [`Stage::Resume`]; a slow poll is
//! the safety net (every second where the wake-ups of other processes are not heard). A moment after something was parked
//! the subscriptions are looked at once more, because one may have resumed at the same time.

use super::Worker;
use crate::Shutdown;
use hooksaga_store::{Stage, StoreResult};
use std::time::Duration;
use tokio::{sync::Notify, time::Instant};

/// Jobs per statement.
const BATCH: u32 = 1000;
const POLL: Duration = Duration::from_secs(90);
/// While a resume by another process might not be heard of.
const POLL_UNHEARING: Duration = Duration::from_secs(1);
const AFTER_PARKING: Duration = Duration::from_secs(1);
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Tells the loop below that something was parked.
#[derive(Debug, Default)]
pub(super) struct Parked(Notify);

impl Parked {
    pub(super) fn announce(&self) {
        self.0.notify_one();
    }
}

impl Worker {
    /// Frees parked jobs until the order to stop.
    pub(super) async fn unpark_resumed(&self, shutdown: &Shutdown) {
        let mut next = Instant::now();
        while !shutdown.is_triggered() {
            tokio::select! {
                () = shutdown.wait() => return,
                () = self.signals.woken(Stage::Resume) => {}
                () = self.parked.0.notified() => {
                    next = next.min(Instant::now() + AFTER_PARKING);
                    continue;
                }
                () = tokio::time::sleep_until(next.min(Instant::now() + POLL_UNHEARING)) => {
                    if Instant::now() < next && self.signals.hears_all() {
                        continue;
                    }
                }
            }
            next = Instant::now() + POLL;
            if let Err(error) = self.unpark_once().await {
                self.metrics.store_error(Self::NAME, &error);
                tracing::debug!(%error, "cannot read parked jobs; trying again");
                next = Instant::now() + AFTER_FAILURE;
            }
        }
    }

    /// Frees the parked jobs of subscriptions that are active and verified again.
    pub async fn unpark_once(&self) -> StoreResult<u64> {
        let mut freed = 0;
        loop {
            let batch = self.store.unpark(BATCH).await?;
            freed += batch;
            if batch > 0 {
                self.signals.wake(Stage::Worker);
            }
            if batch < u64::from(BATCH) {
                return Ok(freed);
            }
        }
    }
}
