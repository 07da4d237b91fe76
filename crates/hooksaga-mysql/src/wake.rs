//! Signals between processes. There is no LISTEN and NOTIFY, so there is a small table with a counter per stage. A process that
//! leaves work for a stage in another process adds one to its counter. Every process polls all counters in one statement: every
//! 90 ms while signals come, every 200 ms after a quiet time.
//!
//! The same statement checks whether events wait for a router. That finds the events that applications have appended, which
//! nothing else announces; while new ones come, it runs every 20 ms. A signal is a hint, never needed for correctness.

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

/// Between two polls while signals come.
const POLL_EVERY: Duration = Duration::from_millis(90);
/// Between two polls after a quiet time: an idle process costs the server almost nothing.
const POLL_EVERY_WHEN_QUIET: Duration = Duration::from_millis(200);
/// This long without a signal is quiet.
const QUIET: Duration = Duration::from_secs(10);
/// Between two polls while events are appended.
const POLL_EVERY_WHILE_APPENDED: Duration = Duration::from_millis(20);
/// This long after an event was seen in the queue, others are expected.
const APPENDED: Duration = Duration::from_secs(5);
/// No process polls more often than that. So a sender that waits this long before its next signal saves the server a
/// commit and delays nobody by much.
const PAUSE: Duration = Duration::from_millis(10);

const NOTIFY: &str = "/* wake.notify */ UPDATE wake_signals SET sent = sent + 1 WHERE stage IN ";
const POLL: &str = "/* wake.poll */ SELECT stage, sent FROM wake_signals";
/// The same, and the newest event that waits for a router: nothing announces the events of `hooksaga_append`, since a counter
/// would stay locked until the application commits.
const POLL_WITH_QUEUE: &str = "/* wake.poll_with_queue */ SELECT stage, sent FROM wake_signals \
    UNION ALL (SELECT 'queued', event_id FROM unrouted_events ORDER BY event_id DESC LIMIT 1)";
const QUEUED: &str = "queued";
/// After a poll that read the queue, the next polls leave it out for this many times as long. Such a poll is slow if the server
/// cannot purge deleted entries yet, because some transaction is old.
const QUEUE_POLL_REST: u32 = 20;

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
            appended_at: None,
            newest: None,
            queue_at: Instant::now(),
            seen: HashMap::new(),
            heard: VecDeque::new(),
        };
        listener.poll().await?;
        // What was sent before is not for this listener.
        listener.heard.clear();
        Ok(Some(Box::new(listener)))
    }
}

struct Listener {
    connection: Conn,
    /// When a signal came last; at first, when the listening began.
    heard_at: Instant,
    /// When an event was seen in the queue that had not been there before, last.
    appended_at: Option<Instant>,
    /// The newest event of the queue, when it was last read.
    newest: Option<i64>,
    /// When the queue is read again.
    queue_at: Instant,
    /// The counters as they were at the last poll.
    seen: HashMap<Stage, i64>,
    /// Stages whose counter has changed and that were not handed out yet.
    heard: VecDeque<Stage>,
}

impl Listener {
    async fn poll(&mut self) -> StoreResult<()> {
        let began = Instant::now();
        let at_queue = began >= self.queue_at;
        let sql = if at_queue { POLL_WITH_QUEUE } else { POLL };
        let poll = async { self.connection.query(sql).await.map_err(|error| store_error(&error)) };
        let counters: Vec<(String, i64)> = in_time(poll).await?;
        if at_queue {
            self.queue_at = Instant::now() + began.elapsed() * QUEUE_POLL_REST;
        }
        for (name, sent) in counters {
            if name == QUEUED {
                // One that stays there is no sign of others.
                if self.newest.replace(sent) != Some(sent) {
                    self.heard_at = Instant::now();
                    self.appended_at = Some(self.heard_at);
                }
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
            let appended = self.appended_at.map(|at| at.elapsed());
            tokio::time::sleep(pause_after(self.heard_at.elapsed(), appended)).await;
            self.poll().await?;
        }
    }
}

/// How long to wait before the next poll, given how long ago the last signal was, and the last new event in the queue.
fn pause_after(quiet: Duration, appended: Option<Duration>) -> Duration {
    match appended {
        Some(ago) if ago <= APPENDED => POLL_EVERY_WHILE_APPENDED,
        _ if quiet > QUIET => POLL_EVERY_WHEN_QUIET,
        _ => POLL_EVERY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_arrive_within_a_tenth_of_a_second_and_quiet_costs_few_statements() {
        assert!(pause_after(Duration::ZERO, None) < Duration::from_millis(100));
        assert!(pause_after(QUIET, Some(QUIET)) < Duration::from_millis(100));
        // Together with the slow polls of the components it stays below ten statements a second.
        assert!(pause_after(QUIET * 2, None) >= Duration::from_millis(200));
        assert!(pause_after(QUIET * 2, Some(QUIET * 2)) >= Duration::from_millis(200));
    }

    #[test]
    fn while_events_are_appended_the_next_one_is_found_soon() {
        for quiet in [Duration::ZERO, QUIET * 2] {
            assert!(pause_after(quiet, Some(APPENDED)) <= Duration::from_millis(20), "{quiet:?}");
        }
    }
}
