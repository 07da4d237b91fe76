//! Notifications between processes. There is no LISTEN and NOTIFY, so there is a small table with a counter per stage:
//! whoever leaves work for a stage in another process adds one, and every process reads all of the counters in one
//! statement: every 90 ms while signals come, every 200 ms when it has been quiet for a while. The same statement looks
//! whether events wait for a router, which finds those that applications have appended. A hint, never needed for
//! correctness.

use crate::{
    error::store_error,
    options::SessionKind,
    pool::{RolePool, connect_once, in_time},
};
use async_trait::async_trait;
use hooksaga_store::{Role, ServerOptions, Stage, StoreResult, WakeListener, Wakeups};
use mysql_async::{Conn, prelude::Queryable as _};
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// Between two looks while signals come.
const LOOK: Duration = Duration::from_millis(90);
/// Between two looks after a quiet time: an idle process asks the server next to nothing.
const QUIET_LOOK: Duration = Duration::from_millis(200);
/// So long without a signal is quiet.
const QUIET: Duration = Duration::from_secs(10);
/// Nobody looks more often than that, so that a sender who waits as long before the next signal spares the server a
/// commit and costs nobody much.
const PAUSE: Duration = Duration::from_millis(10);

const NOTIFY: &str = "/* wake.notify */ UPDATE wake_signals SET sent = sent + 1 WHERE stage IN ";
const LOOK_SQL: &str = "/* wake.look */ SELECT stage, sent FROM wake_signals";
/// The same, and the newest event that waits for a router: what `hooksaga_append` has queued is announced by nobody, since a
/// counter would stay locked until the application commits.
const LOOK_AT_QUEUE_SQL: &str = "/* wake.look_at_queue */ SELECT stage, sent FROM wake_signals \
    UNION ALL (SELECT 'queued', event_id FROM unrouted_events ORDER BY event_id DESC LIMIT 1)";
const QUEUED: &str = "queued";
/// The queue is looked at for this part of the time at most. What was deleted and cannot be purged yet, because somebody's
/// transaction is old, makes the look long.
const QUEUE_LOOKS: u32 = 20;

pub(crate) struct Notifications {
    pool: RolePool,
    options: ServerOptions,
}

impl Notifications {
    /// `pool` sends; a listener has a connection of its own.
    pub(crate) fn new(pool: RolePool, options: ServerOptions) -> Self {
        Self { pool, options }
    }
}

#[async_trait]
impl Wakeups for Notifications {
    async fn notify(&self, stages: &[Stage]) -> StoreResult<()> {
        if stages.is_empty() {
            return Ok(());
        }
        // In one order, so that two senders wait for each other instead of deadlocking.
        let mut stages = stages.to_vec();
        stages.sort_by_key(|stage| stage.as_str());
        let names = &stages.iter().map(|stage| format!("'{stage}'")).collect::<Vec<_>>().join(",");
        self.pool
            .run(|mut connection| async move {
                connection.query_drop(format!("{NOTIFY}({names})")).await?;
                Ok(())
            })
            .await?;
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    async fn listen(&self) -> StoreResult<Option<Box<dyn WakeListener>>> {
        let connection =
            connect_once(SessionKind::Component(Role::ApiReader).configuration(&self.options)?).await?;
        let mut listener = Listener {
            connection,
            heard_at: Instant::now(),
            queue_at: Instant::now(),
            seen: HashMap::new(),
            heard: VecDeque::new(),
        };
        listener.look().await?;
        // What was sent before is not for this listener.
        listener.heard.clear();
        Ok(Some(Box::new(listener)))
    }
}

struct Listener {
    connection: Conn,
    /// When a signal came last; at first, when the listening began.
    heard_at: Instant,
    /// When the queue is looked at again.
    queue_at: Instant,
    /// The counters as they were at the last look.
    seen: HashMap<Stage, i64>,
    /// Stages whose counter has changed and that were not handed out yet.
    heard: VecDeque<Stage>,
}

impl Listener {
    async fn look(&mut self) -> StoreResult<()> {
        let began = Instant::now();
        let at_queue = began >= self.queue_at;
        let sql = if at_queue { LOOK_AT_QUEUE_SQL } else { LOOK_SQL };
        let look = async { self.connection.query(sql).await.map_err(|error| store_error(&error)) };
        let counters: Vec<(String, i64)> = in_time(look).await?;
        if at_queue {
            self.queue_at = Instant::now() + began.elapsed() * QUEUE_LOOKS;
        }
        for (name, sent) in counters {
            if name == QUEUED {
                if !self.heard.contains(&Stage::Router) {
                    self.heard.push_back(Stage::Router);
                }
                continue;
            }
            // What a newer version calls otherwise is left out.
            let Some(stage) = Stage::ALL.iter().copied().find(|stage| stage.as_str() == name) else {
                continue;
            };
            if self.seen.insert(stage, sent) != Some(sent) {
                self.heard.push_back(stage);
                self.heard_at = Instant::now();
            }
        }
        Ok(())
    }
}

#[async_trait]
impl WakeListener for Listener {
    async fn next(&mut self) -> StoreResult<Stage> {
        loop {
            if let Some(stage) = self.heard.pop_front() {
                return Ok(stage);
            }
            tokio::time::sleep(pause_after(self.heard_at.elapsed())).await;
            self.look().await?;
        }
    }
}

/// How long to wait before the next look, so long after the last signal.
fn pause_after(quiet: Duration) -> Duration {
    if quiet > QUIET { QUIET_LOOK } else { LOOK }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_arrive_within_a_tenth_of_a_second_and_quiet_costs_few_statements() {
        assert!(pause_after(Duration::ZERO) < Duration::from_millis(100));
        assert!(pause_after(QUIET) < Duration::from_millis(100));
        // Together with the slow polls of the components it stays below ten statements a second.
        assert!(pause_after(QUIET * 2) >= Duration::from_millis(200));
    }
}
