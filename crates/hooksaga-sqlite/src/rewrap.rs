//! Seals secrets with another key, beside a running server: a few rows per transaction.

use crate::{error::store_error, location::Location, schema, session::connect, time};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{REWRAP_BATCH, Rewrap, SEALED_TABLES, SealedSecret, StoreResult};
use rusqlite::{Connection, TransactionBehavior};
use std::path::Path;

/// Seals everything valid that another key has sealed; how many rows that were.
///
/// # Errors
/// As [`open_keys`](crate::open_keys), and whatever sealing fails with: what was moved until then stays so.
pub fn rewrap(path: &Path, rewrap: Rewrap<'_>) -> StoreResult<u64> {
    let location = Location::check(path)?;
    schema::ensure_current(&location)?;
    let mut connection = connect(location.path())?;
    let mut moved = 0;
    for (table, key, expires) in SEALED_TABLES {
        let valid = match expires {
            true => format!("(expires_at IS NULL OR expires_at > {})", time::now().as_micros()),
            false => "TRUE".to_owned(),
        };
        loop {
            let rows = step(&mut connection, table, key, &valid, rewrap)?;
            moved += rows;
            if rows == 0 {
                break;
            }
        }
    }
    Ok(moved)
}

/// One transaction; how many rows it moved. Rows of the new key do not match any more, so that it gets on.
fn step(
    connection: &mut Connection,
    table: &str,
    key: &str,
    valid: &str,
    rewrap: Rewrap<'_>,
) -> StoreResult<u64> {
    let failed = |error: rusqlite::Error| store_error(&error);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let mut moved = 0;
    let rows: Vec<(i64, SubscriptionId, SealedSecret)> = {
        let sql = format!(
            "SELECT {key}, subscription_id, key_id, sealed FROM {table} WHERE key_id <> ?1 AND {valid} \
             ORDER BY {key} LIMIT {REWRAP_BATCH}"
        );
        let mut statement = transaction.prepare(&sql).map_err(failed)?;
        let rows = statement.query_map([rewrap.key_id], |row| {
            let sealed = SealedSecret { key_id: row.get(2)?, sealed: row.get(3)? };
            Ok((row.get(0)?, SubscriptionId(row.get(1)?), sealed))
        });
        rows.and_then(Iterator::collect).map_err(failed)?
    };
    for (id, subscription, sealed) in rows {
        let new = (rewrap.reseal)(subscription, &sealed)?;
        let sql = format!("UPDATE {table} SET key_id = ?2, sealed = ?3 WHERE {key} = ?1");
        let changed = transaction.execute(&sql, (id, &new.key_id, &new.sealed)).map_err(failed)?;
        moved += changed as u64;
    }
    transaction.commit().map_err(failed)?;
    Ok(moved)
}
