//! Encrypts secrets with another key, beside running servers: row by row, each in a transaction of its own. It runs as the
//! login itself, because no component may both read and write encrypted text.

use crate::{error::checked, options::SessionKind, pool::connect_once};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{REWRAP_BATCH, Rewrap, SEALED_TABLES, SealedSecret, ServerOptions, StoreResult};
use mysql_async::prelude::Queryable as _;

/// Encrypts every valid text again that another key has encrypted. Returns how many rows that were. The first error ends it;
/// the rows until then stay encrypted with the new key.
pub async fn rewrap(options: &ServerOptions, rewrap: Rewrap<'_>) -> StoreResult<u64> {
    let mut connection = connect_once(SessionKind::Login.configuration(options)?).await?;
    let mut moved = 0;
    for (table, key, expires) in SEALED_TABLES {
        let valid = if *expires { "(expires_at IS NULL OR expires_at > UTC_TIMESTAMP(6))" } else { "TRUE" };
        let select = format!(
            "/* rewrap.select */ SELECT {key}, key_id, sealed, subscription_id FROM {table} \
             WHERE key_id <> ? AND {key} > ? AND {valid} ORDER BY {key} LIMIT {REWRAP_BATCH}"
        );
        // A row that somebody has moved meanwhile is left alone.
        let update = format!(
            "/* rewrap.update */ UPDATE {table} SET key_id = ?, sealed = ? WHERE {key} = ? AND sealed = ?"
        );
        let mut after = 0_i64;
        loop {
            let rows: Vec<(i64, String, Vec<u8>, i64)> =
                checked(connection.exec(&select, (rewrap.key_id, after)).await)?;
            let Some((last, ..)) = rows.last() else { break };
            after = *last;
            for (id, key_id, sealed, subscription) in rows {
                let old = SealedSecret { key_id, sealed };
                let new = (rewrap.reseal)(SubscriptionId(subscription), &old)?;
                let values = (&new.key_id, &new.sealed, id, &old.sealed);
                checked(connection.exec_drop(&update, values).await)?;
                moved += connection.affected_rows();
            }
        }
    }
    checked(connection.disconnect().await)?;
    Ok(moved)
}
