//! The schema's versions: looks at a database file, and brings it up to date.

use crate::{
    error::store_error,
    location::{Location, ServerLock},
    session::{Purpose, configure, connect},
    time,
};
use hooksaga_store::{
    StoreResult,
    migration::{Migration, MigrationReport, check_current, check_released, latest, pending},
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
///
/// # Errors
/// If the file is another program's, or an unreleased state of this one has made it.
fn version(connection: &Connection, location: &Location) -> StoreResult<i64> {
    let recorded = recorded(connection).map_err(|error| store_error(&error))?;
    let recorded = recorded.ok_or_else(|| location.foreign())?;
    check_released(&recorded, MIGRATIONS)?;
    Ok(recorded.iter().map(|(version, _)| *version).max().unwrap_or(0))
}

/// A step that was applied, and its fingerprint.
type Recorded = (i64, Option<String>);

/// The steps that made this schema, and their fingerprints; none of an empty file. Nothing if the file is another
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
    let has_fingerprints: bool = connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM pragma_table_info('schema_migrations') WHERE name = 'fingerprint')",
        [],
        |row| row.get(0),
    )?;
    let fingerprint = if has_fingerprints { "fingerprint" } else { "NULL" };
    let mut steps = connection.prepare(&format!("SELECT version, {fingerprint} FROM schema_migrations"))?;
    let steps = steps.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    steps.collect::<rusqlite::Result<_>>().map(Some)
}

fn apply(connection: &mut Connection, steps: &[Migration]) -> rusqlite::Result<()> {
    if steps.is_empty() {
        return Ok(());
    }
    // All steps or none: a failure leaves the schema as it was.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_migrations (
             version INTEGER PRIMARY KEY, name TEXT NOT NULL, fingerprint TEXT NOT NULL,
             applied_at INTEGER NOT NULL) STRICT",
    )?;
    for step in steps {
        transaction.execute_batch(step.sql)?;
        transaction.execute(
            "INSERT INTO schema_migrations (version, name, fingerprint, applied_at) VALUES (?1, ?2, ?3, ?4)",
            (step.version, step.name, step.fingerprint(), time::now().as_micros()),
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
