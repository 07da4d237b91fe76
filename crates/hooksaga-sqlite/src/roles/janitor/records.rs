//! Removes rows that belong to no event: ended redrives, audit records, counts, and expired keys.

use super::clock;
use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_store::{EXPIRED_KEYS_KEPT, MINUTES_KEPT, RemovedRecords};
use std::time::Duration;

const OLD_REDRIVES: &str = "/* janitor.old_redrives */
SELECT id FROM redrives INDEXED BY idx_redrive_status
 WHERE status IN ('done', 'cancelled', 'failed') AND updated_at <= ?1 LIMIT ?2";

/// Of the oldest rows those that may be removed: ids are in the order of time, so no later rows are read.
const OLD_RECORDS: &str = "/* janitor.old_records */
SELECT id FROM (SELECT id, at FROM audit_records ORDER BY id LIMIT ?2) WHERE at <= ?1";

const OLD_HOURS: &str = "/* janitor.old_hours */
SELECT hour, subscription_id FROM delivery_hours WHERE hour <= ?1 ORDER BY hour, subscription_id LIMIT ?2";

const EXPIRED_KEYS: &str = "/* janitor.expired_keys */
SELECT id FROM api_keys INDEXED BY idx_key_expiry WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2";

const DELETE_KEY: &str = "/* janitor.delete_key */ DELETE FROM api_keys WHERE id = ?1";

const MARK: &str = "/* janitor.mark_record */
INSERT INTO removals (kind, subject_id) VALUES (?1, ?2)";

const UNMARK: &str = "/* janitor.unmark_record */
DELETE FROM removals WHERE kind = ?1 AND subject_id = ?2";

const DELETE_REDRIVE: &str = "/* janitor.delete_redrive */ DELETE FROM redrives WHERE id = ?1";

const DELETE_RECORD: &str = "/* janitor.delete_record */ DELETE FROM audit_records WHERE id = ?1";

const DELETE_HOUR: &str = "/* janitor.delete_hour */
DELETE FROM delivery_hours WHERE hour = ?1 AND subscription_id = ?2";

/// Whether there is anything to remove.
pub(super) fn are_old(tx: &Tx<'_>, kept_for: Option<Duration>) -> DbResult<bool> {
    let now = clock(tx)?;
    if tx.prepare(EXPIRED_KEYS)?.exists((now.before(EXPIRED_KEYS_KEPT).as_micros(), 1))? {
        return Ok(true);
    }
    let Some(kept_for) = kept_for else { return Ok(false) };
    let before = now.before(kept_for).as_micros();
    for sql in [OLD_REDRIVES, OLD_RECORDS] {
        if tx.prepare(sql)?.exists((before, 1))? {
            return Ok(true);
        }
    }
    let hours_before = now.before(kept_for.max(MINUTES_KEPT)).as_micros();
    Ok(tx.prepare(OLD_HOURS)?.exists((hours_before, 1))?)
}

pub(super) fn remove(tx: &Tx<'_>, kept_for: Option<Duration>, limit: u32) -> DbResult<RemovedRecords> {
    let now = clock(tx)?;
    let expired = (now.before(EXPIRED_KEYS_KEPT).as_micros(), limit);
    let keys = rows::all(tx, EXPIRED_KEYS, expired, |row| row.get::<_, i64>(0))?;
    for key in &keys {
        tx.execute(DELETE_KEY, [key])?;
    }
    let keys = keys.len() as u64;
    let Some(kept_for) = kept_for else { return Ok(RemovedRecords { keys, ..RemovedRecords::default() }) };
    let before = now.before(kept_for).as_micros();
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
    let hours_before = now.before(kept_for.max(MINUTES_KEPT)).as_micros();
    let hours = rows::all(tx, OLD_HOURS, (hours_before, limit), |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
    })?;
    for key in &hours {
        tx.execute(DELETE_HOUR, *key)?;
    }
    Ok(RemovedRecords { redrives, audit_records, hours: hours.len() as u64, keys })
}
