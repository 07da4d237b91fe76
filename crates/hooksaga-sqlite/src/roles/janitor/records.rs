//! What belongs to no event: ended redrives, audit records, and counts.

use super::clock;
use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_store::{MINUTES_KEPT, RemovedRecords};
use std::time::Duration;

const HOUR_MICROS: i64 = 3_600_000_000;

const OLD_REDRIVES: &str = "/* history_janitor: old_redrives */
SELECT id FROM redrives INDEXED BY idx_redrive_status
 WHERE status IN ('done', 'cancelled', 'failed') AND updated_at <= ?1 LIMIT ?2";

/// The oldest, of which those that are old: ids are in the order of time, so nothing behind them is looked at.
const OLD_RECORDS: &str = "/* history_janitor: old_records */
SELECT id FROM (SELECT id, at FROM audit_records ORDER BY id LIMIT ?2) WHERE at <= ?1";

const OLD_HOURS: &str = "/* history_janitor: old_hours */
SELECT hour, subscription_id FROM delivery_hours WHERE hour <= ?1 ORDER BY hour, subscription_id LIMIT ?2";

const MARK: &str = "/* history_janitor: mark_record */
INSERT INTO removals (kind, subject_id) VALUES (?1, ?2)";

const UNMARK: &str = "/* history_janitor: unmark_record */
DELETE FROM removals WHERE kind = ?1 AND subject_id = ?2";

const DELETE_REDRIVE: &str = "/* history_janitor: delete_redrive */ DELETE FROM redrives WHERE id = ?1";

const DELETE_RECORD: &str = "/* history_janitor: delete_record */ DELETE FROM audit_records WHERE id = ?1";

const DELETE_HOUR: &str = "/* history_janitor: delete_hour */
DELETE FROM delivery_hours WHERE hour = ?1 AND subscription_id = ?2";

const OLD_MINUTES: &str = "/* history_janitor: old_minutes */
SELECT minute, subscription_id, shard, delivered, failed, dead_lettered FROM delivery_counts
 WHERE minute < ?1 ORDER BY minute, subscription_id, shard LIMIT ?2";

const ADD_TO_HOUR: &str = "/* history_janitor: add_to_hour */
INSERT INTO delivery_hours (hour, subscription_id, delivered, failed, dead_lettered) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (hour, subscription_id) DO UPDATE
   SET delivered = delivered + excluded.delivered, failed = failed + excluded.failed,
       dead_lettered = dead_lettered + excluded.dead_lettered";

const DELETE_MINUTE: &str = "/* history_janitor: delete_minute */
DELETE FROM delivery_counts WHERE minute = ?1 AND subscription_id = ?2 AND shard = ?3";

/// Whether there is anything to remove.
pub(super) fn are_old(tx: &Tx<'_>, kept_for: Duration) -> DbResult<bool> {
    let before = clock(tx)?.before(kept_for).as_micros();
    for sql in [OLD_REDRIVES, OLD_RECORDS, OLD_HOURS] {
        if tx.prepare(sql)?.exists((before, 1))? {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn remove(tx: &Tx<'_>, kept_for: Duration, limit: u32) -> DbResult<RemovedRecords> {
    let before = clock(tx)?.before(kept_for).as_micros();
    let listed = |kind: &str, find: &str, delete: &str| -> DbResult<u64> {
        let ids = rows::all(tx, find, (before, limit), |row| row.get::<_, i64>(0))?;
        for id in &ids {
            tx.execute(MARK, (kind, id))?;
            tx.execute(delete, [id])?;
            tx.execute(UNMARK, (kind, id))?;
        }
        Ok(ids.len() as u64)
    };
    let redrives = listed("redrive", OLD_REDRIVES, DELETE_REDRIVE)?;
    let audit_records = listed("audit", OLD_RECORDS, DELETE_RECORD)?;
    let hours =
        rows::all(tx, OLD_HOURS, (before, limit), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
    for key in &hours {
        tx.execute(DELETE_HOUR, *key)?;
    }
    Ok(RemovedRecords { redrives, audit_records, hours: hours.len() as u64 })
}

pub(super) fn has_old_minutes(tx: &Tx<'_>) -> DbResult<bool> {
    Ok(tx.prepare(OLD_MINUTES)?.exists((tx.now.before(MINUTES_KEPT).as_micros(), 1))?)
}

pub(super) fn roll_up(tx: &Tx<'_>, limit: u32) -> DbResult<u64> {
    let before = tx.now.before(MINUTES_KEPT).as_micros();
    let minutes = rows::all(tx, OLD_MINUTES, (before, limit), |row| {
        let key: (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let counts: (i64, i64, i64) = (row.get(3)?, row.get(4)?, row.get(5)?);
        Ok((key, counts))
    })?;
    for ((minute, subscription, shard), (delivered, failed, dead)) in &minutes {
        let hour = minute - minute.rem_euclid(HOUR_MICROS);
        tx.execute(ADD_TO_HOUR, (hour, subscription, delivered, failed, dead))?;
        tx.execute(DELETE_MINUTE, (minute, subscription, shard))?;
    }
    Ok(minutes.len() as u64)
}
