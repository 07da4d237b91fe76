//! The schema's versions: looks at a database file, and brings it up to date.

use crate::{
    error::store_error,
    location::{Location, ServerLock},
    session::{Purpose, configure, connect},
    time,
};
use hooksaga_store::{
    StoreResult,
    migration::{Migration, MigrationReport, check_current, latest, pending},
};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use std::{
    thread,
    time::{Duration, Instant},
};

pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "tables", sql: include_str!("../migrations/0001_tables.sql") },
    Migration { version: 2, name: "guards", sql: include_str!("../migrations/0002_guards.sql") },
];

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

/// Checks, on any connection, that the schema is this program's.
pub(crate) fn check(version: Option<i64>) -> StoreResult<()> {
    check_current(version.unwrap_or(0), MIGRATIONS)
}

/// The schema's version; 0 for an empty file.
fn version(connection: &Connection, location: &Location) -> StoreResult<i64> {
    let read = || -> rusqlite::Result<Option<i64>> {
        let table: Option<String> = connection
            .query_row(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' LIMIT 1",
                [],
                |row| row.get(0),
            )
            .optional()?;
        if table.is_none() {
            return Ok(Some(0));
        }
        let owner: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        if owner != APPLICATION_ID {
            return Ok(None);
        }
        connection.query_row("SELECT max(version) FROM schema_migrations", [], |row| row.get(0))
    };
    read().map_err(|error| store_error(&error))?.ok_or_else(|| location.foreign())
}

fn apply(connection: &mut Connection, steps: &[Migration]) -> rusqlite::Result<()> {
    if steps.is_empty() {
        return Ok(());
    }
    // All steps or none: a failure leaves the schema as it was.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_migrations (
             version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT",
    )?;
    for step in steps {
        transaction.execute_batch(step.sql)?;
        transaction.execute(
            "INSERT INTO schema_migrations (version, name, applied_at) VALUES (?1, ?2, ?3)",
            (step.version, step.name, time::now().as_micros()),
        )?;
    }
    transaction.commit()
}

fn report(steps: &[Migration]) -> MigrationReport {
    MigrationReport {
        applied: steps.iter().map(|step| format!("{:04}_{}", step.version, step.name)).collect(),
        version: latest(MIGRATIONS),
        roles: ROLES.to_owned(),
    }
}
