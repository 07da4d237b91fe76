//! Versioned, forward-only migrations: what every back end's runner has in common.
//!
//! The runner is our own rather than a crate's because it must hold a lock across concurrent runs, create
//! cluster-wide roles, and (on databases without transactional DDL) resume a half-done step: the small rest
//! that a migration crate would do is this file.

use crate::StoreError;

/// One step of the schema. Steps are never edited after a release, only added.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// From 1, without gaps.
    pub version: i64,
    pub name: &'static str,
    pub sql: &'static str,
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

/// Checks that a schema can be used as it is.
///
/// # Errors
/// If it is older or newer than `all`, with what to do about it.
pub fn check_current(current: i64, all: &[Migration]) -> Result<(), StoreError> {
    let latest = latest(all);
    match current {
        _ if current > latest => Err(newer(current, latest)),
        0 => Err(StoreError::Schema(
            "the database has no hooksaga schema yet: run `hooksaga migrate` first".to_owned(),
        )),
        _ if current < latest => Err(StoreError::Schema(format!(
            "the database schema is version {current} and this program needs {latest}: run `hooksaga migrate`"
        ))),
        _ => Ok(()),
    }
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
