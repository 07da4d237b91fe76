//! Removes rows that belong to no event: ended redrives, audit records, counts, and expired keys.

use crate::{error::DbResult, roles::rows::bigint, time::micros};
use deadpool_postgres::Transaction;
use hooksaga_store::{EXPIRED_KEYS_KEPT, MINUTES_KEPT, RemovedRecords};
use std::time::Duration;

/// One at a time: of two that list the same rows one would find them gone. (A lock on rows wants a right to change them.)
const TAKE_TURN: &str = "/* janitor.take_turn */ SELECT pg_try_advisory_xact_lock(7525345092373147)";

const OLD_REDRIVES: &str = "/* janitor.old_redrives */
SELECT id FROM redrives
WHERE status IN ('done', 'cancelled', 'failed') AND updated_at <= now() - $1::bigint * interval '1 microsecond'
LIMIT $2";

/// Of the oldest rows those that may be removed: ids are in the order of time, so no later rows are read.
const OLD_RECORDS: &str = "/* janitor.old_records */
SELECT id FROM (SELECT id, at FROM audit_records ORDER BY id LIMIT $2) r
WHERE at <= now() - $1::bigint * interval '1 microsecond'";

const MARK: &str = "/* janitor.mark_records */
INSERT INTO removals (kind, subject_id) SELECT $1::text, id FROM unnest($2::bigint[]) AS id ORDER BY id";

const UNMARK: &str = "/* janitor.unmark_records */
DELETE FROM removals WHERE kind = $1 AND subject_id = ANY ($2)";

const DELETE_REDRIVES: &str = "/* janitor.delete_redrives */ DELETE FROM redrives WHERE id = ANY ($1)";

const DELETE_RECORDS: &str = "/* janitor.delete_records */ DELETE FROM audit_records WHERE id = ANY ($1)";

const DELETE_KEYS: &str = "/* janitor.delete_keys */
DELETE FROM api_keys WHERE id = ANY (ARRAY(
    SELECT id FROM api_keys WHERE expires_at <= now() - $1::bigint * interval '1 microsecond'
    ORDER BY expires_at LIMIT $2))";

const DELETE_HOURS: &str = "/* janitor.delete_hours */
DELETE FROM delivery_hours h
USING (SELECT hour, subscription_id FROM delivery_hours WHERE hour <= now() - $1::bigint * interval '1 microsecond'
       ORDER BY hour, subscription_id LIMIT $2) old
WHERE h.hour = old.hour AND h.subscription_id = old.subscription_id";

pub(super) async fn remove(
    transaction: &Transaction<'_>,
    kept_for: Option<Duration>,
    limit: u32,
) -> DbResult<RemovedRecords> {
    let statement = transaction.prepare_cached(TAKE_TURN).await?;
    if !transaction.query_one(&statement, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(RemovedRecords::default());
    }
    let statement = transaction.prepare_cached(DELETE_KEYS).await?;
    let keys = transaction.execute(&statement, &[&micros(EXPIRED_KEYS_KEPT), &bigint(limit)]).await?;
    let Some(kept_for) = kept_for else {
        return Ok(RemovedRecords { keys, ..RemovedRecords::default() });
    };
    let redrives = listed(transaction, "redrive", [OLD_REDRIVES, DELETE_REDRIVES], kept_for, limit).await?;
    let audit_records = listed(transaction, "audit", [OLD_RECORDS, DELETE_RECORDS], kept_for, limit).await?;
    let statement = transaction.prepare_cached(DELETE_HOURS).await?;
    let hours_kept = micros(kept_for.max(MINUTES_KEPT));
    let hours = transaction.execute(&statement, &[&hours_kept, &bigint(limit)]).await?;
    Ok(RemovedRecords { redrives, audit_records, hours, keys })
}

/// Removes old rows of a kind, which have to be listed while they go.
async fn listed(
    transaction: &Transaction<'_>,
    kind: &str,
    [find, delete]: [&str; 2],
    kept_for: Duration,
    limit: u32,
) -> DbResult<u64> {
    let statement = transaction.prepare_cached(find).await?;
    let rows = transaction.query(&statement, &[&micros(kept_for), &bigint(limit)]).await?;
    if rows.is_empty() {
        return Ok(0);
    }
    let ids = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<DbResult<Vec<i64>>>()?;
    let statement = transaction.prepare_cached(MARK).await?;
    transaction.execute(&statement, &[&kind, &ids]).await?;
    let statement = transaction.prepare_cached(delete).await?;
    let gone = transaction.execute(&statement, &[&ids]).await?;
    let statement = transaction.prepare_cached(UNMARK).await?;
    transaction.execute(&statement, &[&kind, &ids]).await?;
    Ok(gone)
}
