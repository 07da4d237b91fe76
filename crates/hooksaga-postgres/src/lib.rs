//! The PostgreSQL back end: it contains the SQL and no decisions. Needs PostgreSQL 15 or newer.
//!
//! One handle per role, each with a pool of its own whose sessions run as that role: switched to it by their
//! first message, or logged in as it (`role_urls`). A login that switches can switch back, so that fence is
//! against mistakes; a login per role is a fence against intruders too.
//!
//! | file | what it does |
//! |---|---|
//! | `options`, `connect`, `pool`, `tls` | how to reach the server, a session's settings, a pool per role |
//! | `cancelling` | ends queries whose callers have gone |
//! | `schema`, `restore` | migrations; ids after a restore |
//! | `examine` | the queries of `hooksaga doctor` |
//! | `rewrap` | seals secrets with another key |
//! | `rights` | the roles, and what each may do |
//! | `outbox` | the function that applications call |
//! | `roles` | the store traits, a file per role; the files with other names are shared by them |
//! | `wake` | signals between processes |
//! | `error`, `time` | from the driver's errors and times to the store's |
//!
//! Every statement is a constant that begins with its name in a comment, under the reasons for
//! its shape. All run in READ COMMITTED, and every batch is written in the order of its key, so that two of the
//! same kind wait for each other instead of deadlocking. Deadlocks that still happen are retried.

mod cancelling;
mod connect;
mod error;
mod examine;
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
mod wake;

pub use error::store_error;
pub use examine::examine;
pub use restore::{move_ids_forward, repair_lists};
pub use rewrap::rewrap;
pub use rights::role_sql;
pub use schema::{migrate, migrate_telling};

use connect::refuse_shared_sessions;
use error::checked;
use hooksaga_store::{
    KeyStore, PoolUse, ReaderStore, Role, ServerOptions, StoreError, StoreResult, Stores,
    migration::check_usable,
};
use options::SessionKind;
use pool::{Commits, RolePool, connect_once};
use roles::correlations::Correlations;
use schema::MIGRATIONS;
use std::sync::{Arc, Mutex, PoisonError};

/// How many connections readiness and signals share.
const PROMPT_CONNECTIONS: usize = 2;

/// Every pool of a process, with its role.
type Pools = Vec<(Role, RolePool)>;

/// An open database.
pub struct PostgresDatabase {
    stores: Stores,
    pools: Arc<Pools>,
}

impl PostgresDatabase {
    /// Every role's handle.
    pub fn stores(&self) -> Stores {
        self.stores.clone()
    }

    /// A look at the connections of every role, at any time.
    pub fn pool_use(&self) -> impl Fn() -> Vec<PoolUse> + Send + Sync + 'static {
        let pools = Arc::clone(&self.pools);
        move || PoolUse::of_roles(&pools.iter().map(|(role, pool)| (*role, pool.in_use())))
    }
}

/// Opens the database: it must be reachable and its schema this version's.
pub async fn connect(options: ServerOptions) -> StoreResult<PostgresDatabase> {
    let schema = check_login(&options).await?;
    let pools = Mutex::new(Pools::new());
    let kept = |role: Role, pool: RolePool| {
        pools.lock().unwrap_or_else(PoisonError::into_inner).push((role, pool.clone()));
        pool
    };
    let opened =
        |role, commits| pool(&options, role, schema.as_deref(), commits).map(|pool| kept(role, pool));
    let pool = |role| opened(role, Commits::Durable);
    let deferred = |role| opened(role, Commits::Deferred);
    let prompt = kept(Role::ApiReader, prompt_pool(&options, schema.as_deref())?);
    let reader =
        roles::ReaderSql::new(pool(Role::ApiReader)?, options.max_connections_per_role, prompt.clone());
    ready(&reader).await?;
    let correlations = Arc::new(Correlations::default());
    let operator = pool(Role::DeadLetterOperator)?;
    let queue = roles::RouterSql::frontier();

    let listener = SessionKind::Component { role: Role::ApiReader, schema: schema.as_deref() }
        .configuration(&options)?;
    let stores = Stores {
        ingest: Arc::new(roles::IngestSql(pool(Role::EventIngestWriter)?)),
        admin: Arc::new(roles::AdminSql(pool(Role::SubscriptionAdmin)?)),
        verifier: Arc::new(roles::VerifierSql(pool(Role::SubscriptionVerifier)?)),
        router: Arc::new(roles::RouterSql::new(
            deferred(Role::RouterWorker)?,
            queue.clone(),
            correlations.clone(),
        )),
        orchestrator: Arc::new(roles::OrchestratorSql::new(
            deferred(Role::SagaOrchestrator)?,
            pool(Role::SagaOrchestrator)?,
            correlations,
        )),
        worker: Arc::new(roles::WorkerSql::new(pool(Role::JobWorker)?)),
        cleaner: Arc::new(roles::CleanerSql(pool(Role::LeaseCleaner)?)),
        dead_letters: Arc::new(roles::DeadLettersSql(operator.clone())),
        redrives: Arc::new(roles::RedrivesSql(operator)),
        caretaker: Arc::new(roles::CaretakerSql(pool(Role::EndpointCaretaker)?)),
        list_index: Arc::new(roles::ListIndexerSql::new(deferred(Role::ListIndexer)?)),
        janitor: Arc::new(roles::JanitorSql(deferred(Role::HistoryJanitor)?)),
        wakeups: Arc::new(wake::Notifications::new(prompt, listener, queue)),
        reader: Arc::new(reader),
        keys: Arc::new(roles::KeysSql(pool(Role::KeyAdmin)?)),
        portal_keys: Arc::new(roles::KeysSql(pool(Role::PortalKeyWriter)?)),
        key_reader: Arc::new(roles::KeyReaderSql(deferred(Role::KeyReader)?)),
    };
    let pools = Arc::new(pools.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok(PostgresDatabase { stores, pools })
}

/// Opens the API keys alone.
pub async fn open_keys(options: ServerOptions) -> StoreResult<Arc<dyn KeyStore>> {
    let schema = check_login(&options).await?;
    let prompt = prompt_pool(&options, schema.as_deref())?;
    ready(&roles::ReaderSql::new(prompt.clone(), PROMPT_CONNECTIONS, prompt)).await?;
    Ok(Arc::new(roles::KeysSql(pool(&options, Role::KeyAdmin, schema.as_deref(), Commits::Durable)?)))
}

/// Opens what `api_reader` may see, alone.
pub async fn open_reader(options: ServerOptions) -> StoreResult<Arc<dyn ReaderStore>> {
    let schema = check_login(&options).await?;
    let prompt = prompt_pool(&options, schema.as_deref())?;
    let reader = roles::ReaderSql::new(prompt.clone(), PROMPT_CONNECTIONS, prompt);
    ready(&reader).await?;
    Ok(Arc::new(reader))
}

/// Connects as the login of a URL, without a role and without time limits: for tools that maintain databases.
pub async fn connect_as_login(url: &str) -> StoreResult<tokio_postgres::Client> {
    connect_once(&SessionKind::Login.configuration(&ServerOptions::login(url))?).await
}

fn pool(
    options: &ServerOptions,
    role: Role,
    schema: Option<&str>,
    commits: Commits,
) -> StoreResult<RolePool> {
    let session = SessionKind::Component { role, schema }.configuration(options)?;
    RolePool::new(session, options.max_connections_per_role, commits)
}

/// The reader's connections for what must not wait behind a list: readiness, and signals, which any role may send.
fn prompt_pool(options: &ServerOptions, schema: Option<&str>) -> StoreResult<RolePool> {
    let session = SessionKind::Component { role: Role::ApiReader, schema }.configuration(options)?;
    RolePool::new(session, PROMPT_CONNECTIONS, Commits::Durable)
}

/// Checks as the login itself that the server is there and lets it in, and returns the schema of the tables. Not
/// done where the reader has a login of its own: then `database.url` may be one that this process cannot use.
async fn check_login(options: &ServerOptions) -> StoreResult<Option<String>> {
    if !options.shares_login(Role::ApiReader) {
        return Ok(None);
    }
    let session = SessionKind::Login.configuration(options)?;
    let client = connect_once(&session).await?;
    refuse_shared_sessions(&client, &session).await?;
    let sql = "SELECT quote_ident(current_schema()), to_regclass('schema_migrations') IS NOT NULL";
    let row = checked(client.query_one(sql, &[]).await)?;
    if !checked(row.try_get(1))? {
        // Said here, before the missing roles of a new database could be said to be the fault.
        check_usable(&[], MIGRATIONS)?;
    }
    checked(row.try_get(0))
}

/// If rights are missing at the start, the set-up is wrong.
async fn ready(reader: &roles::ReaderSql) -> StoreResult<i64> {
    reader.ready().await.map_err(|error| match error {
        StoreError::Denied(text) => StoreError::Setup(format!(
            "the database's rights do not fit this version ({text}): run `hooksaga migrate`"
        )),
        other => other,
    })
}

/// The version of the schema that this program creates and works on.
pub fn schema_version() -> i64 {
    hooksaga_store::migration::latest(schema::MIGRATIONS)
}
