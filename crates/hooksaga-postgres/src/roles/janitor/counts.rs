//! Sums the counts of minutes up to totals of minutes and counts of hours, and removes old ones.

use crate::{error::DbResult, roles::rows::bigint, time::SqlTime};
use deadpool_postgres::Transaction;
use hooksaga_saga::Timestamp;
use hooksaga_store::{CountProgress, MINUTE, TOTALS_KEPT};

/// Locks both rows. If they are locked, another janitor is working on the sums.
const PROGRESS: &str = "/* janitor.count_progress */
SELECT sums, below, after_subscription_id, now() FROM count_progress ORDER BY sums FOR UPDATE SKIP LOCKED";

const MOVE: &str = "/* janitor.move_count_progress */
UPDATE count_progress SET below = $2, after_subscription_id = $3 WHERE sums = $1";

pub(crate) const NEXT_MINUTE: &str = "/* janitor.next_minute */
SELECT minute FROM delivery_counts WHERE minute >= $1 AND minute < $2 ORDER BY minute LIMIT 1";

const FORGET_TOTALS: &str = "/* janitor.forget_totals */ DELETE FROM minute_totals WHERE minute = $1";

/// Of everybody, whose tenant is empty, and of each tenant.
pub(crate) const ADD_TOTALS: &str = "/* janitor.add_totals */
INSERT INTO minute_totals (minute, tenant, delivered, failed, dead_lettered)
SELECT $1::timestamptz, '', sum(delivered), sum(failed), sum(dead_lettered) FROM delivery_counts WHERE minute = $1
UNION ALL
SELECT $1::timestamptz, s.tenant, sum(c.delivered), sum(c.failed), sum(c.dead_lettered)
FROM delivery_counts c JOIN subscriptions s ON s.id = c.subscription_id
WHERE c.minute = $1 GROUP BY s.tenant";

/// A look into each minute of the hour, by its key.
pub(crate) const NEXT_SUBSCRIPTION: &str = "/* janitor.next_subscription */
SELECT min(c.subscription_id)
FROM generate_series($1::timestamptz, $1 + interval '59 minutes', interval '1 minute') AS m (minute)
CROSS JOIN LATERAL (
    SELECT subscription_id FROM delivery_counts
    WHERE minute = m.minute AND subscription_id > $2 ORDER BY subscription_id LIMIT 1
) c";

const FORGET_HOURS: &str = "/* janitor.forget_hours */
DELETE FROM delivery_hours WHERE hour = $1 AND subscription_id >= $2 AND subscription_id <= $3";

pub(crate) const ADD_HOURS: &str = "/* janitor.add_hours */
INSERT INTO delivery_hours (hour, subscription_id, delivered, failed, dead_lettered)
SELECT $1::timestamptz, c.subscription_id, sum(c.delivered), sum(c.failed), sum(c.dead_lettered)
FROM generate_series($1::timestamptz, $1 + interval '59 minutes', interval '1 minute') AS m (minute)
CROSS JOIN LATERAL (
    SELECT subscription_id, delivered, failed, dead_lettered FROM delivery_counts
    WHERE minute = m.minute AND subscription_id >= $2 AND subscription_id <= $3 OFFSET 0
) c
GROUP BY c.subscription_id ORDER BY c.subscription_id";

/// By place: nobody changes what is so old.
pub(crate) const DELETE_MINUTES: &str = "/* janitor.delete_minutes */
DELETE FROM delivery_counts WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM delivery_counts WHERE minute < $1 ORDER BY minute, subscription_id, shard LIMIT $2))";

pub(crate) const DELETE_TOTALS: &str = "/* janitor.delete_totals */
DELETE FROM minute_totals WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM minute_totals WHERE minute < $1 ORDER BY minute, tenant LIMIT $2))";

pub(super) async fn roll_up(transaction: &Transaction<'_>, limit: u32) -> DbResult<bool> {
    let statement = transaction.prepare_cached(PROGRESS).await?;
    let rows = transaction.query(&statement, &[]).await?;
    let [minutes, hours] = rows.as_slice() else { return Ok(false) };
    let mut progress = CountProgress {
        minutes_below: minutes.try_get::<_, SqlTime>(1)?.0,
        hours_below: hours.try_get::<_, SqlTime>(1)?.0,
        after_subscription_id: hours.try_get(2)?,
    };
    let now = minutes.try_get::<_, SqlTime>(3)?.0;
    if sum_minute(transaction, &mut progress, now).await?
        || sum_hour(transaction, &mut progress, limit).await?
    {
        return Ok(true);
    }
    let statement = transaction.prepare_cached(DELETE_MINUTES).await?;
    let kept_from = SqlTime(progress.minutes_kept_from(now));
    let minutes = transaction.execute(&statement, &[&kept_from, &bigint(limit)]).await?;
    let statement = transaction.prepare_cached(DELETE_TOTALS).await?;
    let kept_from = SqlTime(now.before(TOTALS_KEPT));
    let totals = transaction.execute(&statement, &[&kept_from, &bigint(limit)]).await?;
    Ok(minutes.max(totals) >= u64::from(limit))
}

/// Computes the totals of the next minute that has counts. Returns whether there was one.
async fn sum_minute(
    transaction: &Transaction<'_>,
    progress: &mut CountProgress,
    now: Timestamp,
) -> DbResult<bool> {
    let Some(open) = progress.open_minutes(now) else { return Ok(false) };
    let statement = transaction.prepare_cached(NEXT_MINUTE).await?;
    let next = transaction.query_opt(&statement, &[&SqlTime(open.start), &SqlTime(open.end)]).await?;
    progress.minutes_below = match &next {
        Some(row) => {
            let minute: SqlTime = row.try_get(0)?;
            for sql in [FORGET_TOTALS, ADD_TOTALS] {
                let statement = transaction.prepare_cached(sql).await?;
                transaction.execute(&statement, &[&minute]).await?;
            }
            minute.0.after(MINUTE)
        }
        None => open.end,
    };
    let statement = transaction.prepare_cached(MOVE).await?;
    transaction.execute(&statement, &[&1_i16, &SqlTime(progress.minutes_below), &0_i64]).await?;
    Ok(next.is_some())
}

/// Sums up some subscriptions of the next hour that has counts. Returns whether there was one.
async fn sum_hour(transaction: &Transaction<'_>, progress: &mut CountProgress, limit: u32) -> DbResult<bool> {
    let Some(open) = progress.open_hours() else { return Ok(false) };
    let statement = transaction.prepare_cached(NEXT_MINUTE).await?;
    let next = transaction.query_opt(&statement, &[&SqlTime(open.start), &SqlTime(open.end)]).await?;
    let minute = next.map(|row| row.try_get::<_, SqlTime>(0)).transpose()?;
    let hour = progress.go_on_to(minute.map(|time| time.0), &open);
    if let Some(hour) = hour {
        let statement = transaction.prepare_cached(NEXT_SUBSCRIPTION).await?;
        let row =
            transaction.query_one(&statement, &[&SqlTime(hour), &progress.after_subscription_id]).await?;
        if let Some((first, last)) = progress.take(row.try_get(0)?, limit) {
            for sql in [FORGET_HOURS, ADD_HOURS] {
                let statement = transaction.prepare_cached(sql).await?;
                transaction.execute(&statement, &[&SqlTime(hour), &first, &last]).await?;
            }
        }
    }
    let statement = transaction.prepare_cached(MOVE).await?;
    let values = (SqlTime(progress.hours_below), progress.after_subscription_id);
    transaction.execute(&statement, &[&2_i16, &values.0, &values.1]).await?;
    Ok(hour.is_some())
}
