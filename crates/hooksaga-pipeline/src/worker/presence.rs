//! The worker's heartbeat, from which orchestrators know how many slots there are.

use super::Worker;
use crate::{Shutdown, random_i64};
use hooksaga_store::{Stage, WorkerBeat};
use std::time::Duration;

/// A third of the time after which a silent worker counts as gone.
const EVERY: Duration = Duration::from_secs(5);
/// After a failure, so that a short outage does not make it count as gone.
const AGAIN: Duration = Duration::from_secs(1);

impl Worker {
    /// Sends heartbeats until the order to stop, then takes the last one back.
    pub(super) async fn be_present(&self, shutdown: &Shutdown) {
        let beat = WorkerBeat {
            worker_id: random_i64(),
            slots: self.config.concurrency,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let mut known = false;
        while !shutdown.is_triggered() {
            let pause = match self.store.heartbeat(&beat).await {
                Ok(()) => {
                    if !known {
                        // Orchestrators that knew of no worker may have held work back.
                        self.signals.wake(Stage::Schedule);
                        known = true;
                    }
                    EVERY
                }
                Err(error) => {
                    self.metrics.store_error(Self::NAME, &error);
                    tracing::debug!(%error, "no heartbeat was written; trying again");
                    AGAIN
                }
            };
            tokio::select! {
                () = shutdown.wait() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        if let Err(error) = self.store.leave(beat.worker_id).await {
            tracing::debug!(%error, "the heartbeat's row was not removed; it counts until it is old");
        }
    }
}
