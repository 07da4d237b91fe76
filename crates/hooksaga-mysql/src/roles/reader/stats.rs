//! How much waits where, and what ended when.

use crate::{
    error::{DbError, DbResult},
    roles::rows::{count, take},
    time::Time,
};
use hooksaga_saga::{SubscriptionId, Timestamp};
use hooksaga_store::{MinuteCount, QueueGauges, Stats, SubscriptionCount};
use mysql_async::{Conn, Row, prelude::Queryable as _};

/// Counts come from the ranges of indexes that hold only what is open: finished rows cost nothing. What is held, and
/// what has been due for longest, is looked up per subscription, by those indexes.
pub(crate) const GAUGES: &str = "/* reader.gauges */
SELECT
    (SELECT COUNT(*) FROM unrouted_events),
    (SELECT COUNT(*) FROM webhook_delivery_sagas FORCE INDEX (idx_saga_status_retry) WHERE status = 'Pending'),
    (SELECT COUNT(*) FROM webhook_delivery_sagas FORCE INDEX (idx_saga_status_retry)
     WHERE status = 'PendingRetry'),
    (SELECT CAST(COALESCE(SUM(
        (SELECT COUNT(*) FROM webhook_delivery_sagas w FORCE INDEX (idx_saga_waiting)
         WHERE w.waiting_subscription_id = sub.id)), 0) AS SIGNED)
     FROM subscriptions sub WHERE NOT (sub.active AND sub.verified))
    + (SELECT COUNT(*) FROM (
        SELECT subscription_id FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
        WHERE pending_until >= '1000-01-01 00:00:00'
        UNION ALL
        SELECT subscription_id FROM webhook_delivery_jobs FORCE INDEX (idx_job_leased)
        WHERE leased_until >= '1000-01-01 00:00:00'
        UNION ALL
        SELECT j.subscription_id FROM finished_jobs
        STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = finished_jobs.job_id
       ) open STRAIGHT_JOIN subscriptions held FORCE INDEX (PRIMARY) ON held.id = open.subscription_id
       WHERE NOT (held.active AND held.verified)),
    (SELECT COUNT(*) FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
     WHERE pending_until >= '1000-01-01 00:00:00'),
    (SELECT COUNT(*) FROM webhook_delivery_jobs FORCE INDEX (idx_job_leased)
     WHERE leased_until >= '1000-01-01 00:00:00'),
    (SELECT COUNT(*) FROM finished_jobs),
    (SELECT COUNT(*) FROM pending_dead_letters),
    (SELECT MIN((SELECT MIN(w.next_attempt_at) FROM webhook_delivery_sagas w FORCE INDEX (idx_saga_waiting)
                 WHERE w.waiting_subscription_id = sub.id))
     FROM subscriptions sub WHERE sub.active AND sub.verified),
    UTC_TIMESTAMP(6)";

const MINUTES: &str = "/* reader.minutes */
SELECT minute, CAST(SUM(delivered) AS SIGNED), CAST(SUM(failed) AS SIGNED), CAST(SUM(dead_lettered) AS SIGNED)
FROM delivery_counts WHERE minute > UTC_TIMESTAMP(6) - INTERVAL 3 HOUR
GROUP BY minute ORDER BY minute";

const SUBSCRIPTIONS: &str = "/* reader.subscription_counts */
SELECT subscription_id, CAST(SUM(delivered) AS SIGNED), CAST(SUM(failed) AS SIGNED),
       CAST(SUM(dead_lettered) AS SIGNED)
FROM delivery_counts WHERE minute > UTC_TIMESTAMP(6) - INTERVAL 24 HOUR
GROUP BY subscription_id ORDER BY subscription_id LIMIT 1000";

pub(super) async fn gauges(mut connection: Conn) -> DbResult<QueueGauges> {
    Ok(read(&mut connection).await?.1)
}

pub(super) async fn stats(mut connection: Conn) -> DbResult<Stats> {
    let (now, gauges) = read(&mut connection).await?;
    let minutes: Vec<(Time, i64, i64, i64)> = connection.exec(MINUTES, ()).await?;
    let subscriptions: Vec<(i64, i64, i64, i64)> = connection.exec(SUBSCRIPTIONS, ()).await?;
    let minute = |(minute, delivered, failed, dead): (Time, i64, i64, i64)| MinuteCount {
        minute: minute.0,
        delivered: count(delivered),
        failed: count(failed),
        dead_lettered: count(dead),
    };
    let subscription = |(id, delivered, failed, dead): (i64, i64, i64, i64)| SubscriptionCount {
        subscription_id: SubscriptionId(id),
        delivered: count(delivered),
        failed: count(failed),
        dead_lettered: count(dead),
    };
    Ok(Stats {
        now,
        gauges,
        minutes: minutes.into_iter().map(minute).collect(),
        subscriptions: subscriptions.into_iter().map(subscription).collect(),
    })
}

async fn read(connection: &mut Conn) -> DbResult<(Timestamp, QueueGauges)> {
    let row: Option<Row> = connection.exec_first(GAUGES, ()).await?;
    let mut row = row.ok_or_else(|| DbError::unreadable("no gauges"))?;
    let mut number = |column: usize| -> DbResult<u64> { Ok(count(take(&mut row, column)?)) };
    let mut gauges = QueueGauges {
        unrouted_events: number(0)?,
        pending_sagas: number(1)?,
        pending_retry_sagas: number(2)?,
        held_sagas: number(3)?,
        pending_jobs: number(4)?,
        leased_jobs: number(5)?,
        finished_jobs: number(6)?,
        pending_dead_letters: number(7)?,
        oldest_due_age_micros: 0,
    };
    let now = take::<Time>(&mut row, 9)?.0;
    if let Some(oldest) = take::<Option<Time>>(&mut row, 8)? {
        gauges.oldest_due_age_micros = u64::try_from(now.since(oldest.0).as_micros()).unwrap_or(u64::MAX);
    }
    Ok((now, gauges))
}
