//! The MySQL and MariaDB back end (InnoDB): it contains the SQL and no decisions. Needs MySQL 8.0.22 or MariaDB 10.6, or
//! newer.
//!
//! One handle per role, each with a pool of its own whose sessions run as that role: they switch to it at their start, or log
//! in as it (`role_urls`). A switch adds rights and removes none. So it protects only if the login has no rights of its own
//! ([`Fence`]).
//!
//! | file | what it does |
//! |---|---|
//! | `options`, `pool`, `tls` | how to reach the server, a session's settings, a pool per role |
//! | `hosts` | the servers, if the URL names several |
//! | `transaction` | transactions with few round trips |
//! | `cluster` | whether a server may be a node of a Galera Cluster, where transactions need more round trips |
//! | `schema`, `restore` | migrations; ids after a restore |
//! | `examine` | the queries of `hooksaga doctor` |
//! | `rewrap` | seals secrets with another key |
//! | `rights` | the roles, what each may do, and what that protects against |
//! | `outbox` | the procedure that applications call |
//! | `roles` | the store traits, a file per role; the files with other names are shared by them |
//! | `wake` | signals between processes |
//! | `error`, `time` | from the driver's errors and times to the store's |
//!
//! Every statement begins with its name in a comment; the Rust comment above it says why it has its shape.
//! Batches are passed as JSON (`batch`), or as numbers in the text.
//!
//! All statements run in READ COMMITTED, and every batch is written in the order of its key, so that two of the same kind
//! wait for each other instead of deadlocking. Deadlocks that still happen are retried. A write finds its rows by a join from
//! the given ids with the index forced: a plan that reads more rows would wait for the locks of others, and one frozen
//! process would stop them all. There is no RETURNING: rows that a write changes are read under lock before it, or by their
//! key after it.

mod cluster;
mod error;
mod examine;
mod hosts;
mod options;
mod outbox;
mod pool;
mod restore;
mod rewrap;
mod rights;
mod roles;
mod schema;
#[cfg(feature = "test-support")]
pub mod test_support;
mod time;
mod tls;
mod transaction;
mod wake;

pub use error::store_error;
pub use examine::examine;
pub use options::identifier;
pub use restore::{move_ids_forward, repair_lists};
pub use rewrap::rewrap;
pub use rights::{Fence, role_name, role_sql};
pub use schema::{migrate, migrate_telling};

use error::checked;
use hooksaga_store::{
    KeyStore, PoolUse, ReaderStore, Role, ServerOptions, StoreError, StoreResult, Stores,
    migration::check_usable,
};
use mysql_async::prelude::Queryable as _;
use options::{SessionKind, database_of};
use pool::{RolePool, connect_once, in_time};
use schema::{HAS_TABLE, MIGRATIONS};
use std::sync::{Arc, Mutex, PoisonError};

/// The smallest `max_allowed_packet` that the batches fit into.
const SMALLEST_PACKET: u64 = 4 << 20;

/// Every pool of a process, with its role.
type Pools = Vec<(Role, RolePool)>;

/// An open database.
pub struct MySqlDatabase {
    stores: Stores,
    pools: Arc<Pools>,
    fence: Fence,
}

impl MySqlDatabase {
    /// Every role's handle.
    pub fn stores(&self) -> Stores {
        self.stores.clone()
    }

    /// A look at the connections of every role, at any time.
    pub fn pool_use(&self) -> impl Fn() -> Vec<PoolUse> + Send + Sync + 'static {
        let pools = Arc::clone(&self.pools);
        move || PoolUse::of_roles(&pools.iter().map(|(role, pool)| (*role, pool.in_use())))
    }

    /// What the database's rights protect against.
    pub fn fence(&self) -> Fence {
        self.fence
    }
}

/// Opens the database: it must be reachable and its schema this version's.
pub async fn connect(options: ServerOptions) -> StoreResult<MySqlDatabase> {
    in_time(check_login(&options)).await?;
    let pools = Mutex::new(Pools::new());
    let pool = |role| {
        let pool = pool(&options, role)?;
        pools.lock().unwrap_or_else(PoisonError::into_inner).push((role, pool.clone()));
        Ok::<_, StoreError>(pool)
    };
    let prompt = pool(Role::ApiReader)?;
    let reader =
        roles::ReaderSql::new(pool(Role::ApiReader)?, options.max_connections_per_role, prompt.clone());
    ready(&reader).await?;
    let fence = in_time(Fence::read(&options)).await?;
    fence.announce();

    let operator = pool(Role::DeadLetterOperator)?;
    let stores = Stores {
        ingest: Arc::new(roles::IngestSql::new(pool(Role::EventIngestWriter)?)),
        admin: Arc::new(roles::AdminSql(pool(Role::SubscriptionAdmin)?)),
        verifier: Arc::new(roles::VerifierSql(pool(Role::SubscriptionVerifier)?)),
        router: Arc::new(roles::RouterSql(pool(Role::RouterWorker)?)),
        orchestrator: Arc::new(roles::OrchestratorSql::new(pool(Role::SagaOrchestrator)?)),
        worker: Arc::new(roles::WorkerSql::new(pool(Role::JobWorker)?)),
        cleaner: Arc::new(roles::CleanerSql(pool(Role::LeaseCleaner)?)),
        list_index: Arc::new(roles::ListIndexerSql::new(pool(Role::ListIndexer)?)),
        dead_letters: Arc::new(roles::DeadLettersSql(operator.clone())),
        redrives: Arc::new(roles::RedrivesSql(operator)),
        caretaker: Arc::new(roles::CaretakerSql(pool(Role::EndpointCaretaker)?)),
        janitor: Arc::new(roles::JanitorSql(pool(Role::HistoryJanitor)?)),
        wakeups: Arc::new(wake::Notifications::new(prompt, options.clone())),
        reader: Arc::new(reader),
        keys: Arc::new(roles::KeysSql(pool(Role::KeyAdmin)?)),
        portal_keys: Arc::new(roles::KeysSql(pool(Role::PortalKeyWriter)?)),
        key_reader: Arc::new(roles::KeyReaderSql(pool(Role::KeyReader)?)),
    };
    let pools = Arc::new(pools.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok(MySqlDatabase { stores, pools, fence })
}

/// Opens the API keys alone.
pub async fn open_keys(options: ServerOptions) -> StoreResult<Arc<dyn KeyStore>> {
    in_time(check_login(&options)).await?;
    let prompt = pool(&options, Role::ApiReader)?;
    ready(&roles::ReaderSql::new(prompt.clone(), options.max_connections_per_role, prompt)).await?;
    Ok(Arc::new(roles::KeysSql(pool(&options, Role::KeyAdmin)?)))
}

/// Opens what `api_reader` may see, alone.
pub async fn open_reader(options: ServerOptions) -> StoreResult<Arc<dyn ReaderStore>> {
    in_time(check_login(&options)).await?;
    let prompt = pool(&options, Role::ApiReader)?;
    let reader = roles::ReaderSql::new(prompt.clone(), options.max_connections_per_role, prompt);
    ready(&reader).await?;
    Ok(Arc::new(reader))
}

/// Connects as the login of a URL, without a role and without time limits: for tools that maintain databases.
pub async fn connect_as_login(url: &str) -> StoreResult<mysql_async::Conn> {
    connect_once(SessionKind::Login.configuration(&ServerOptions::login(url))?).await
}

/// Connects to the server of a URL as its login, and to no database of it.
pub async fn connect_to_server(url: &str) -> StoreResult<mysql_async::Conn> {
    connect_once(SessionKind::Server.configuration(&ServerOptions::login(url))?).await
}

fn pool(options: &ServerOptions, role: Role) -> StoreResult<RolePool> {
    Ok(RolePool::new(SessionKind::Component(role).configuration(options)?))
}

/// Checks as the login itself that the server accepts it, and checks the server's settings. Skipped if the reader has a login
/// of its own: then `database.url` may have a login that this process cannot use.
async fn check_login(options: &ServerOptions) -> StoreResult<()> {
    if !options.shares_login(Role::ApiReader) {
        return Ok(());
    }
    let mut connection = connect_once(SessionKind::Server.configuration(options)?).await?;
    let sql = "SELECT @@max_allowed_packet, @@innodb_flush_log_at_trx_commit";
    let settings: Option<(u64, u64)> = checked(connection.query_first(sql).await)?;
    let (packet, flush) = settings.unwrap_or((SMALLEST_PACKET, 1));
    if packet < SMALLEST_PACKET {
        return Err(StoreError::Setup(format!(
            "the database server's max_allowed_packet is {packet} bytes: set it to at least {SMALLEST_PACKET} \
             (SET GLOBAL max_allowed_packet = …, and in the server's configuration)"
        )));
    }
    if flush != 1 {
        tracing::warn!(
            "innodb_flush_log_at_trx_commit is {flush}: a crash of the database server can lose the last second of \
             accepted events; set it to 1"
        );
    }
    // Said here, before the missing roles of a new database could be said to be the fault. A login without rights of
    // its own may see nothing here; what it lacks shows when the reader connects.
    let database = database_of(options)?;
    if let Err(error) = connection.query_drop(format!("USE {}", options::identifier(&database))).await {
        return if error::code(&error) == Some(1049) { Err(error::store_error(&error)) } else { Ok(()) };
    }
    let found: Option<i64> = checked(connection.query_first(HAS_TABLE).await)?;
    checked(connection.disconnect().await)?;
    if found == Some(0) {
        check_usable(&[], MIGRATIONS)?;
    }
    Ok(())
}

/// If rights are missing at the start, the set-up is wrong.
async fn ready(reader: &roles::ReaderSql) -> StoreResult<i64> {
    reader.ready().await.map_err(|error| match error {
        StoreError::Denied(text) => StoreError::Setup(format!(
            "the database's rights do not fit this version ({text}): run `hooksaga migrate`"
        )),
        StoreError::Schema(text) if text.contains("schema_migrations") => StoreError::Schema(
            "the database has no hooksaga schema yet: run `hooksaga migrate` first".to_owned(),
        ),
        other => other,
    })
}

/// The version of the schema that this program creates and works on.
pub fn schema_version() -> i64 {
    hooksaga_store::migration::latest(schema::MIGRATIONS)
}
