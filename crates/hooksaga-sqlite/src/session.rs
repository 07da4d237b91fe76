//! One connection, and the transactions on it. Every transaction belongs to one role and reads the clock
//! once.

use crate::{
    authorizer::CurrentRole,
    error::{DbError, DbResult, store_error},
    time,
};
use hooksaga_saga::Timestamp;
use hooksaga_store::{Role, StoreError, StoreResult};
use rusqlite::{CachedStatement, Connection, OpenFlags, Params, config::DbConfig};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// What a connection is for. It decides about its page cache, which is most of the memory that an embedded
/// database takes; pages that are not in it are in the operating system's, so a small one costs little.
/// For the same reason nothing is memory-mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Write,
    Read,
}

impl Purpose {
    const fn cache_kib(self) -> u32 {
        match self {
            Self::Write => 12 * 1024,
            Self::Read => 2 * 1024,
        }
    }
}

/// How often a connection looks again, a millisecond apart, while another process holds the write lock:
/// about ten seconds. SQLite's own waiting looks ever more rarely and would miss the short gaps that a
/// busy server leaves.
const BUSY_LOOKS: i32 = 10_000;

/// More than there are statements.
const CACHED_STATEMENTS: usize = 160;

/// Opens an existing database file without touching it, as the schema's owner: no authorizer yet.
pub(crate) fn connect(path: &Path) -> StoreResult<Connection> {
    // NO_MUTEX: a connection is used by one thread at a time, which the borrow checker sees to.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(|error| store_error(&error))?;
    connection.busy_handler(Some(wait_for_the_lock)).map_err(|error| store_error(&error))?;
    Ok(connection)
}

fn wait_for_the_lock(looks: i32) -> bool {
    thread::sleep(Duration::from_millis(1));
    looks < BUSY_LOOKS
}

/// The settings of every connection that works with the schema. `page_size` is that of a new file: a commit of few rows
/// writes as many pages as it touches, and half the usual size costs nothing else. `recursive_triggers`: else the deletes
/// that INSERT OR REPLACE makes would pass by the guards.
pub(crate) fn configure(connection: &Connection, purpose: Purpose) -> StoreResult<()> {
    // The file is in this mode for good once its first writer has been here. A reader does not ask for it: where it had
    // to be changed that needs a lock which the others hold.
    let journal = match purpose {
        Purpose::Write => "PRAGMA journal_mode = WAL;",
        Purpose::Read => "",
    };
    let settings = format!(
        "PRAGMA page_size = 2048;
         {journal}
         PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = 8000;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA foreign_keys = OFF;
         PRAGMA recursive_triggers = ON;
         PRAGMA trusted_schema = OFF;
         PRAGMA temp_store = MEMORY;
         PRAGMA mmap_size = 0;
         PRAGMA cache_size = -{};
         PRAGMA query_only = {};",
        purpose.cache_kib(),
        u8::from(purpose == Purpose::Read),
    );
    connection.execute_batch(&settings).map_err(|error| store_error(&error))?;
    // A plan never depends on the values of parameters. Else a statement with `LIMIT ?` is prepared again whenever a
    // value is bound to it, which was a tenth of the writer's time.
    let is_stable = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true);
    is_stable.map(drop).map_err(|error| store_error(&error))
}

/// How many steps of SQLite's machine go by between two reads of the clock: a few times per millisecond.
const STEPS_BETWEEN_LOOKS: i32 = 5_000;

/// How long a read may take, and for whom it runs.
pub(crate) struct ReadLimit(Option<(Duration, Arc<AtomicBool>)>);

impl ReadLimit {
    /// For reads that are bounded by what they read.
    pub(crate) const fn endless() -> Self {
        Self(None)
    }

    /// It ends after `limit`, and soon after `gone` is set: nobody waits for it any more.
    pub(crate) const fn new(limit: Duration, gone: Arc<AtomicBool>) -> Self {
        Self(Some((limit, gone)))
    }
}

/// A connection that works for one role at a time.
pub(crate) struct Session {
    connection: Connection,
    role: CurrentRole,
    undone: u64,
}

impl Session {
    /// Opens a connection on a database whose schema is current.
    pub(crate) fn open(path: &Path, purpose: Purpose) -> StoreResult<Self> {
        let mut connection = connect(path)?;
        configure(&connection, purpose)?;
        connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
        let role = CurrentRole::default();
        let asked = role.clone();
        connection
            .authorizer(Some(move |context: rusqlite::hooks::AuthContext<'_>| asked.authorize(context)))
            .map_err(|error| store_error(&error))?;
        Ok(Self { connection, role, undone: 0 })
    }

    /// Runs `job` as one read of `role`, on one consistent state of the database.
    pub(crate) fn read<T>(
        &mut self,
        role: Role,
        patience: ReadLimit,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T>,
    ) -> StoreResult<T> {
        self.role.set(role);
        self.watch(patience).map_err(|error| store_error(&error))?;
        let work = || -> DbResult<T> {
            let transaction = self.connection.transaction()?;
            let value = job(&Tx { connection: &transaction, role, now: time::now(), undone: self.undone })?;
            transaction.commit()?;
            Ok(value)
        };
        work().map_err(StoreError::from)
    }

    /// From now on statements are interrupted when patience ends.
    fn watch(&mut self, patience: ReadLimit) -> rusqlite::Result<()> {
        let begun = Instant::now();
        let handler =
            patience.0.map(|(limit, gone)| move || gone.load(Ordering::Relaxed) || begun.elapsed() >= limit);
        self.connection.progress_handler(STEPS_BETWEEN_LOOKS, handler)
    }

    /// Runs several transactions and commits them together. Each is a savepoint: one that fails or panics is
    /// undone by itself. On an error nothing of any of them is left.
    pub(crate) fn run_together(&mut self, first: Role, parts: &mut impl Together) -> StoreResult<()> {
        self.role.set(first);
        let done = self.try_together(parts);
        if done.is_err() {
            self.undone += 1;
            if !self.connection.is_autocommit() {
                // If this fails, too, the connection is of no use, and the next BEGIN says so.
                let _ = self.command("ROLLBACK");
            }
        }
        done.map_err(StoreError::from)
    }

    fn try_together(&self, parts: &mut impl Together) -> DbResult<()> {
        // Taking the write lock at once: a read that turns into a write later can fail half-way.
        self.command("BEGIN IMMEDIATE")?;
        while let Some(part) = parts.next() {
            let before = self.connection.total_changes();
            self.role.set(part.role());
            self.command("SAVEPOINT part")?;
            let (role, now, undone) = (part.role(), time::now(), self.undone);
            let tx = Tx { connection: &self.connection, role, now, undone };
            let done = catch_unwind(AssertUnwindSafe(|| part.run(&tx))).unwrap_or_else(|_| {
                tracing::error!("a transaction panicked and was rolled back");
                false
            });
            if self.connection.is_autocommit() {
                // A full disk, for one: SQLite itself has rolled everything back.
                let text = "the transaction was rolled back with another one that failed".to_owned();
                return Err(DbError::Store(StoreError::Unavailable(text)));
            }
            if !done {
                self.command("ROLLBACK TO part")?;
            }
            self.command("RELEASE part")?;
            parts.ran(done && self.connection.total_changes() > before);
        }
        self.command("COMMIT")
    }

    /// A statement that begins or ends a transaction, prepared once.
    fn command(&self, sql: &str) -> DbResult<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }
}

/// What is committed together.
pub(crate) trait Together {
    /// What runs next; `None`: it is time to commit.
    fn next(&mut self) -> Option<&mut dyn Part>;

    /// Called after the part that `next` returned last has run; `changed` is whether it wrote anything.
    fn ran(&mut self, changed: bool);
}

/// When a transaction returns and is committed, if nobody else waits for the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    /// At once. Somebody waits for it, or acts outside on it.
    AtOnce,
    /// With what follows from it, which is on its way. It returns afterwards.
    WithNext,
    /// With what follows from it. It returns before, so that the next step can follow. Its result is only used inside this
    /// process, and is lost with it; whatever acts outside is committed first.
    Deferred,
}

/// One of several transactions that are committed together.
pub(crate) trait Part: Send {
    fn role(&self) -> Role;

    fn commit(&self) -> Commit;

    /// Whether anybody still waits for its result.
    fn is_wanted(&self) -> bool;

    /// Does the work; false undoes it.
    fn run(&mut self, tx: &Tx<'_>) -> bool;

    /// Hands its result to whoever waits for it, given what became of the commit.
    fn complete(self: Box<Self>, committed: &StoreResult<()>);
}

/// An open transaction of one role.
pub(crate) struct Tx<'c> {
    connection: &'c Connection,
    role: Role,
    /// The database's clock, read once.
    pub(crate) now: Timestamp,
    /// How many commits have failed so far. A transaction that returned before its commit
    /// ([`Commit::Deferred`]) and on which a later one relies is still there if the number is the same.
    pub(crate) undone: u64,
}

impl<'c> Tx<'c> {
    /// A statement of this role, prepared once per connection.
    ///
    /// A prepared statement is not checked again when it runs. The cache finds it by its text, and every
    /// text begins with the store that it belongs to, whose role is one: so none that was prepared, and checked, for
    /// one role can ever run for another.
    pub(crate) fn prepare(&self, sql: &str) -> DbResult<CachedStatement<'c>> {
        if !belongs_to(sql, self.role) {
            let name: String = sql.chars().take(60).collect();
            return Err(DbError::Store(StoreError::Denied(format!(
                "a statement that {} runs begins with its store's name, not with {name:?}",
                self.role
            ))));
        }
        Ok(self.connection.prepare_cached(sql)?)
    }

    /// Runs a statement of this role once; how many rows it changed.
    pub(crate) fn execute(&self, sql: &str, params: impl Params) -> DbResult<usize> {
        Ok(self.prepare(sql)?.execute(params)?)
    }

    /// The id of the row that was inserted last.
    pub(crate) fn last_id(&self) -> i64 {
        self.connection.last_insert_rowid()
    }
}

/// Whether a statement begins with `/* store.name */` of a store that works as this role.
pub(crate) fn belongs_to(sql: &str, role: Role) -> bool {
    let tag = sql.strip_prefix("/* ").and_then(|rest| rest.split_once(" */"));
    tag.and_then(|(tag, _)| tag.split_once('.')).is_some_and(|(store, _)| role_of(store) == Some(role))
}

/// Who runs the statements of a file or folder of `roles/`.
fn role_of(store: &str) -> Option<Role> {
    Some(match store {
        "admin" => Role::SubscriptionAdmin,
        "caretaker" => Role::EndpointCaretaker,
        "cleaner" => Role::LeaseCleaner,
        "dead_letters" | "redrives" => Role::DeadLetterOperator,
        "ingest" => Role::EventIngestWriter,
        "janitor" => Role::HistoryJanitor,
        "keys" => Role::KeyAdmin,
        "key_reader" => Role::KeyReader,
        "list_indexer" => Role::ListIndexer,
        "orchestrator" => Role::SagaOrchestrator,
        "portal_keys" => Role::PortalKeyWriter,
        "reader" => Role::ApiReader,
        "router" => Role::RouterWorker,
        "verifier" => Role::SubscriptionVerifier,
        "worker" => Role::JobWorker,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_belongs_to_the_role_whose_store_it_names_and_to_no_other() {
        let sql = "/* worker.claim */ SELECT 1";
        for role in Role::ALL {
            assert_eq!(belongs_to(sql, *role), *role == Role::JobWorker, "{role}");
        }
        for wrong in [
            "SELECT 1",
            " /* worker.claim */ SELECT 1",
            "/* worker */ SELECT 1",
            "/* workers.claim */ SELECT 1",
            "/* worker.claim SELECT 1",
            "-- worker.claim",
        ] {
            assert!(!belongs_to(wrong, Role::JobWorker), "{wrong}");
        }
    }
}
