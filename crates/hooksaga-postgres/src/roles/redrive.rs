//! Reads a redrive from its row. The roles that show redrives and those that run them share it.

use crate::{
    error::{DbError, DbResult},
    roles::rows::{count, parsed},
    time::SqlTime,
};
use hooksaga_saga::{KeyId, RedriveId};
use hooksaga_store::{Redrive, RedriveColumns, RedriveWork, Starter};
use tokio_postgres::Row;

/// From [`redrive_columns!`](hooksaga_store::redrive_columns).
pub(crate) fn redrive(row: &Row) -> DbResult<Redrive> {
    Ok(Redrive {
        id: RedriveId(row.try_get(0)?),
        tenant: row.try_get(1)?,
        work: work(row, 2)?,
        status: parsed(row.try_get(8)?)?,
        error: row.try_get(9)?,
        examined: count(row.try_get(10)?),
        created: count(row.try_get(11)?),
        skipped: count(row.try_get(12)?),
        reached: row.try_get::<_, Option<SqlTime>>(17)?.map(|time| time.0),
        started_by: Starter { key_id: row.try_get::<_, Option<i64>>(13)?.map(KeyId), name: row.try_get(14)? },
        created_at: row.try_get::<_, SqlTime>(15)?.0,
        updated_at: row.try_get::<_, SqlTime>(16)?.0,
    })
}

/// What it does, from six columns of which `first` is the first.
pub(crate) fn work(row: &Row, first: usize) -> DbResult<RedriveWork> {
    let columns = RedriveColumns {
        kind: row.try_get(first)?,
        subscription_id: row.try_get(first + 1)?,
        event_type: row.try_get(first + 2)?,
        final_error_code: row.try_get(first + 3)?,
        since: row.try_get::<_, Option<SqlTime>>(first + 4)?.map(|time| time.0),
        until: row.try_get::<_, Option<SqlTime>>(first + 5)?.map(|time| time.0),
    };
    columns.try_into().map_err(DbError::unreadable)
}
