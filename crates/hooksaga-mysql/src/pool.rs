//! One connection pool per role, and the time limits of every call.
//!
//! A server may stop responding: it is frozen, or the connection is open at this end only. So every call has a limit of its
//! own, independent of the server's. A connection on which no response arrived in time is closed, and the whole pool
//! is replaced: its idle connections lead to the same server, and each would cost its caller the same wait. If the URL names
//! several servers, the new pool connects to the next one.

use crate::{
    cluster,
    error::{DbError, DbResult, RetryAdvice, from_connecting},
    hosts::Hosts,
};
use hooksaga_store::{CallGuard, QUERY_LIMIT, StoreError, StoreResult};
use mysql_async::{Conn, Error, Opts, Pool, prelude::Queryable as _};
use std::{
    collections::HashSet,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a call waits for a free connection. [`Hosts::limit`] says how long it waits for a new one.
const WAIT: Duration = Duration::from_secs(10);
/// How long a call may take on its connection: longer than the server's limit for a statement.
pub(crate) const ANSWER: Duration = Duration::from_secs(15);
/// How often a call that waits for another transaction is tried in all: for about a second.
const TRIES: u32 = 20;
/// For how long a call that fails because of a conflict is tried again: less than a client waits for its response. In a
/// Galera Cluster it may fail often, since processes on other nodes commit the same rows without waiting for it.
const CONFLICTS: Duration = Duration::from_secs(5);

/// How long it may take to kill a query.
const KILL: Duration = Duration::from_secs(2);
/// The connection to be killed has ended already.
const UNKNOWN_CONNECTION: u16 = 1094;

/// Connections that run as one role. Clones share them.
#[derive(Clone)]
pub(crate) struct RolePool(Arc<Shared>);

struct Shared {
    /// For servers that may be nodes of a cluster.
    hosts: Hosts,
    /// As many permits as there may be connections.
    free: Semaphore,
    current: Mutex<Current>,
    /// Connections that are about to be killed: they are not used, even if they are in the pool again.
    condemned: Mutex<HashSet<u32>>,
}

/// The pool in use, and the number of pools before it.
struct Current {
    pool: Pool,
    number: u64,
    /// The number of its host.
    host: usize,
    /// A session was refused because its server is a node: the sessions of all later pools may be on nodes.
    clustered: bool,
}

impl RolePool {
    /// Connects to nothing yet.
    pub(crate) fn new(hosts: Hosts) -> Self {
        Self(Arc::new(Shared {
            free: Semaphore::new(hosts.first().pool_opts().constraints().max()),
            current: Mutex::new(Current::open(&hosts, 0, 0, false)),
            condemned: Mutex::default(),
            hosts,
        }))
    }

    /// How many connections are in use by calls, and how many may be.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        let most = self.0.hosts.first().pool_opts().constraints().max();
        (most.saturating_sub(self.0.free.available_permits()), most)
    }

    /// Runs `work` on a connection, and again, a little later each time, if the database ended it because of a conflict.
    /// `work` is one transaction: a failed try has changed nothing.
    pub(crate) async fn run<T, W, F>(&self, work: W) -> StoreResult<T>
    where
        W: Fn(Conn) -> F,
        F: Future<Output = DbResult<T>>,
    {
        self.attempt(false, None, work).await
    }

    /// The same for work that looks up existing rows before it inserts the others: if another transaction takes a key in
    /// between, the work is tried again.
    pub(crate) async fn run_inserting<T, W, F>(&self, work: W) -> StoreResult<T>
    where
        W: Fn(Conn) -> F,
        F: Future<Output = DbResult<T>>,
    {
        self.attempt(true, None, work).await
    }

    /// The same for a query whose caller may disconnect. Then the query is killed, over a connection of the other pool, and
    /// nobody else gets its turn before that.
    pub(crate) async fn run_in_turn<T, W, F>(
        &self,
        turn: OwnedSemaphorePermit,
        killers: &Self,
        work: W,
    ) -> StoreResult<T>
    where
        W: Fn(Conn) -> F,
        F: Future<Output = DbResult<T>>,
    {
        let turn = Turn { _turn: Arc::new(turn), killers: killers.clone() };
        self.attempt(false, Some(&turn), work).await
    }

    async fn attempt<T, W, F>(&self, inserting: bool, turn: Option<&Turn>, work: W) -> StoreResult<T>
    where
        W: Fn(Conn) -> F,
        F: Future<Output = DbResult<T>>,
    {
        let (mut tried, began) = (1, Instant::now());
        loop {
            let failure = match self.once(turn, &work).await? {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            let again = match failure.again() {
                RetryAdvice::AtOnce => began.elapsed() < CONFLICTS,
                RetryAdvice::WhileHeld => tried < TRIES,
                RetryAdvice::Once => tried == 1,
                RetryAdvice::No => inserting && failure.is_duplicate() && tried < TRIES,
            };
            if !again {
                return Err(failure.into());
            }
            tokio::time::sleep(Duration::from_millis(1 << tried.min(6))).await;
            tried += 1;
        }
    }

    /// One try. The outer error means that the call did not end in time.
    async fn once<T, W, F>(&self, turn: Option<&Turn>, work: &W) -> StoreResult<DbResult<T>>
    where
        W: Fn(Conn) -> F,
        F: Future<Output = DbResult<T>>,
    {
        let shared = &self.0;
        let free = tokio::time::timeout(WAIT, shared.free.acquire()).await.map_err(|_| {
            StoreError::Unavailable(format!(
                "all connections to {} have been busy for {} s",
                shared.address(),
                WAIT.as_secs()
            ))
        })?;
        let _free = free.map_err(|_| StoreError::Unavailable("the connection pool is closed".to_owned()))?;
        let (connection, number) = shared.connect().await?;
        let address = address(connection.opts());
        let call = CallGuard::begin(move || shared.replace(number));
        let id = connection.id();
        let mut working = pin!(work(connection));
        // Dropped before the work is, which gives the connection back.
        let running = turn.map(|turn| Running::new(self, number, id, address.clone(), turn));
        let call = if running.is_some() { call.end(None) } else { Some(call) };
        let done = tokio::time::timeout(ANSWER, working.as_mut()).await;
        if let Some(call) = call {
            call.end(());
        }
        match done {
            Ok(result) => {
                if let Some(running) = running {
                    running.ended();
                }
                if shared.hosts.are_several() && result.as_ref().is_err_and(DbError::is_outside_group) {
                    shared.leave(number);
                }
                Ok(result)
            }
            Err(_) => {
                shared.leave(number);
                Err(silent(&address, ANSWER))
            }
        }
    }
}

impl Shared {
    fn current(&self) -> MutexGuard<'_, Current> {
        // Nothing panics while it is held.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool in use, its number, and the name of its server for messages.
    fn serving(&self) -> (Pool, u64, String) {
        let current = self.current();
        (current.pool.clone(), current.number, address(self.hosts.at(current.host)))
    }

    fn address(&self) -> String {
        self.serving().2
    }

    /// A connection, and the number of its pool. Each host is tried once, beginning with the one in use.
    async fn connect(&self) -> StoreResult<(Conn, u64)> {
        let (mut tried, limit) = (0, self.hosts.limit());
        loop {
            let (pool, number, address) = self.serving();
            let call = CallGuard::begin(move || self.leave(number));
            let connected = tokio::time::timeout(limit, self.connection(&pool)).await;
            let failure = match call.end(connected) {
                Ok(Ok(connection)) => return Ok((connection, number)),
                Ok(Err(error)) if cluster::is_refusal(&error) => {
                    self.enter_cluster(number);
                    continue;
                }
                Ok(Err(error)) => {
                    // The only server there is may have refused just this one connection.
                    if self.hosts.are_several() {
                        self.leave(number);
                    }
                    not_connected(&address, &error)
                }
                Err(_) => {
                    self.leave(number);
                    silent(&address, limit)
                }
            };
            tried += 1;
            if tried == self.hosts.count() {
                return Err(failure);
            }
        }
    }

    fn condemned(&self) -> MutexGuard<'_, HashSet<u32>> {
        self.condemned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of this pool that is not about to be killed.
    async fn connection(&self, pool: &Pool) -> Result<Conn, Error> {
        loop {
            let connection = pool.get_conn().await?;
            if !self.condemned().contains(&connection.id()) {
                return Ok(connection);
            }
            connection.disconnect().await?;
        }
    }

    /// Replaces this pool by a new one, unless another call has done so. The old one closes its idle connections now, and the
    /// others when their calls end.
    fn replace(&self, number: u64) {
        self.go_on(number, 0, false);
    }

    /// The same, with a pool of the next host.
    fn leave(&self, number: u64) {
        self.go_on(number, 1, false);
    }

    /// Replaces the pool as `replace` does, by one whose sessions may be on a node of a cluster.
    fn enter_cluster(&self, number: u64) {
        self.go_on(number, 0, true);
    }

    fn go_on(&self, number: u64, hosts: usize, to_cluster: bool) {
        let mut current = self.current();
        if current.number == number {
            let (host, clustered) = (current.host + hosts, current.clustered || to_cluster);
            *current = Current::open(&self.hosts, number + 1, host, clustered);
        }
    }
}

impl Current {
    fn open(hosts: &Hosts, number: u64, host: usize, clustered: bool) -> Self {
        let (host, opts) = (host % hosts.count(), hosts.at(host));
        let pool = Pool::new(if clustered { opts.clone() } else { cluster::outside(opts) });
        Self { pool, number, host, clustered }
    }
}

/// A turn at the readers' connections, and how to end a query that has one.
struct Turn {
    _turn: Arc<OwnedSemaphorePermit>,
    killers: RolePool,
}

/// A running query. If this is dropped before the query has ended, the query is killed: the driver then closes its connection,
/// but the server does not notice that before it has something to send.
struct Running(Option<RunningQuery>);

struct RunningQuery {
    pool: RolePool,
    /// The number of the pool that its connection is from.
    number: u64,
    id: u32,
    /// Its server: the id is valid on this server only.
    address: String,
    turn: Turn,
}

impl Running {
    fn new(pool: &RolePool, number: u64, id: u32, address: String, turn: &Turn) -> Self {
        let turn = Turn { _turn: Arc::clone(&turn._turn), killers: turn.killers.clone() };
        Self(Some(RunningQuery { pool: pool.clone(), number, id, address, turn }))
    }

    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(query) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // Between two statements its connection goes back to the pool, from where nobody is to take it meanwhile.
            query.pool.0.condemned().insert(query.id);
            runtime.spawn(query.kill());
        }
    }
}

impl RunningQuery {
    async fn kill(self) {
        let shared = &self.pool.0;
        let killed = tokio::time::timeout(KILL, kill(&self.turn.killers, &self.address, self.id)).await;
        if !matches!(killed, Ok(Ok(_))) {
            // The server may be frozen, or cut off.
            shared.replace(self.number);
        }
        let killed = matches!(killed, Ok(Ok(true)));
        tracing::debug!(killed, "ended a query whose caller is gone");
        if !killed {
            // Its session's limit ends it.
            tokio::time::sleep(QUERY_LIMIT).await;
        }
        shared.condemned().remove(&self.id);
    }
}

/// Ends a connection of the same login. Returns false if that cannot be done: in a Galera Cluster the id may be that of a
/// connection on another node. If only another host can be reached, `server` is down.
async fn kill(killers: &RolePool, server: &str, id: u32) -> StoreResult<bool> {
    killers
        .run(|mut connection| async move {
            if address(connection.opts()) != server {
                return Err(StoreError::Unavailable("connected to another host".to_owned()).into());
            }
            if cluster::may_be_node(&connection) {
                return Ok(false);
            }
            match connection.query_drop(format!("KILL {id}")).await {
                Err(Error::Server(error)) if error.code == UNKNOWN_CONNECTION => Ok(true),
                done => Ok(done.map(|()| true)?),
            }
        })
        .await
}

/// A connection outside the pools.
pub(crate) async fn connect_once(hosts: Hosts) -> StoreResult<Conn> {
    let mut refused = None;
    let mut tried = 0;
    loop {
        let error = match connect_to(hosts.at(tried), hosts.limit()).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        tried += 1;
        if refused.is_none() && matches!(error, StoreError::Setup(_)) {
            refused = Some(error.clone());
        }
        if tried == hosts.count() {
            // A host that refuses says more than one that is away.
            return Err(refused.unwrap_or(error));
        }
    }
}

async fn connect_to(opts: &Opts, limit: Duration) -> StoreResult<Conn> {
    let address = address(opts);
    match tokio::time::timeout(limit, Conn::new(opts.clone())).await {
        Ok(result) => result.map_err(|error| not_connected(&address, &error)),
        Err(_) => Err(silent(&address, limit)),
    }
}

/// The result of work on such a connection, if it comes in time.
pub(crate) async fn in_time<T>(work: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
    tokio::time::timeout(ANSWER, work).await.unwrap_or_else(|_| {
        Err(StoreError::Unavailable(format!("the server did not respond within {} s", ANSWER.as_secs())))
    })
}

fn silent(address: &str, limit: Duration) -> StoreError {
    StoreError::Unavailable(format!("{address} did not respond within {} s", limit.as_secs()))
}

fn not_connected(address: &str, error: &Error) -> StoreError {
    match from_connecting(error) {
        StoreError::Unavailable(text) => StoreError::Unavailable(format!("{address}: {text}")),
        other => other,
    }
}

/// The server that a configuration names, for messages.
fn address(opts: &Opts) -> String {
    match opts.socket() {
        Some(path) => path.to_owned(),
        None => format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port()),
    }
}
