//! One connection pool per role.

use crate::{
    cancelling::Running,
    connect::{HOST_TIMEOUT, HostByHost, set_up},
    error::{DbError, DbResult, checked, from_connecting, from_pool},
    options::SessionOptions,
};
use deadpool_postgres::{
    Client, Hook, HookError, Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod, Runtime,
};
use hooksaga_store::{CallGuard, StoreError, StoreResult};
use std::{future::Future, sync::Arc, time::Duration};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::{Config, config::Host};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long a call waits for a free connection, and a new one for its set-up.
const WAIT: Duration = Duration::from_secs(10);
/// How long a call waits for the server's answers in all. The server ends a statement by itself after less
/// (`statement_timeout`), so only one that is frozen or cut off takes longer.
const ANSWER: Duration = Duration::from_secs(35);
/// How often a call that lost against others is tried in all.
const TRIES: u32 = 10;
/// How many statements a session may have prepared when a call gets it: it keeps the text and the plan of each, 100 KB for
/// a list. More than a role has, but lists have a text for each combination of filters.
const MOST_PREPARED: usize = 128;

/// Whether a commit waits until it is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commits {
    /// It does. What somebody outside has been told of must be: an event that was accepted, a request that goes out,
    /// its result.
    Durable,
    /// It does not, for work that is derived from durable rows and done again if a crash of the database loses it.
    /// No receiver hears of it before a later, durable commit, which takes everything before it to the disk. (The log and
    /// the API do; ids that they showed right before a crash may name something else after it.)
    Deferred,
}

impl Commits {
    /// A durable session inherits neither `off` nor `local`, which does not wait for a synchronous standby: a failover would
    /// lose what was accepted. Without a standby `on` is no more than `local`. Any other level of the server stays.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Self::Durable => {
                "SELECT set_config('synchronous_commit', 'on', false) \
                 WHERE current_setting('synchronous_commit') IN ('off', 'local')"
            }
            Self::Deferred => "SET synchronous_commit = off",
        }
    }
}

/// Connections that run as one role.
#[derive(Clone)]
pub(crate) struct RolePool {
    pool: Pool,
    /// For connections that ask the server to cancel a query.
    tls: MakeRustlsConnect,
}

impl RolePool {
    /// Connects to nothing yet.
    pub(crate) fn new(session: SessionOptions, max_size: usize, commits: Commits) -> StoreResult<Self> {
        let SessionOptions { config, tls } = session;
        let options: Arc<str> = config.get_options().unwrap_or_default().into();
        let create_timeout = connecting_limit(&config);
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(config, HostByHost::new(tls.clone()), recycling);
        let set_up = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
            let options = Arc::clone(&options);
            Box::pin(async move { set_up(client, &options, commits).await.map_err(HookError::Backend) })
        });
        let pool = Pool::builder(manager)
            .max_size(max_size.max(1))
            // The session that has just worked has its plans and the tables' descriptions in the processor's cache. In
            // turn, each would find them gone.
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(create_timeout))
            .post_create(set_up)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| {
                StoreError::Setup(format!("cannot make a connection pool ({error}): check database.url"))
            })?;
        Ok(Self { pool, tls })
    }

    /// How many connections are in use by calls, and how many may be.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size.saturating_sub(status.available), status.max_size)
    }

    async fn client(&self) -> StoreResult<Client> {
        let client = self.pool.get().await.map_err(|error| from_pool(&error))?;
        if client.statement_cache.size() > MOST_PREPARED {
            // Those that are in demand are prepared again; an order of use is not known.
            client.statement_cache.clear();
        }
        Ok(client)
    }

    /// Runs `work` on a connection; again, a little later each time, if the database gave up on it in favour
    /// of others (deadlock, serialization failure). `work` is one transaction: what failed left nothing.
    pub(crate) async fn run<T, W, F>(&self, work: W) -> StoreResult<T>
    where
        W: Fn(Client) -> F,
        F: Future<Output = DbResult<T>>,
    {
        let mut tried = 1;
        loop {
            let client = self.client().await?;
            let failure = match self.attempt(client, &work).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            if !failure.is_retryable() || tried == TRIES {
                return Err(failure.into());
            }
            tokio::time::sleep(Duration::from_millis(1 << tried.min(6))).await;
            tried += 1;
        }
    }

    /// The same for a query whose caller may go away: then it is cancelled, and neither its turn nor its connection is given
    /// to anybody else before it has ended.
    pub(crate) async fn run_in_turn<T, W, F>(&self, turn: OwnedSemaphorePermit, work: W) -> StoreResult<T>
    where
        W: Fn(Arc<Client>) -> F,
        F: Future<Output = DbResult<T>>,
    {
        let turn = Arc::new(turn);
        let mut tried = 1;
        loop {
            let client = Arc::new(self.client().await?);
            let running = Running::new(&client, &turn, &self.tls);
            let done = tokio::time::timeout(ANSWER, work(client)).await;
            let Ok(done) = done else {
                self.pool.retain(|_, _| false);
                return Err(no_answer());
            };
            running.ended();
            let failure = match done {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            if failure.spoils_connections() {
                self.pool.retain(|_, _| false);
            }
            if !failure.is_retryable() || tried == TRIES {
                return Err(failure.into());
            }
            tokio::time::sleep(Duration::from_millis(1 << tried.min(6))).await;
            tried += 1;
        }
    }

    /// Runs `work` once, on a connection of this pool that an earlier call has kept.
    pub(crate) async fn run_on<T, W, F>(&self, client: Client, work: W) -> StoreResult<T>
    where
        W: Fn(Client) -> F,
        F: Future<Output = DbResult<T>>,
    {
        Ok(self.attempt(client, &work).await?)
    }

    async fn attempt<T, W, F>(&self, client: Client, work: &W) -> DbResult<T>
    where
        W: Fn(Client) -> F,
        F: Future<Output = DbResult<T>>,
    {
        let call = CallGuard::begin(|| drop(self.pool.retain(|_, _| false)));
        let done = tokio::time::timeout(ANSWER, work(client)).await;
        let Ok(done) = call.end(done) else {
            // Its connection went back to the pool with the question still open, and the others are to
            // the same server: none of them is worth another try.
            self.pool.retain(|_, _| false);
            return Err(no_answer().into());
        };
        if done.as_ref().is_err_and(DbError::spoils_connections) {
            self.pool.retain(|_, _| false);
        }
        done
    }
}

fn no_answer() -> StoreError {
    StoreError::Unavailable(format!("no response within {} s", ANSWER.as_secs()))
}

/// A connection outside the pools, driven by a task of its own until it is dropped.
pub(crate) async fn connect_once(session: &SessionOptions) -> StoreResult<tokio_postgres::Client> {
    let SessionOptions { config, tls } = session;
    let (client, connection) =
        HostByHost::new(tls.clone()).open(config).await.map_err(|error| match from_connecting(&error) {
            StoreError::Unavailable(text) => StoreError::Unavailable(format!("{}: {text}", hosts(config))),
            other => other,
        })?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a database connection ended");
        }
    });
    checked(set_up(&client, config.get_options().unwrap_or_default(), Commits::Durable).await)?;
    Ok(client)
}

/// How long a new connection may take: every host one after the other, and its set-up.
fn connecting_limit(config: &Config) -> Duration {
    let each = config.get_connect_timeout().copied().unwrap_or(HOST_TIMEOUT);
    let hosts = config.get_hosts().len().max(1);
    each.saturating_mul(u32::try_from(hosts).unwrap_or(u32::MAX)).saturating_add(WAIT)
}

/// The servers that a configuration names, for people.
fn hosts(config: &Config) -> String {
    let hosts = config.get_hosts().iter().enumerate().map(|(i, host)| {
        let port = config.get_ports().get(i).or_else(|| config.get_ports().first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(folder) => format!("{}/.s.PGSQL.{port}", folder.display()),
        }
    });
    hosts.collect::<Vec<_>>().join(", ")
}
