//! The embedded back end: SQLite, one server process per file, nothing to install.
//!
//! | file | what it does |
//! |---|---|
//! | `location` | checks the file and its folder, holds the server's lock |
//! | `schema`, `restore` | migrations; ids after a restore |
//! | `examine` | the queries of `hooksaga doctor` |
//! | `rewrap` | seals secrets with another key |
//! | `engine`, `writer_queue`, `readers`, `session` | one writer thread and its queue, readers in lanes; transactions of one role each |
//! | `rights`, `authorizer` | what each role may do, and what enforces it |
//! | `roles` | the store traits, a file per role; the files with other names are shared by them |
//! | `error`, `time` | from the driver's errors to the store's; the clock |
//!
//! A role here is a fence against mistakes, not against intruders: whoever has the file has the data.

mod authorizer;
mod engine;
mod error;
mod examine;
mod location;
mod readers;
mod restore;
mod rewrap;
mod rights;
mod roles;
mod schema;
mod session;
#[cfg(feature = "test-support")]
pub mod test_support;
mod time;
mod writer_queue;

pub use error::store_error;
pub use examine::{examine, open_reader, sealing_keys};
pub use rewrap::rewrap;

use engine::{Engine, RoleHandle};
use hooksaga_store::{
    KeyStore, NoWakeups, Role, StoreError, StoreResult, Stores,
    migration::{MigrationReport, MovedIds},
};
use location::{Location, ServerLock};
use readers::ReadLanes;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where the database is.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The file. Its folder is created if need be.
    pub path: PathBuf,
}

/// An open database, served by this process alone.
pub struct SqliteDatabase {
    engine: Arc<Engine>,
    migration_report: MigrationReport,
}

/// Opens a database to serve it: takes the server's lock, creates or upgrades the schema.
///
/// # Errors
/// [`StoreError::Setup`] if another server holds it or the file or folder is unusable,
/// [`StoreError::Schema`] if the schema is newer than this program; then nothing was changed.
pub async fn open(options: SqliteOptions) -> StoreResult<SqliteDatabase> {
    blocking(move || {
        let location = Location::check(&options.path)?;
        let lock = location.lock()?;
        let migration_report = schema::migrate(&location, &lock)?;
        let engine = Arc::new(Engine::start(location.path(), ReadLanes::SERVER, Some(lock))?);
        Ok(SqliteDatabase { engine, migration_report })
    })
    .await
}

/// Creates or upgrades the schema; beside a running server only if there is nothing to do.
///
/// # Errors
/// As [`open`].
pub async fn migrate(path: &Path) -> StoreResult<MigrationReport> {
    let path = path.to_owned();
    blocking(move || schema::ensure_current(&Location::check(&path)?)).await
}

/// Moves the ids of every table forward, after a restore from a backup. No server may run.
///
/// # Errors
/// As [`open`].
pub async fn move_ids_forward(path: &Path) -> StoreResult<Vec<MovedIds>> {
    alone(path, restore::move_ids).await
}

/// Repairs what triggers keep for lists, after a restore that may have left those out. Returns how many rows were wrong. No
/// server may run.
///
/// # Errors
/// As [`open`].
pub async fn repair_lists(path: &Path) -> StoreResult<u64> {
    alone(path, restore::repair_lists).await
}

/// Works on a database whose schema is current, where no server runs.
async fn alone<T: Send + 'static>(
    path: &Path,
    work: fn(&Location, &ServerLock) -> StoreResult<T>,
) -> StoreResult<T> {
    let path = path.to_owned();
    blocking(move || {
        let location = Location::check(&path)?;
        let lock = location.lock()?;
        schema::migrate(&location, &lock)?;
        work(&location, &lock)
    })
    .await
}

/// The API keys of a database, beside a running server too. If there is no database yet it is created.
///
/// # Errors
/// As [`open`], but another server is no obstacle unless the schema has to be upgraded.
pub async fn open_keys(path: &Path) -> StoreResult<Arc<dyn KeyStore>> {
    let path = path.to_owned();
    blocking(move || {
        let location = Location::check(&path)?;
        schema::ensure_current(&location)?;
        let engine = Arc::new(Engine::start(location.path(), ReadLanes::TOOL, None)?);
        Ok(Arc::new(roles::KeysSql(RoleHandle::new(&engine, Role::KeyAdmin))) as Arc<dyn KeyStore>)
    })
    .await
}

impl SqliteDatabase {
    /// Every role's handle. The database is closed when the last of them is dropped.
    pub fn stores(&self) -> Stores {
        let handle = |role| RoleHandle::new(&self.engine, role);
        Stores {
            ingest: Arc::new(roles::IngestSql(handle(Role::EventIngestWriter))),
            admin: Arc::new(roles::AdminSql(handle(Role::SubscriptionAdmin))),
            verifier: Arc::new(roles::VerifierSql(handle(Role::SubscriptionVerifier))),
            router: Arc::new(roles::RouterSql(handle(Role::RouterWorker))),
            orchestrator: Arc::new(roles::OrchestratorSql(handle(Role::SagaOrchestrator))),
            worker: Arc::new(roles::WorkerSql::new(handle(Role::JobWorker))),
            cleaner: Arc::new(roles::CleanerSql(handle(Role::LeaseCleaner))),
            dead_letters: Arc::new(roles::DeadLettersSql(handle(Role::DeadLetterOperator))),
            caretaker: Arc::new(roles::CaretakerSql(handle(Role::EndpointCaretaker))),
            janitor: Arc::new(roles::JanitorSql(handle(Role::HistoryJanitor))),
            redrives: Arc::new(roles::RedrivesSql(handle(Role::DeadLetterOperator))),
            list_index: Arc::new(roles::ListIndexerSql(handle(Role::ListIndexer))),
            reader: Arc::new(roles::ReaderSql(handle(Role::ApiReader))),
            keys: Arc::new(roles::KeysSql(handle(Role::KeyAdmin))),
            portal_keys: Arc::new(roles::PortalKeysSql(handle(Role::PortalKeyWriter))),
            key_reader: Arc::new(roles::KeyReaderSql(handle(Role::KeyReader))),
            wakeups: Arc::new(NoWakeups),
        }
    }

    /// What opening it did to the schema.
    pub fn migration_report(&self) -> &MigrationReport {
        &self.migration_report
    }
}

/// Runs file work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> StoreResult<T> + Send + 'static,
) -> StoreResult<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(StoreError::Other("opening the database was interrupted".to_owned())))
}

/// The version of the schema that this program creates and works on.
pub fn schema_version() -> i64 {
    hooksaga_store::migration::latest(schema::MIGRATIONS)
}
