//! One connection pool per role.

use crate::error::{Again, DbResult, from_connecting};
use hooksaga_store::{StoreError, StoreResult};
use mysql_async::{Conn, Error, Opts, Pool};
use std::{future::Future, time::Duration};

/// How long a call waits for a connection, new or free.
const WAIT: Duration = Duration::from_secs(10);
/// How often a call that lost against others is tried in all.
const TRIES: u32 = 20;

/// Connections that run as one role.
#[derive(Clone)]
pub(crate) struct RolePool {
    pool: Pool,
    address: String,
}

impl RolePool {
    /// Connects to nothing yet.
    pub(crate) fn new(opts: Opts) -> Self {
        Self { address: address(&opts), pool: Pool::new(opts) }
    }

    /// Runs `work` on a connection; again, a little later each time, if the database gave up on it in favour of
    /// others. `work` is one transaction: what failed left nothing.
    pub(crate) async fn run<T, W, F>(&self, work: W) -> StoreResult<T>
    where
        W: Fn(Conn) -> F,
        F: Future<Output = DbResult<T>>,
    {
        self.attempt(false, work).await
    }

    /// The same for work that looks up what exists before it inserts the rest: a key that somebody else has taken in
    /// between is a reason to look again.
    pub(crate) async fn run_inserting<T, W, F>(&self, work: W) -> StoreResult<T>
    where
        W: Fn(Conn) -> F,
        F: Future<Output = DbResult<T>>,
    {
        self.attempt(true, work).await
    }

    async fn attempt<T, W, F>(&self, inserting: bool, work: W) -> StoreResult<T>
    where
        W: Fn(Conn) -> F,
        F: Future<Output = DbResult<T>>,
    {
        let mut tried = 1;
        loop {
            let failure = match work(self.connection().await?).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            let again = match failure.again() {
                Again::AtOnce => true,
                Again::Once => tried == 1,
                Again::No => inserting && failure.is_duplicate(),
            };
            if !again || tried == TRIES {
                return Err(failure.into());
            }
            tokio::time::sleep(Duration::from_millis(1 << tried.min(6))).await;
            tried += 1;
        }
    }

    async fn connection(&self) -> StoreResult<Conn> {
        match tokio::time::timeout(WAIT, self.pool.get_conn()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(not_connected(&self.address, &error)),
            Err(_) => Err(StoreError::Unavailable(format!(
                "no connection to {} within {} s: all are busy, or the server does not answer",
                self.address,
                WAIT.as_secs()
            ))),
        }
    }
}

/// A connection outside the pools.
pub(crate) async fn connect_once(opts: Opts) -> StoreResult<Conn> {
    let address = address(&opts);
    match tokio::time::timeout(WAIT, Conn::new(opts)).await {
        Ok(result) => result.map_err(|error| not_connected(&address, &error)),
        Err(_) => {
            Err(StoreError::Unavailable(format!("no connection to {address} within {} s", WAIT.as_secs())))
        }
    }
}

fn not_connected(address: &str, error: &Error) -> StoreError {
    match from_connecting(error) {
        StoreError::Unavailable(text) => StoreError::Unavailable(format!("{address}: {text}")),
        other => other,
    }
}

/// The server that a configuration names, for people.
fn address(opts: &Opts) -> String {
    match opts.socket() {
        Some(path) => path.to_owned(),
        None => format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port()),
    }
}
