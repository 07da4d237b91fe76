//! From columns to domain types.

use crate::error::{DbError, DbResult};
use hooksaga_store::Trace;
use mysql_async::{Row, prelude::FromValue};

/// Takes a column out of a row.
pub(crate) fn take<T: FromValue>(row: &mut Row, column: usize) -> DbResult<T> {
    match row.take_opt::<T, _>(column) {
        Some(Ok(value)) => Ok(value),
        // The error would show the value.
        Some(Err(_)) => Err(DbError::unreadable(format_args!(
            "column {column} of a row is no {}",
            std::any::type_name::<T>()
        ))),
        None => Err(DbError::unreadable(format_args!("a row has no column {column}"))),
    }
}

/// A number that a CHECK keeps at 0 or more.
pub(crate) fn natural(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// A count, which is never negative.
pub(crate) fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// The length of a batch, as a count of rows.
pub(crate) fn rows(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// Parses a status.
pub(crate) fn parsed<T: std::str::FromStr<Err = impl std::fmt::Display>>(text: &str) -> DbResult<T> {
    text.parse().map_err(DbError::unreadable)
}

/// After a guarded write whose rows are locked: checks how many rows were written.
pub(crate) fn expect_rows(what: &str, expected: u64, written: u64) -> DbResult<()> {
    if expected == written {
        return Ok(());
    }
    Err(DbError::unreadable(format_args!("{what} wrote {written} rows instead of {expected}")))
}

/// An event's tenant at `column`, and its correlation id behind it.
pub(crate) fn trace(row: &mut Row, column: usize) -> DbResult<Trace> {
    Ok(Trace { tenant: take(row, column)?, correlation_id: take(row, column + 1)? })
}
