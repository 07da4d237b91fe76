//! The schema's versions: checks a database file, and brings it up to date.

use crate::{
    error::store_error,
    location::{Location, ServerLock},
    session::{Purpose, configure, connect},
    time,
};
use hooksaga_store::{
    SchemaVersion, StoreResult,
    migration::{
        LOWEST_PROGRAM, Migration, MigrationReport, Recorded, check_released, check_usable, latest, pending,
    },
    missing_triggers,
};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use std::{
    thread,
    time::{Duration, Instant},
};

pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "tables", sql: include_str!("../migrations/0001_tables.sql") },
    Migration { version: 2, name: "guards", sql: GUARDS },
];
const GUARDS: &str = include_str!("../migrations/0002_guards.sql");

/// Marks a file as hooksaga's; the first migration writes it.
const APPLICATION_ID: i64 = 0x686B_7361;

/// How long to wait for another process that may be migrating just now.
const MIGRATION_PATIENCE: Duration = Duration::from_secs(5);

/// What a migration says about roles.
const ROLES: &str = "embedded database: the program enforces the roles itself, there are none to create";

/// Brings the schema up to date. The lock shows that no server works on it.
///
/// # Errors
/// If the file is another program's or its schema newer than this program: nothing was changed.
pub(crate) fn migrate(location: &Location, _lock: &ServerLock) -> StoreResult<MigrationReport> {
    location.create_file()?;
    let mut connection = connect(location.path())?;
    let current = version(&connection, location)?;
    let steps = pending(current, MIGRATIONS)?;
    configure(&connection, Purpose::Write)?;
    apply(&mut connection, steps).map_err(|error| store_error(&error))?;
    Ok(report(steps))
}

/// Sees to it that the schema is current, beside a running server too: then there is nothing to do. Two
/// processes that find an old schema at once take turns.
pub(crate) fn ensure_current(location: &Location) -> StoreResult<MigrationReport> {
    let started = Instant::now();
    loop {
        if location.has_content() {
            let current = version(&connect(location.path())?, location)?;
            if pending(current, MIGRATIONS)?.is_empty() {
                return Ok(report(&[]));
            }
        }
        let lock = if started.elapsed() < MIGRATION_PATIENCE {
            location.try_lock()?
        } else {
            Some(location.lock()?)
        };
        match lock {
            Some(lock) => return migrate(location, &lock),
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Judges the schema of a file that has content, without changing anything.
pub(crate) fn judge(location: &Location) -> StoreResult<SchemaVersion> {
    let recorded = recorded(&connect(location.path())?).map_err(|error| store_error(&error))?;
    SchemaVersion::judge(&recorded.ok_or_else(|| location.foreign())?, MIGRATIONS)
}

/// A line if triggers of the schema are missing.
pub(crate) fn missing_guards(location: &Location) -> StoreResult<Option<String>> {
    let names = triggers_there(&connect(location.path())?).map_err(|error| store_error(&error))?;
    Ok(missing_triggers(
        GUARDS,
        |trigger| names.iter().any(|name| name == trigger.name),
        "restore the backup again, completely, and run `hooksaga migrate --after-restore`",
    ))
}

fn triggers_there(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut names = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'trigger'")?;
    let names = names.query_map([], |row| row.get(0))?;
    names.collect()
}

/// Checks, on any connection, that this program works on the schema; its version.
pub(crate) fn check(last: Option<&Recorded>) -> StoreResult<i64> {
    check_usable(last.cloned().as_slice(), MIGRATIONS)
}

/// The schema's version; 0 for an empty file.
///
/// # Errors
/// If the file is another program's, or an unreleased state of this one has made it.
fn version(connection: &Connection, location: &Location) -> StoreResult<i64> {
    let recorded = recorded(connection).map_err(|error| store_error(&error))?;
    let recorded = recorded.ok_or_else(|| location.foreign())?;
    check_released(&recorded, MIGRATIONS)?;
    Ok(recorded.iter().map(|step| step.version).max().unwrap_or(0))
}

/// The steps that made this schema; none of an empty file. Nothing if the file is another
/// program's.
fn recorded(connection: &Connection) -> rusqlite::Result<Option<Vec<Recorded>>> {
    let table: Option<String> = connection
        .query_row(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' LIMIT 1",
            [],
            |row| row.get(0),
        )
        .optional()?;
    if table.is_none() {
        return Ok(Some(Vec::new()));
    }
    let owner: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    if owner != APPLICATION_ID {
        return Ok(None);
    }
    let column = |name| has_column(connection, name).map(|there| if there { name } else { "NULL" });
    let sql = format!(
        "SELECT version, {}, {} FROM schema_migrations ORDER BY version",
        column("fingerprint")?,
        column("lowest_program")?
    );
    let mut steps = connection.prepare(&sql)?;
    let steps = steps.query_map([], |row| {
        Ok(Recorded { version: row.get(0)?, fingerprint: row.get(1)?, lowest_program: row.get(2)? })
    })?;
    steps.collect::<rusqlite::Result<_>>().map(Some)
}

/// Whether the table of steps has this column: unreleased versions lacked some.
fn has_column(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM pragma_table_info('schema_migrations') WHERE name = ?1)",
        [name],
        |row| row.get(0),
    )
}

fn apply(connection: &mut Connection, steps: &[Migration]) -> rusqlite::Result<()> {
    if steps.is_empty() && has_column(connection, "lowest_program")? {
        return Ok(());
    }
    // All steps or none: a failure leaves the schema as it was.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_migrations (
             version INTEGER PRIMARY KEY, name TEXT NOT NULL, fingerprint TEXT NOT NULL,
             applied_at INTEGER NOT NULL, lowest_program INTEGER) STRICT",
    )?;
    if !has_column(&transaction, "lowest_program")? {
        transaction.execute_batch("ALTER TABLE schema_migrations ADD COLUMN lowest_program INTEGER")?;
    }
    for step in steps {
        transaction.execute_batch(step.sql)?;
        transaction.execute(
            "INSERT INTO schema_migrations (version, name, fingerprint, applied_at, lowest_program)
             VALUES (?1, ?2, ?3, ?4, ?5)",
            (step.version, step.name, step.fingerprint(), time::now().as_micros(), LOWEST_PROGRAM),
        )?;
    }
    transaction.commit()
}

fn report(steps: &[Migration]) -> MigrationReport {
    MigrationReport {
        applied: steps.iter().map(Migration::label).collect(),
        version: latest(MIGRATIONS),
        roles: ROLES.to_owned(),
    }
}
