//! Seals secrets with another key, beside running servers: a few rows per transaction. It runs as the login itself,
//! because no component may both read and write sealed text.

use crate::{error::checked, options::SessionKind, pool::connect_once};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{REWRAP_BATCH, Rewrap, SEALED_TABLES, SealedSecret, ServerOptions, StoreResult};

/// Encrypts every valid text again that another key has encrypted. Returns how many rows that were. The first error ends it;
/// the rows until then stay encrypted with the new key.
pub async fn rewrap(options: &ServerOptions, rewrap: Rewrap<'_>) -> StoreResult<u64> {
    let client = connect_once(&SessionKind::Login.configuration(options)?).await?;
    let mut moved = 0;
    for (table, key, expires) in SEALED_TABLES {
        let valid = if *expires { "(expires_at IS NULL OR expires_at > now())" } else { "TRUE" };
        let select = format!(
            "/* rewrap.select */ SELECT {key}, key_id, sealed, subscription_id FROM {table} \
             WHERE key_id <> $1 AND {key} > $2 AND {valid} ORDER BY {key} LIMIT {REWRAP_BATCH}"
        );
        // A row that somebody has moved meanwhile is left alone.
        let update = format!(
            "/* rewrap.update */ UPDATE {table} t SET key_id = $4, sealed = n.sealed \
             FROM unnest($1::bigint[], $2::bytea[], $3::bytea[]) AS n (id, old, sealed) \
             WHERE t.{key} = n.id AND t.sealed = n.old"
        );
        let mut after = i64::MIN;
        loop {
            let rows = checked(client.query(&select, &[&rewrap.key_id, &after]).await)?;
            let (mut ids, mut olds, mut news) = (Vec::new(), Vec::new(), Vec::new());
            for row in &rows {
                let old = SealedSecret { key_id: checked(row.try_get(1))?, sealed: checked(row.try_get(2))? };
                let subscription = SubscriptionId(checked(row.try_get(3))?);
                news.push((rewrap.reseal)(subscription, &old)?.sealed);
                olds.push(old.sealed);
                ids.push(checked(row.try_get::<_, i64>(0))?);
            }
            let Some(last) = ids.last() else { break };
            after = *last;
            moved += checked(client.execute(&update, &[&ids, &olds, &news, &rewrap.key_id]).await)?;
        }
    }
    Ok(moved)
}
