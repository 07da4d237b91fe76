//! Ends queries whose callers have gone.
//!
//! A future that is dropped leaves its query running: a connection that went back to the pool like that would make
//! whoever gets it next wait for a query that nobody wants.

use deadpool_postgres::Client;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long a request to cancel may take.
const CANCEL: Duration = Duration::from_secs(2);

/// A query that has not ended by then, cancelled or by its session's limit, has lost its connection.
const END: Duration = Duration::from_secs(10);

/// A query that runs; cancelled when this is dropped before it has ended.
pub(crate) struct Running(Option<Query>);

struct Query {
    client: Arc<Client>,
    _turn: Arc<OwnedSemaphorePermit>,
    tls: MakeRustlsConnect,
}

impl Running {
    pub(crate) fn new(
        client: &Arc<Client>,
        turn: &Arc<OwnedSemaphorePermit>,
        tls: &MakeRustlsConnect,
    ) -> Self {
        Self(Some(Query { client: Arc::clone(client), _turn: Arc::clone(turn), tls: tls.clone() }))
    }

    /// The query has ended.
    pub(crate) fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(query) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(query.cancel());
        }
    }
}

impl Query {
    /// Asks the server to cancel it, and keeps connection and turn until it has ended.
    async fn cancel(self) {
        let asked = Instant::now();
        let cancelling = self.client.cancel_token();
        let cancelled = tokio::time::timeout(CANCEL, cancelling.cancel_query(self.tls.clone())).await;
        // Where it cannot be cancelled it ends by its session's time limit.
        let cancelled = matches!(cancelled, Ok(Ok(())));
        let ended = tokio::time::timeout(END, is_idle(&self.client)).await.unwrap_or(false);
        tracing::debug!(cancelled, ended, after = ?asked.elapsed(), "a query whose caller has gone");
        if !ended && let Some(client) = Arc::into_inner(self.client) {
            drop(Client::take(client));
        }
    }
}

/// Waits until a connection has nothing left to do. A request to cancel that comes late ends the statement that asks.
async fn is_idle(client: &Client) -> bool {
    for _ in 0..3 {
        if client.simple_query("SELECT 1").await.is_ok() {
            return true;
        }
        if client.is_closed() {
            return false;
        }
    }
    false
}
