//! Sums the counts of minutes up to totals of minutes and counts of hours, and removes old ones.

use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::Timestamp;
use hooksaga_store::{CountProgress, HOUR, MINUTE, TOTALS_KEPT, each};
use rusqlite::OptionalExtension;

const PROGRESS: &str = "/* janitor.count_progress */
SELECT (SELECT below FROM count_progress WHERE sums = 1), below, after_subscription_id
  FROM count_progress WHERE sums = 2";

const MOVE: &str = "/* janitor.move_count_progress */
UPDATE count_progress SET below = ?2, after_subscription_id = ?3 WHERE sums = ?1";

pub(super) const NEXT_MINUTE: &str = "/* janitor.next_minute */
SELECT minute FROM delivery_counts WHERE minute >= ?1 AND minute < ?2 ORDER BY minute LIMIT 1";

const FORGET_TOTALS: &str = "/* janitor.forget_totals */ DELETE FROM minute_totals WHERE minute = ?1";

const ADD_TOTAL: &str = "/* janitor.add_total */
INSERT INTO minute_totals (minute, tenant, delivered, failed, dead_lettered)
SELECT minute, '', sum(delivered), sum(failed), sum(dead_lettered) FROM delivery_counts WHERE minute = ?1 GROUP BY minute";

pub(super) const ADD_TENANTS: &str = "/* janitor.add_tenants */
INSERT INTO minute_totals (minute, tenant, delivered, failed, dead_lettered)
SELECT c.minute, s.tenant, sum(c.delivered), sum(c.failed), sum(c.dead_lettered)
  FROM delivery_counts AS c CROSS JOIN subscriptions AS s ON s.id = c.subscription_id
 WHERE c.minute = ?1 GROUP BY s.tenant";

pub(super) const NEXT_SUBSCRIPTION: &str = "/* janitor.next_subscription */
SELECT subscription_id FROM delivery_counts
 WHERE minute = ?1 AND subscription_id > ?2 ORDER BY subscription_id LIMIT 1";

const FORGET_HOURS: &str = "/* janitor.forget_hours */
DELETE FROM delivery_hours WHERE hour = ?1 AND subscription_id BETWEEN ?2 AND ?3";

pub(super) const ADD_HOURS: &str = "/* janitor.add_hours */
INSERT INTO delivery_hours (hour, subscription_id, delivered, failed, dead_lettered)
WITH RECURSIVE minutes (minute) AS (
    SELECT ?1 UNION ALL SELECT minute + 60000000 FROM minutes WHERE minute < ?1 + 59 * 60000000)
SELECT ?1, c.subscription_id, sum(c.delivered), sum(c.failed), sum(c.dead_lettered)
  FROM minutes CROSS JOIN delivery_counts AS c
    ON c.minute = minutes.minute AND c.subscription_id BETWEEN ?2 AND ?3
 GROUP BY c.subscription_id";

const OLD_MINUTES: &str = "/* janitor.old_minutes */
SELECT minute, subscription_id, shard FROM delivery_counts
 WHERE minute < ?1 ORDER BY minute, subscription_id, shard LIMIT ?2";

const DELETE_MINUTE: &str = "/* janitor.delete_minute */
DELETE FROM delivery_counts WHERE minute = ?1 AND subscription_id = ?2 AND shard = ?3";

const OLD_TOTALS: &str = "/* janitor.old_totals */
SELECT minute, tenant FROM minute_totals WHERE minute < ?1 ORDER BY minute, tenant LIMIT ?2";

const DELETE_TOTAL: &str = "/* janitor.delete_total */
DELETE FROM minute_totals WHERE minute = ?1 AND tenant = ?2";

fn progress(tx: &Tx<'_>) -> DbResult<CountProgress> {
    Ok(tx.prepare(PROGRESS)?.query_row([], |row| {
        Ok(CountProgress {
            minutes_below: rows::time(row, 0)?,
            hours_below: rows::time(row, 1)?,
            after_subscription_id: row.get(2)?,
        })
    })?)
}

/// Whether there is anything to do that is worth a write.
pub(super) fn are_due(tx: &Tx<'_>) -> DbResult<bool> {
    let progress = progress(tx)?;
    if next_minute(tx, &progress.minutes(tx.now))?.is_some() || !progress.hours().is_empty() {
        return Ok(true);
    }
    // Nothing was counted since the last sums: the hours move on with the next one.
    Ok(tx.prepare(OLD_MINUTES)?.exists((progress.minutes_kept_from(tx.now).as_micros(), 1))?
        || tx.prepare(OLD_TOTALS)?.exists((tx.now.before(TOTALS_KEPT).as_micros(), 1))?)
}

pub(super) fn roll_up(tx: &Tx<'_>, limit: u32) -> DbResult<bool> {
    let mut progress = progress(tx)?;
    if sum_minute(tx, &mut progress)? || sum_hour(tx, &mut progress, limit)? {
        return Ok(true);
    }
    let kept_from = progress.minutes_kept_from(tx.now).as_micros();
    let minutes = rows::all(tx, OLD_MINUTES, (kept_from, limit), |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
    })?;
    for key in &minutes {
        tx.execute(DELETE_MINUTE, *key)?;
    }
    let kept_from = tx.now.before(TOTALS_KEPT).as_micros();
    let totals = rows::all(tx, OLD_TOTALS, (kept_from, limit), |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
    })?;
    for (minute, tenant) in &totals {
        tx.execute(DELETE_TOTAL, (minute, tenant))?;
    }
    Ok(minutes.len().max(totals.len()) >= limit as usize)
}

fn next_minute(tx: &Tx<'_>, open: &std::ops::Range<Timestamp>) -> DbResult<Option<Timestamp>> {
    if open.is_empty() {
        return Ok(None);
    }
    let range = (open.start.as_micros(), open.end.as_micros());
    Ok(tx.prepare(NEXT_MINUTE)?.query_row(range, |row| rows::time(row, 0)).optional()?)
}

/// Computes the totals of the next minute that has counts. Returns whether there was one.
fn sum_minute(tx: &Tx<'_>, progress: &mut CountProgress) -> DbResult<bool> {
    let Some(open) = progress.open_minutes(tx.now) else { return Ok(false) };
    let next = next_minute(tx, &open)?;
    if let Some(minute) = next {
        for sql in [FORGET_TOTALS, ADD_TOTAL, ADD_TENANTS] {
            tx.execute(sql, [minute.as_micros()])?;
        }
    }
    progress.minutes_below = next.map_or(open.end, |minute| minute.after(MINUTE));
    tx.execute(MOVE, (1, progress.minutes_below.as_micros(), 0))?;
    Ok(next.is_some())
}

/// Sums up some subscriptions of the next hour that has counts. Returns whether there was one.
fn sum_hour(tx: &Tx<'_>, progress: &mut CountProgress, limit: u32) -> DbResult<bool> {
    let Some(open) = progress.open_hours() else { return Ok(false) };
    let hour = progress.go_on_to(next_minute(tx, &open)?, &open);
    if let Some(hour) = hour {
        let first = next_subscription(tx, hour, progress.after_subscription_id)?;
        if let Some((first, last)) = progress.take(first, limit) {
            for sql in [FORGET_HOURS, ADD_HOURS] {
                tx.execute(sql, (hour.as_micros(), first, last))?;
            }
        }
    }
    tx.execute(MOVE, (2, progress.hours_below.as_micros(), progress.after_subscription_id))?;
    Ok(hour.is_some())
}

/// The first subscription behind this one that has counts in the hour: a look into each of its minutes.
fn next_subscription(tx: &Tx<'_>, hour: Timestamp, after: i64) -> DbResult<Option<i64>> {
    let mut first: Option<i64> = None;
    let mut look = tx.prepare(NEXT_SUBSCRIPTION)?;
    for minute in each(&(hour..hour.after(HOUR)), MINUTE) {
        let found: Option<i64> = look.query_row((minute.as_micros(), after), |row| row.get(0)).optional()?;
        first = match (first, found) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
    Ok(first)
}
