//! Versioned, forward-only migrations: what every back end's runner has in common.
//!
//! There is no migration crate because the runner must hold a lock across concurrent runs, create
//! cluster-wide roles, and (on databases without transactional DDL) resume a half-done step. The rest of what
//! such a crate does fits into this small file.

use crate::StoreError;

/// The oldest program that works on the schema that the steps of any back end make, named by the newest step that it knows:
/// it runs on beside `hooksaga migrate`. Raise it with a step that takes something away or changes its meaning.
pub const LOWEST_PROGRAM: i64 = 2;

/// One step of the schema. Steps are never edited after a release, not even their comments, only added: every database
/// records the [fingerprint](Migration::fingerprint) of the steps that made it.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// From 1, without gaps.
    pub version: i64,
    pub name: &'static str,
    pub sql: &'static str,
}

impl Migration {
    /// How reports call it: as its file, `0001_tables`.
    pub fn label(&self) -> String {
        format!("{:04}_{}", self.version, self.name)
    }

    /// What identifies the text of this step.
    pub fn fingerprint(&self) -> String {
        fingerprint(self.sql)
    }
}

/// What identifies a script: FNV-1a with 64 bits, as 16 hexadecimal digits. It tells edited ones apart and protects against
/// nobody. Carriage returns do not count: a checkout may add them.
pub fn fingerprint(script: &str) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let hash = script
        .bytes()
        .filter(|byte| *byte != b'\r')
        .fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    format!("{hash:016x}")
}

/// A step that a database records as applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub version: i64,
    /// `None` where the row, or the whole table, has none.
    pub fingerprint: Option<String>,
    /// The oldest program that works on the schema since this step, named by the newest step that it knows. `None` where
    /// the row has none: then only programs that know the step do.
    pub lowest_program: Option<i64>,
}

/// What a run of the migrations did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationReport {
    /// The steps that this run applied.
    pub applied: Vec<String>,
    /// The schema's version now.
    pub version: i64,
    /// What happened to the roles, for people.
    pub roles: String,
}

/// Called after each step of a migration, with its name.
pub type OnMigrationStep<'a> = &'a (dyn Fn(&str) + Sync);

/// How far ids move after a restore from a backup: further than any that can have been given out since the backup was made.
/// There is room for tens of thousands of restores below 2^53, which JSON numbers hold exactly.
pub const ID_JUMP: i64 = 100_000_000_000;

/// Where a table's ids go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedIds {
    pub table: String,
    /// Every id from now on is larger.
    pub after: i64,
}

/// The steps that are still to be applied to a schema at `current`.
///
/// # Errors
/// If the schema is newer than `all`: an older program must not touch it.
pub fn pending(current: i64, all: &[Migration]) -> Result<&[Migration], StoreError> {
    let latest = latest(all);
    if current > latest {
        return Err(newer(current, latest));
    }
    let done = usize::try_from(current).unwrap_or(0);
    Ok(&all[done.min(all.len())..])
}

/// Checks that a schema can be used as it is; `recorded` are its steps, in order. A newer one can, if its last step says
/// that programs as old as this one work on it: so `hooksaga migrate` does not stop the processes that run. Returns its
/// version.
///
/// # Errors
/// If it is older than `all`, or newer and not compatible, with what to do about it.
pub fn check_usable(recorded: &[Recorded], all: &[Migration]) -> Result<i64, StoreError> {
    let latest = latest(all);
    let last = recorded.last();
    let current = last.map_or(0, |step| step.version);
    let lowest = last.and_then(|step| step.lowest_program).unwrap_or(current);
    match current {
        _ if current > latest && lowest <= latest => Ok(current),
        _ if current > latest => Err(newer(current, latest)),
        0 => Err(StoreError::Schema(
            "the database has no hooksaga schema yet: run `hooksaga migrate` first".to_owned(),
        )),
        _ if current < latest => Err(StoreError::Schema(format!(
            "the database schema is version {current} and this program needs {latest}: run `hooksaga migrate`"
        ))),
        _ => Ok(current),
    }
}

/// Checks that a schema was made by the steps that this program knows. Call it before [`pending`] and [`check_usable`], with
/// every step that `schema_migrations` holds.
/// Versions newer than `all` are not judged here.
///
/// # Errors
/// If a step was applied with another text: such a schema comes from an unreleased state of this program and cannot be
/// upgraded.
pub fn check_released(recorded: &[Recorded], all: &[Migration]) -> Result<(), StoreError> {
    let is_known = |version: i64, fingerprint: Option<&str>| {
        all.iter()
            .find(|step| step.version == version)
            .is_some_and(|step| fingerprint == Some(step.fingerprint().as_str()))
    };
    let latest = latest(all);
    if recorded
        .iter()
        .all(|step| step.version > latest || is_known(step.version, step.fingerprint.as_deref()))
    {
        return Ok(());
    }
    Err(StoreError::Schema(
        "this database was made by an unreleased version of hooksaga: create a new one (its schema cannot be upgraded)"
            .to_owned(),
    ))
}

/// The version of the newest step.
pub fn latest(all: &[Migration]) -> i64 {
    all.last().map_or(0, |migration| migration.version)
}

fn newer(current: i64, latest: i64) -> StoreError {
    StoreError::Schema(format!(
        "the database schema is version {current}, newer than this program's {latest}: \
         run a hooksaga at least as new as the one that migrated it"
    ))
}
