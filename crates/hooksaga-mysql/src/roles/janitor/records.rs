//! What belongs to no event: ended redrives, audit records, and counts.

use super::delete;
use crate::{
    error::DbResult,
    roles::{
        batch::{Batch, Field},
        rows::rows,
    },
    time::Time,
};
use hooksaga_saga::Timestamp;
use hooksaga_store::{MINUTES_KEPT, RemovedRecords};
use mysql_async::{Transaction, prelude::Queryable as _};
use std::collections::BTreeMap;

const HOUR_MICROS: i64 = 3_600_000_000;

const OLD_REDRIVES: &str = "/* janitor.old_redrives */
SELECT id FROM redrives FORCE INDEX (idx_redrive_status)
WHERE status IN ('done', 'cancelled', 'failed') AND updated_at <= ? LIMIT ? FOR UPDATE SKIP LOCKED";

/// The oldest, of which those that are old: ids are in the order of time, so nothing behind them is looked at.
const OLD_RECORDS: &str = "/* janitor.old_records */
SELECT id, at <= ? FROM audit_records FORCE INDEX (PRIMARY) ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED";

const OLD_HOURS: &str = "/* janitor.old_hours */
SELECT hour, subscription_id FROM delivery_hours FORCE INDEX (PRIMARY)
WHERE hour <= ? ORDER BY hour, subscription_id LIMIT ? FOR UPDATE SKIP LOCKED";

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

const OLD_MINUTES: &str = "/* janitor.old_minutes */
SELECT minute, subscription_id, shard, delivered, failed, dead_lettered FROM delivery_counts FORCE INDEX (PRIMARY)
WHERE minute < ? ORDER BY minute, subscription_id, shard LIMIT ? FOR UPDATE SKIP LOCKED";

const ADD_TO_HOURS: &str = "/* janitor.add_to_hours */
INSERT INTO delivery_hours (hour, subscription_id, delivered, failed, dead_lettered)
SELECT u.hour, u.subscription_id, u.delivered, u.failed, u.dead_lettered
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    hour DATETIME(6) PATH '$[0]', subscription_id BIGINT PATH '$[1]', delivered BIGINT PATH '$[2]',
    failed BIGINT PATH '$[3]', dead_lettered BIGINT PATH '$[4]')) AS u
ON DUPLICATE KEY UPDATE delivery_hours.delivered = delivery_hours.delivered + VALUES(delivered),
    delivery_hours.failed = delivery_hours.failed + VALUES(failed),
    delivery_hours.dead_lettered = delivery_hours.dead_lettered + VALUES(dead_lettered)";

const DELETE_MINUTES: &str = "/* janitor.delete_minutes */
DELETE c FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    minute DATETIME(6) PATH '$[0]', subscription_id BIGINT PATH '$[1]', shard INT PATH '$[2]')) AS t) u
STRAIGHT_JOIN delivery_counts c FORCE INDEX (PRIMARY)
    ON c.minute = u.minute AND c.subscription_id = u.subscription_id AND c.shard = u.shard";

pub(super) async fn remove(
    transaction: &mut Transaction<'_>,
    before: Time,
    limit: u32,
) -> DbResult<RemovedRecords> {
    let redrives: Vec<i64> = transaction.exec(OLD_REDRIVES, (before, limit)).await?;
    let records: Vec<(i64, bool)> = transaction.exec(OLD_RECORDS, (before, limit)).await?;
    let records = records.into_iter().filter(|(_, is_old)| *is_old).map(|(id, _)| id).collect();
    let hours: Vec<(Time, i64)> = transaction.exec(OLD_HOURS, (before, limit)).await?;
    let mut removed = RemovedRecords {
        redrives: listed(transaction, "redrive", DELETE_REDRIVES, redrives).await?,
        audit_records: listed(transaction, "audit", DELETE_RECORDS, records).await?,
        hours: 0,
    };
    for document in Batch::of(hours, |(hour, id)| [Field::At(hour.0), Field::Int(id)]) {
        removed.hours += delete(transaction, DELETE_HOURS, &document).await?;
    }
    Ok(removed)
}

/// Removes rows of a kind, which have to be listed while they go.
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

pub(super) async fn roll_up(transaction: &mut Transaction<'_>, now: Timestamp, limit: u32) -> DbResult<u64> {
    let before = Time(now.before(MINUTES_KEPT));
    type Minute = (Time, i64, i64, i64, i64, i64);
    let minutes: Vec<Minute> = transaction.exec(OLD_MINUTES, (before, limit)).await?;
    let mut hours: BTreeMap<(i64, i64), [i64; 3]> = BTreeMap::new();
    for (minute, subscription, _, delivered, failed, dead) in &minutes {
        let micros = minute.0.as_micros();
        let sums = hours.entry((micros - micros.rem_euclid(HOUR_MICROS), *subscription)).or_default();
        for (sum, more) in sums.iter_mut().zip([delivered, failed, dead]) {
            *sum = sum.saturating_add(*more);
        }
    }
    let added = Batch::of(hours, |((hour, subscription), [delivered, failed, dead])| {
        let hour = Field::At(Timestamp::from_micros(hour));
        [hour, Field::Int(subscription), Field::Int(delivered), Field::Int(failed), Field::Int(dead)]
    });
    for document in added {
        transaction.exec_drop(ADD_TO_HOURS, (document,)).await?;
    }
    let key = |minute: &Minute| [Field::At(minute.0.0), Field::Int(minute.1), Field::Int(minute.2)];
    for document in Batch::of(&minutes, key) {
        delete(transaction, DELETE_MINUTES, &document).await?;
    }
    Ok(rows(minutes.len()))
}
