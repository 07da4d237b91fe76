//! Signals between processes: LISTEN and NOTIFY on one channel. A hint, never needed for correctness, and never
//! sent inside a transaction that does work: a committing NOTIFY takes a lock that all of them share.
//!
//! Only `hooksaga_append` (outbox.sql) cannot wait for its commit: it runs in an application's transaction. That may have taken its
//! event's id long ago, so the signal also says where in the queue the event stands.

use crate::{
    connect::{HostByHost, SessionStream},
    error::{checked, from_connecting, store_error},
    options::SessionOptions,
    pool::RolePool,
    roles::scan_position::Frontier,
};
use async_trait::async_trait;
use hooksaga_store::{Stage, StoreError, StoreResult, WakeListener, Wakeups};
use std::{
    collections::VecDeque,
    future::{Future as _, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};

const CHANNEL: &str = "hooksaga_wake";
/// After so long without a signal the listener asks whether the server is there: a server that is frozen and a connection that
/// is dead are as silent as one that has nothing to say.
const QUIET: Duration = Duration::from_secs(10);
/// How long the server may take to respond to the listener.
const ANSWER: Duration = Duration::from_secs(5);
/// Before the place of an event in the queue.
const PLACE: &str = "from:";
const PROBE: &str = "/* wake.probe */ SELECT 1";
const NOTIFY: &str = "/* wake.notify */ SELECT pg_notify($1, $2)";

pub(crate) struct Notifications {
    pool: RolePool,
    listener: SessionOptions,
    queue: Arc<Frontier>,
}

impl Notifications {
    /// `listener`: a listener has a connection of its own, outside the pool. `queue` is that of the router.
    pub(crate) fn new(pool: RolePool, listener: SessionOptions, queue: Arc<Frontier>) -> Self {
        Self { pool, listener, queue }
    }
}

#[async_trait]
impl Wakeups for Notifications {
    async fn notify(&self, stages: &[Stage]) -> StoreResult<()> {
        if stages.is_empty() {
            return Ok(());
        }
        let payload = &stages.iter().map(|stage| stage.as_str()).collect::<Vec<_>>().join(",");
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(NOTIFY).await?;
                client.execute(&statement, &[&CHANNEL, payload]).await?;
                Ok(())
            })
            .await
    }

    async fn listen(&self) -> StoreResult<Option<Box<dyn WakeListener>>> {
        let SessionOptions { config, tls } = &self.listener;
        let opening = HostByHost::new(tls.clone());
        let (client, connection) = opening.open(config).await.map_err(|error| from_connecting(&error))?;
        let mut listener = Listener {
            client,
            connection,
            heard: Heard { stages: VecDeque::new(), queue: self.queue.clone() },
        };
        listener.execute(&format!("LISTEN {CHANNEL}")).await?;
        Ok(Some(Box::new(listener)))
    }
}

/// Drives its connection itself, so what nobody asks for waits at the server and not in this process's memory.
struct Listener {
    client: Client,
    connection: Connection<Socket, SessionStream>,
    heard: Heard,
}

struct Heard {
    /// Stages that were heard and not handed out yet, each once.
    stages: VecDeque<Stage>,
    queue: Arc<Frontier>,
}

impl Heard {
    /// Takes in a payload: stages, and where in the queue something new stands. What a newer version calls otherwise is left out.
    fn take_in(&mut self, payload: &str) {
        for part in payload.split(',') {
            if let Some(place) = part.strip_prefix(PLACE).and_then(|place| place.parse().ok()) {
                self.queue.turn_back(place);
            } else if let Some(stage) = Stage::ALL.iter().copied().find(|stage| stage.as_str() == part)
                && !self.stages.contains(&stage)
            {
                self.stages.push_back(stage);
            }
        }
    }
}

impl Listener {
    /// Runs a statement, and takes in what arrives meanwhile.
    async fn execute(&mut self, sql: &str) -> StoreResult<()> {
        let Self { client, connection, heard } = self;
        let mut executing = pin!(client.batch_execute(sql));
        let executed = poll_fn(|cx| {
            if let Poll::Ready(result) = executing.as_mut().poll(cx) {
                return Poll::Ready(checked(result));
            }
            match hear(connection, heard, cx) {
                // Driving the connection may have brought the answer.
                Poll::Pending => executing.as_mut().poll(cx).map(checked),
                Poll::Ready(error) => Poll::Ready(Err(error)),
            }
        });
        timeout(ANSWER, executed).await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable(format!("no response to the listener within {} s", ANSWER.as_secs())))
        })
    }

    async fn hear_one(&mut self) -> StoreResult<Stage> {
        let Self { connection, heard, .. } = self;
        poll_fn(|cx| {
            if let Some(stage) = heard.stages.pop_front() {
                return Poll::Ready(Ok(stage));
            }
            match hear(connection, heard, cx) {
                Poll::Ready(error) => Poll::Ready(Err(error)),
                Poll::Pending => {
                    heard.stages.pop_front().map_or(Poll::Pending, |stage| Poll::Ready(Ok(stage)))
                }
            }
        })
        .await
    }
}

#[async_trait]
impl WakeListener for Listener {
    async fn next(&mut self) -> StoreResult<Stage> {
        loop {
            match timeout(QUIET, self.hear_one()).await {
                Ok(heard) => return heard,
                Err(_) => self.execute(PROBE).await?,
            }
        }
    }
}

/// Takes in all that has arrived; ready only with the reason why nothing more will.
fn hear(
    connection: &mut Connection<Socket, SessionStream>,
    heard: &mut Heard,
    cx: &mut Context<'_>,
) -> Poll<StoreError> {
    loop {
        match connection.poll_message(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => {
                return Poll::Ready(StoreError::Unavailable("the listening connection ended".to_owned()));
            }
            Poll::Ready(Some(Err(error))) => return Poll::Ready(store_error(&error)),
            Poll::Ready(Some(Ok(AsyncMessage::Notification(notification)))) => {
                heard.take_in(notification.payload());
            }
            Poll::Ready(Some(Ok(_))) => {}
        }
    }
}
