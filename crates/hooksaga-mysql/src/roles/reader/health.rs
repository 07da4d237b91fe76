//! How a subscription's endpoint has been doing. This reads counters, never deliveries.

use crate::{
    error::{DbError, DbResult},
    roles::rows::{count, natural, take},
    time::SqlTime,
};
use hooksaga_saga::{ErrorCode, Latencies, SagaId, SubscriptionId};
use hooksaga_store::{Health, LastFailure};
use mysql_async::{Conn, Row, prelude::Queryable as _};

/// A lookup by primary key for each minute of the day: an index by subscription would cost every batch of results. The minutes
/// are the product of two short lists, since servers limit the depth of a recursion.
pub(crate) const DAY: &str = "/* reader.health */
WITH RECURSIVE hours (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM hours WHERE n < 23),
     minutes (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM minutes WHERE n < 59),
     day (minute) AS (
         SELECT CAST(DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%d %H:%i:00') AS DATETIME(6))
                - INTERVAL (60 * hours.n + minutes.n) MINUTE FROM hours CROSS JOIN minutes)
SELECT CAST(COALESCE(SUM(c.delivered), 0) AS SIGNED), CAST(COALESCE(SUM(c.failed), 0) AS SIGNED),
       CAST(COALESCE(SUM(c.dead_lettered), 0) AS SIGNED), CAST(COALESCE(MAX(c.slowest_ms), 0) AS SIGNED),
       CAST(COALESCE(SUM(c.ms_10), 0) AS SIGNED), CAST(COALESCE(SUM(c.ms_20), 0) AS SIGNED), CAST(COALESCE(SUM(c.ms_50), 0) AS SIGNED),
       CAST(COALESCE(SUM(c.ms_100), 0) AS SIGNED), CAST(COALESCE(SUM(c.ms_200), 0) AS SIGNED), CAST(COALESCE(SUM(c.ms_500), 0) AS SIGNED),
       CAST(COALESCE(SUM(c.ms_1000), 0) AS SIGNED), CAST(COALESCE(SUM(c.ms_2000), 0) AS SIGNED), CAST(COALESCE(SUM(c.ms_5000), 0) AS SIGNED),
       CAST(COALESCE(SUM(c.ms_10000), 0) AS SIGNED), CAST(COALESCE(SUM(c.ms_20000), 0) AS SIGNED), CAST(COALESCE(SUM(c.ms_more), 0) AS SIGNED)
FROM day STRAIGHT_JOIN delivery_counts c FORCE INDEX (PRIMARY) ON c.minute = day.minute AND c.subscription_id = ?";

/// Sagas that wait for a job, and jobs that wait for a worker or are parked. There are few waiting jobs in all: at most
/// [`Health::MOST_WAITING`] sagas are read, and twice as many jobs.
pub(crate) const WAITING: &str = "/* reader.waiting */
SELECT (SELECT COUNT(*) FROM (
            SELECT 1 FROM webhook_delivery_sagas FORCE INDEX (idx_saga_waiting)
            WHERE waiting_subscription_id = ? LIMIT 10000) s)
     + (SELECT COUNT(*) FROM (
            SELECT subscription_id FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
            WHERE pending_until >= '1000-01-01 00:00:00' LIMIT 20000) j WHERE j.subscription_id = ?)";

/// The counters have no response status: it is looked up in the attempts, of which a saga has few.
pub(crate) const LAST_FAILURE: &str = "/* reader.last_failure */
SELECT f.last_saga_id, f.last_error_code, f.last_at,
       (SELECT j.response_status FROM webhook_delivery_jobs j FORCE INDEX (uniq_job_saga_attempt)
        WHERE j.saga_id = f.last_saga_id AND j.error_code = f.last_error_code ORDER BY j.attempt_at DESC LIMIT 1)
FROM endpoint_failures f WHERE f.subscription_id = ?";

pub(super) async fn read(connection: &mut Conn, id: SubscriptionId) -> DbResult<Health> {
    let missing = || DbError::unreadable("no counts");
    let day: Option<Row> = connection.exec_first(DAY, (id.0,)).await?;
    let mut day = day.ok_or_else(missing)?;
    let waiting: Option<i64> = connection.exec_first(WAITING, (id.0, id.0)).await?;
    let failure: Option<Row> = connection.exec_first(LAST_FAILURE, (id.0,)).await?;
    let mut latencies = Latencies { slowest_ms: natural(take(&mut day, 3)?), ..Latencies::default() };
    for (range, column) in latencies.ranges.iter_mut().zip(4..) {
        *range = count(take(&mut day, column)?);
    }
    Ok(Health {
        delivered: count(take(&mut day, 0)?),
        failed: count(take(&mut day, 1)?),
        dead_lettered: count(take(&mut day, 2)?),
        latencies,
        waiting: count(waiting.ok_or_else(missing)?).min(Health::MOST_WAITING.into()),
        last_failure: failure.map(last_failure).transpose()?,
    })
}

fn last_failure(mut row: Row) -> DbResult<LastFailure> {
    let row = &mut row;
    Ok(LastFailure {
        saga_id: SagaId(take(row, 0)?),
        error_code: ErrorCode::from_stored(take(row, 1)?),
        at: take::<SqlTime>(row, 2)?.0,
        response_status: take::<Option<i64>>(row, 3)?.and_then(|status| u16::try_from(status).ok()),
    })
}
