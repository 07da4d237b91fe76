//! Sums the counts of minutes up to totals of minutes and counts of hours, and removes old ones.

use crate::{error::DbResult, time::SqlTime};
use hooksaga_saga::Timestamp;
use hooksaga_store::{CountProgress, HOUR, MINUTE, TOTALS_KEPT, each};
use mysql_async::{Transaction, prelude::Queryable as _};
use std::ops::Range;

/// Locks both rows. If they are locked, another janitor is working on the sums.
const PROGRESS: &str = "/* janitor.count_progress */
SELECT below, after_subscription_id FROM count_progress ORDER BY sums FOR UPDATE SKIP LOCKED";

const MOVE: &str = "/* janitor.move_count_progress */
UPDATE count_progress SET below = ?, after_subscription_id = ? WHERE sums = ?";

pub(crate) const NEXT_MINUTE: &str = "/* janitor.next_minute */
SELECT minute FROM delivery_counts FORCE INDEX (PRIMARY) WHERE minute >= ? AND minute < ? ORDER BY minute LIMIT 1";

const FORGET_TOTALS: &str = "/* janitor.forget_totals */ DELETE FROM minute_totals WHERE minute = ?";

const ADD_TOTAL: &str = "/* janitor.add_total */
INSERT INTO minute_totals (minute, tenant, delivered, failed, dead_lettered)
SELECT minute, '', SUM(delivered), SUM(failed), SUM(dead_lettered)
FROM delivery_counts FORCE INDEX (PRIMARY) WHERE minute = ? GROUP BY minute";

pub(crate) const ADD_TENANTS: &str = "/* janitor.add_tenants */
INSERT INTO minute_totals (minute, tenant, delivered, failed, dead_lettered)
SELECT c.minute, s.tenant, SUM(c.delivered), SUM(c.failed), SUM(c.dead_lettered)
FROM delivery_counts c FORCE INDEX (PRIMARY)
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = c.subscription_id
WHERE c.minute = ? GROUP BY c.minute, s.tenant";

const FORGET_HOURS: &str = "/* janitor.forget_hours */
DELETE FROM delivery_hours WHERE hour = ? AND subscription_id BETWEEN ? AND ?";

const OLD_MINUTES: &str = "/* janitor.old_minutes */
DELETE FROM delivery_counts WHERE minute < ? ORDER BY minute, subscription_id, shard LIMIT ?";

const OLD_TOTALS: &str = "/* janitor.old_totals */
DELETE FROM minute_totals WHERE minute < ? ORDER BY minute, tenant LIMIT ?";

/// The first subscription after the given one that has counts in the hour: one lookup by key for each minute.
pub(crate) fn next_subscription(hour: Timestamp, after: i64) -> String {
    let looks: Vec<String> = minutes_of(hour)
        .map(|minute| {
            format!(
                "(SELECT subscription_id FROM delivery_counts FORCE INDEX (PRIMARY) \
                 WHERE minute = {} AND subscription_id > {after} ORDER BY subscription_id LIMIT 1)",
                minute.literal()
            )
        })
        .collect();
    format!(
        "/* janitor.next_subscription */ SELECT MIN(subscription_id) FROM ({}) c",
        looks.join(" UNION ALL ")
    )
}

/// The counts of an hour of subscriptions in a range of ids.
pub(crate) fn add_hours(hour: Timestamp, first: i64, last: i64) -> String {
    let minutes: Vec<String> = minutes_of(hour).map(SqlTime::literal).collect();
    format!(
        "/* janitor.add_hours */ INSERT INTO delivery_hours (hour, subscription_id, delivered, failed, dead_lettered) \
         SELECT {}, subscription_id, SUM(delivered), SUM(failed), SUM(dead_lettered) \
         FROM delivery_counts FORCE INDEX (PRIMARY) \
         WHERE minute IN ({}) AND subscription_id BETWEEN {first} AND {last} GROUP BY subscription_id",
        SqlTime(hour).literal(),
        minutes.join(", ")
    )
}

fn minutes_of(hour: Timestamp) -> impl Iterator<Item = SqlTime> {
    each(&(hour..hour.after(HOUR)), MINUTE).map(SqlTime)
}

pub(super) async fn roll_up(transaction: &mut Transaction<'_>, now: Timestamp, limit: u32) -> DbResult<bool> {
    let rows: Vec<(SqlTime, i64)> = transaction.exec(PROGRESS, ()).await?;
    let [(minutes_below, _), (hours_below, after)] = rows.as_slice() else { return Ok(false) };
    let mut progress = CountProgress {
        minutes_below: minutes_below.0,
        hours_below: hours_below.0,
        after_subscription_id: *after,
    };
    if sum_minute(transaction, &mut progress, now).await?
        || sum_hour(transaction, &mut progress, limit).await?
    {
        return Ok(true);
    }
    transaction.exec_drop(OLD_MINUTES, (SqlTime(progress.minutes_kept_from(now)), limit)).await?;
    let minutes = transaction.affected_rows();
    transaction.exec_drop(OLD_TOTALS, (SqlTime(now.before(TOTALS_KEPT)), limit)).await?;
    Ok(minutes.max(transaction.affected_rows()) >= u64::from(limit))
}

async fn next_minute(
    transaction: &mut Transaction<'_>,
    open: &Range<Timestamp>,
) -> DbResult<Option<Timestamp>> {
    let next: Option<SqlTime> =
        transaction.exec_first(NEXT_MINUTE, (SqlTime(open.start), SqlTime(open.end))).await?;
    Ok(next.map(|time| time.0))
}

/// Computes the totals of the next minute that has counts. Returns whether there was one.
async fn sum_minute(
    transaction: &mut Transaction<'_>,
    progress: &mut CountProgress,
    now: Timestamp,
) -> DbResult<bool> {
    let Some(open) = progress.open_minutes(now) else { return Ok(false) };
    let next = next_minute(transaction, &open).await?;
    if let Some(minute) = next {
        for sql in [FORGET_TOTALS, ADD_TOTAL, ADD_TENANTS] {
            transaction.exec_drop(sql, (SqlTime(minute),)).await?;
        }
    }
    progress.minutes_below = next.map_or(open.end, |minute| minute.after(MINUTE));
    transaction.exec_drop(MOVE, (SqlTime(progress.minutes_below), 0, 1)).await?;
    Ok(next.is_some())
}

/// Sums up some subscriptions of the next hour that has counts. Returns whether there was one.
async fn sum_hour(
    transaction: &mut Transaction<'_>,
    progress: &mut CountProgress,
    limit: u32,
) -> DbResult<bool> {
    let Some(open) = progress.open_hours() else { return Ok(false) };
    let hour = progress.go_on_to(next_minute(transaction, &open).await?, &open);
    if let Some(hour) = hour {
        let next = next_subscription(hour, progress.after_subscription_id);
        let first: Option<Option<i64>> = transaction.query_first(next).await?;
        if let Some((first, last)) = progress.take(first.flatten(), limit) {
            transaction.exec_drop(FORGET_HOURS, (SqlTime(hour), first, last)).await?;
            transaction.query_drop(add_hours(hour, first, last)).await?;
        }
    }
    let values = (SqlTime(progress.hours_below), progress.after_subscription_id, 2);
    transaction.exec_drop(MOVE, values).await?;
    Ok(hour.is_some())
}
