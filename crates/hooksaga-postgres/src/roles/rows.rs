//! Converts values of the domain to PostgreSQL's and back.

use crate::error::{DbError, DbResult};
use hooksaga_store::Trace;
use tokio_postgres::Row;

/// A number that a CHECK keeps at 0 or more.
pub(crate) fn natural(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// A count, which is never negative.
pub(crate) fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// A limit or count as PostgreSQL's `bigint` takes it.
pub(crate) fn bigint(value: impl Into<u64>) -> i64 {
    i64::try_from(value.into()).unwrap_or(i64::MAX)
}

/// A value of the domain as PostgreSQL's `integer` takes it.
pub(crate) fn integer(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Parses a status.
pub(crate) fn parsed<T: std::str::FromStr<Err = impl std::fmt::Display>>(text: &str) -> DbResult<T> {
    text.parse().map_err(DbError::unreadable)
}

/// An event's tenant at `column`, and its correlation id behind it.
pub(crate) fn trace(row: &Row, column: usize) -> DbResult<Trace> {
    Ok(Trace { tenant: row.try_get(column)?, correlation_id: row.try_get(column + 1)? })
}
