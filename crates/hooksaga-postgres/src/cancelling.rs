//! Ends queries whose callers have gone.
//!
//! Dropping a future leaves its query running on the server. If its connection returned to the pool in that state, the next
//! user would wait for a query whose result nobody reads. So the connection is kept for a moment: if the query ends, the
//! connection returns to the pool. Otherwise the query is cancelled and the connection is closed, because the request to
//! cancel may arrive late, and would then end somebody else's query.

use deadpool_postgres::Client;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres_rustls::MakeRustlsConnect;

/// A query that ends within this time needs no help.
const ENDS_ITSELF: Duration = Duration::from_millis(50);

/// How long a request to cancel may take.
const CANCEL: Duration = Duration::from_secs(2);

/// A query that has not ended by then, cancelled or by its session's limit, has lost its connection.
const END: Duration = Duration::from_secs(10);

/// A query that runs; cancelled when this is dropped before it has ended.
pub(crate) struct Running(Option<RunningQuery>);

struct RunningQuery {
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
        Self(Some(RunningQuery { client: Arc::clone(client), _turn: Arc::clone(turn), tls: tls.clone() }))
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

impl RunningQuery {
    /// Keeps connection and turn until the query has ended; it asks the server to cancel it.
    async fn cancel(self) {
        let begun = Instant::now();
        let mut ended = Box::pin(is_idle(Arc::clone(&self.client)));
        if tokio::time::timeout(ENDS_ITSELF, ended.as_mut()).await.is_ok() {
            return;
        }
        let cancelling = self.client.cancel_token();
        let cancelled = tokio::time::timeout(CANCEL, cancelling.cancel_query(self.tls.clone())).await;
        // Where it cannot be cancelled it ends by its session's time limit.
        let cancelled = matches!(cancelled, Ok(Ok(())));
        let ended = tokio::time::timeout(END, ended).await.is_ok();
        tracing::debug!(cancelled, ended, after = ?begun.elapsed(), "ended a query whose caller is gone");
        self.close();
    }

    /// Closes the connection instead of giving it back.
    fn close(self) {
        if let Some(client) = Arc::into_inner(self.client) {
            drop(Client::take(client));
        }
    }
}

/// Waits until a connection has nothing left to do, or is closed.
async fn is_idle(client: Arc<Client>) {
    // Either response, and the end of the connection, come after the query's.
    let _ = client.simple_query("").await;
}
