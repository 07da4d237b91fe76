//! Reads a redrive from its row. The roles that show redrives and those that run them share it.

use super::rows;
use hooksaga_saga::{Invalid, KeyId, RedriveId};
use hooksaga_store::{Redrive, RedriveColumns, RedriveWork, Starter};
use rusqlite::{Error, Row, types::Type};

/// From [`redrive_columns!`](hooksaga_store::redrive_columns).
pub(super) fn redrive(row: &Row<'_>) -> rusqlite::Result<Redrive> {
    Ok(Redrive {
        id: RedriveId(row.get(0)?),
        tenant: row.get(1)?,
        work: work(row, 2)?,
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
pub(super) fn work(row: &Row<'_>, first: usize) -> rusqlite::Result<RedriveWork> {
    let columns = RedriveColumns {
        kind: row.get(first)?,
        subscription_id: row.get(first + 1)?,
        event_type: row.get(first + 2)?,
        final_error_code: row.get(first + 3)?,
        since: rows::optional_time(row, first + 4)?,
        until: rows::optional_time(row, first + 5)?,
    };
    columns
        .try_into()
        .map_err(|error: Invalid| Error::FromSqlConversionFailure(first, Type::Text, error.into()))
}
