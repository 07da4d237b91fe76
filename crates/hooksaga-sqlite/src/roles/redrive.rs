//! A redrive as its row has it, for the roles that read it.

use super::rows;
use hooksaga_saga::{KeyId, RedriveId};
use hooksaga_store::{Redrive, RedriveColumns, Starter};
use rusqlite::Row;

/// What [`redrive`] reads, in its order.
macro_rules! redrive_columns {
    () => {
        "id, tenant, kind, subscription_id, event_type, final_error_code, since, until, status, error, examined, created,
       skipped, started_by_key, started_by, created_at, updated_at, after_at"
    };
}
pub(super) use redrive_columns;

pub(super) fn redrive(row: &Row<'_>) -> rusqlite::Result<Redrive> {
    Ok(Redrive {
        id: RedriveId(row.get(0)?),
        tenant: row.get(1)?,
        work: work(row, 2)?.into(),
        status: rows::parsed(row, 8)?,
        error: row.get(9)?,
        examined: rows::count(row, 10)?,
        created: rows::count(row, 11)?,
        skipped: rows::count(row, 12)?,
        reached: rows::optional_time(row, 17)?,
        started_by: Starter { key_id: row.get::<_, Option<i64>>(13)?.map(KeyId), name: row.get(14)? },
        created_at: rows::time(row, 15)?,
        updated_at: rows::time(row, 16)?,
    })
}

/// What it does, from six columns of which `first` is the first.
pub(super) fn work(row: &Row<'_>, first: usize) -> rusqlite::Result<RedriveColumns> {
    Ok(RedriveColumns {
        kind: row.get(first)?,
        subscription_id: row.get(first + 1)?,
        event_type: row.get(first + 2)?,
        final_error_code: row.get(first + 3)?,
        since: rows::optional_time(row, first + 4)?,
        until: rows::optional_time(row, first + 5)?,
    })
}
