//! Reads a redrive from its row. The roles that show redrives and those that run them share it.

use crate::{
    error::{DbError, DbResult},
    roles::rows::{count, parsed, take},
    time::SqlTime,
};
use hooksaga_saga::{KeyId, RedriveId};
use hooksaga_store::{Redrive, RedriveColumns, RedriveWork, Starter};
use mysql_async::Row;

/// From [`redrive_columns!`](hooksaga_store::redrive_columns).
pub(crate) fn redrive(row: &mut Row) -> DbResult<Redrive> {
    Ok(Redrive {
        id: RedriveId(take(row, 0)?),
        tenant: take(row, 1)?,
        work: work(row, 2)?,
        status: parsed(&take::<String>(row, 8)?)?,
        error: take(row, 9)?,
        examined: count(take(row, 10)?),
        created: count(take(row, 11)?),
        skipped: count(take(row, 12)?),
        reached: take::<Option<SqlTime>>(row, 17)?.map(|time| time.0),
        started_by: Starter { key_id: take::<Option<i64>>(row, 13)?.map(KeyId), name: take(row, 14)? },
        created_at: take::<SqlTime>(row, 15)?.0,
        updated_at: take::<SqlTime>(row, 16)?.0,
    })
}

/// What it does, from six columns of which `first` is the first.
pub(crate) fn work(row: &mut Row, first: usize) -> DbResult<RedriveWork> {
    let columns = RedriveColumns {
        kind: take(row, first)?,
        subscription_id: take(row, first + 1)?,
        event_type: take(row, first + 2)?,
        final_error_code: take(row, first + 3)?,
        since: take::<Option<SqlTime>>(row, first + 4)?.map(|time| time.0),
        until: take::<Option<SqlTime>>(row, first + 5)?.map(|time| time.0),
    };
    columns.try_into().map_err(DbError::unreadable)
}
