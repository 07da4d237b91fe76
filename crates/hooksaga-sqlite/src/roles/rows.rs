//! From columns to domain types.

use crate::{error::DbResult, session::Tx};
use hooksaga_saga::{ErrorCode, Invalid, SecretId, SubscriptionId, Timestamp};
use hooksaga_store::{SealedSecret, StoredSecret, Trace};
use rusqlite::{Error, OptionalExtension, Params, Result, Row, types::Type};
use std::{str::FromStr, sync::Arc};

pub(super) fn time(row: &Row<'_>, index: usize) -> Result<Timestamp> {
    Ok(Timestamp::from_micros(row.get(index)?))
}

pub(super) fn optional_time(row: &Row<'_>, index: usize) -> Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(index)?.map(Timestamp::from_micros))
}

/// A number that a CHECK keeps at 0 or more.
pub(super) fn count(row: &Row<'_>, index: usize) -> Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(index)?).unwrap_or(0))
}

/// A status or the like, parsed without a copy of its text.
pub(super) fn parsed<T: FromStr>(row: &Row<'_>, index: usize) -> Result<T>
where
    T::Err: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let text = row.get_ref(index)?.as_str()?;
    text.parse().map_err(|error: T::Err| Error::FromSqlConversionFailure(index, Type::Text, error.into()))
}

pub(super) fn error_code(row: &Row<'_>, index: usize) -> Result<ErrorCode> {
    row.get(index).map(ErrorCode::from_stored)
}

pub(super) fn optional_error_code(row: &Row<'_>, index: usize) -> Result<Option<ErrorCode>> {
    Ok(row.get::<_, Option<String>>(index)?.map(ErrorCode::from_stored))
}

/// A name that was checked before it was stored, if there is one.
pub(super) fn optional_name<T: FromStr<Err = Invalid>>(row: &Row<'_>, index: usize) -> Result<Option<T>> {
    row.get_ref(index)?.as_str_or_null()?.map(|_| parsed(row, index)).transpose()
}

pub(super) fn shared_text(row: &Row<'_>, index: usize) -> Result<Arc<str>> {
    Ok(Arc::from(row.get_ref(index)?.as_str()?))
}

/// Every row of a query.
pub(super) fn all<T>(
    tx: &Tx<'_>,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> Result<T>,
) -> DbResult<Vec<T>> {
    Ok(tx.prepare(sql)?.query_map(params, read)?.collect::<Result<_>>()?)
}

/// `sql` selects id, key_id and sealed.
pub(super) fn secrets(tx: &Tx<'_>, sql: &str, id: SubscriptionId) -> DbResult<Vec<StoredSecret>> {
    all(tx, sql, (id.0, tx.now.as_micros()), |row| {
        Ok(StoredSecret {
            id: SecretId(row.get(0)?),
            secret: SealedSecret { key_id: row.get(1)?, sealed: row.get(2)? },
        })
    })
}

/// `sql` selects key_id and sealed.
pub(super) fn headers(tx: &Tx<'_>, sql: &str, id: SubscriptionId) -> DbResult<Option<SealedSecret>> {
    let read = |row: &Row<'_>| Ok(SealedSecret { key_id: row.get(0)?, sealed: row.get(1)? });
    Ok(tx.prepare(sql)?.query_row([id.0], read).optional()?)
}

/// An event's tenant at `index`, and its correlation id behind it.
pub(super) fn trace(row: &Row<'_>, index: usize) -> Result<Trace> {
    Ok(Trace { tenant: row.get(index)?, correlation_id: row.get(index + 1)? })
}
