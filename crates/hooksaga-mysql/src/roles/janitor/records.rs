//! Removes rows that belong to no event: ended redrives, audit records, counts, and expired keys.

use super::delete;
use crate::{
    error::DbResult,
    roles::batch::{Batch, Field},
    time::SqlTime,
};
use hooksaga_saga::Timestamp;
use hooksaga_store::{EXPIRED_KEYS_KEPT, MINUTES_KEPT, RemovedRecords};
use mysql_async::{Transaction, prelude::Queryable as _};
use std::time::Duration;

const OLD_REDRIVES: &str = "/* janitor.old_redrives */
SELECT id FROM redrives FORCE INDEX (idx_redrive_status)
WHERE status IN ('done', 'cancelled', 'failed') AND updated_at <= ? LIMIT ? FOR UPDATE SKIP LOCKED";

/// Of the oldest rows those that may be removed: ids are in the order of time, so no later rows are read.
const OLD_RECORDS: &str = "/* janitor.old_records */
SELECT id, at <= ? FROM audit_records FORCE INDEX (PRIMARY) ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED";

const OLD_HOURS: &str = "/* janitor.old_hours */
SELECT hour, subscription_id FROM delivery_hours FORCE INDEX (PRIMARY)
WHERE hour <= ? ORDER BY hour, subscription_id LIMIT ? FOR UPDATE SKIP LOCKED";

const EXPIRED_KEYS: &str = "/* janitor.expired_keys */
SELECT id FROM api_keys FORCE INDEX (idx_key_expiry)
WHERE expires_at <= ? ORDER BY expires_at LIMIT ? FOR UPDATE SKIP LOCKED";

const DELETE_KEYS: &str = "/* janitor.delete_keys */
DELETE k FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN api_keys k FORCE INDEX (PRIMARY) ON k.id = u.id";

const MARK: &str = "/* janitor.mark_records */
INSERT INTO removals (kind, subject_id)
SELECT ?, u.id FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS u";

const UNMARK: &str = "/* janitor.unmark_records */
DELETE r FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN removals r FORCE INDEX (PRIMARY) ON r.kind = ? AND r.subject_id = u.id";

const DELETE_REDRIVES: &str = "/* janitor.delete_redrives */
DELETE r FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN redrives r FORCE INDEX (PRIMARY) ON r.id = u.id";

const DELETE_RECORDS: &str = "/* janitor.delete_records */
DELETE a FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN audit_records a FORCE INDEX (PRIMARY) ON a.id = u.id";

const DELETE_HOURS: &str = "/* janitor.delete_hours */
DELETE h FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    hour DATETIME(6) PATH '$[0]', subscription_id BIGINT PATH '$[1]')) AS t) u
STRAIGHT_JOIN delivery_hours h FORCE INDEX (PRIMARY) ON h.hour = u.hour AND h.subscription_id = u.subscription_id";

pub(super) async fn remove(
    transaction: &mut Transaction<'_>,
    now: Timestamp,
    kept_for: Option<Duration>,
    limit: u32,
) -> DbResult<RemovedRecords> {
    let mut removed = RemovedRecords::default();
    let expired = SqlTime(now.before(EXPIRED_KEYS_KEPT));
    let keys: Vec<i64> = transaction.exec(EXPIRED_KEYS, (expired, limit)).await?;
    for document in Batch::ids(keys) {
        removed.keys += delete(transaction, DELETE_KEYS, &document).await?;
    }
    let Some(kept_for) = kept_for else { return Ok(removed) };
    let before = SqlTime(now.before(kept_for));
    let redrives: Vec<i64> = transaction.exec(OLD_REDRIVES, (before, limit)).await?;
    let records: Vec<(i64, bool)> = transaction.exec(OLD_RECORDS, (before, limit)).await?;
    let records = records.into_iter().filter(|(_, is_old)| *is_old).map(|(id, _)| id).collect();
    let hours_before = SqlTime(now.before(kept_for.max(MINUTES_KEPT)));
    let hours: Vec<(SqlTime, i64)> = transaction.exec(OLD_HOURS, (hours_before, limit)).await?;
    removed.redrives = listed(transaction, "redrive", DELETE_REDRIVES, redrives).await?;
    removed.audit_records = listed(transaction, "audit", DELETE_RECORDS, records).await?;
    for document in Batch::of(hours, |(hour, id)| [Field::At(hour.0), Field::Int(id)]) {
        removed.hours += delete(transaction, DELETE_HOURS, &document).await?;
    }
    Ok(removed)
}

/// Removes rows of a kind, and lists them in `removals` while it does.
async fn listed(
    transaction: &mut Transaction<'_>,
    kind: &str,
    sql: &str,
    mut ids: Vec<i64>,
) -> DbResult<u64> {
    ids.sort_unstable();
    let mut gone = 0;
    for document in Batch::ids(ids) {
        transaction.exec_drop(MARK, (kind, document.as_str())).await?;
        gone += delete(transaction, sql, &document).await?;
        transaction.exec_drop(UNMARK, (document.as_str(), kind)).await?;
    }
    Ok(gone)
}
