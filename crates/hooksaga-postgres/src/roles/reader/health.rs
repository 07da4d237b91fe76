//! How a subscription's endpoint has been doing. This reads counters, never deliveries.

use crate::{
    error::DbResult,
    roles::rows::{bigint, count, natural},
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_saga::{ErrorCode, Latencies, SagaId, SubscriptionId};
use hooksaga_store::{Health, LastFailure};
use tokio_postgres::Row;

/// A probe of the primary key for each minute of the day: an index by subscription would cost every batch of results.
pub(crate) const DAY: &str = "/* reader.health */
SELECT coalesce(sum(c.delivered), 0)::bigint, coalesce(sum(c.failed), 0)::bigint,
       coalesce(sum(c.dead_lettered), 0)::bigint, coalesce(max(c.slowest_ms), 0),
       coalesce(sum(c.ms_10), 0), coalesce(sum(c.ms_20), 0), coalesce(sum(c.ms_50), 0),
       coalesce(sum(c.ms_100), 0), coalesce(sum(c.ms_200), 0), coalesce(sum(c.ms_500), 0),
       coalesce(sum(c.ms_1000), 0), coalesce(sum(c.ms_2000), 0), coalesce(sum(c.ms_5000), 0),
       coalesce(sum(c.ms_10000), 0), coalesce(sum(c.ms_20000), 0), coalesce(sum(c.ms_more), 0)
FROM generate_series(date_trunc('minute', now(), 'UTC') - interval '1439 minutes',
                     date_trunc('minute', now(), 'UTC'), interval '1 minute') AS m (minute)
CROSS JOIN LATERAL (
    SELECT * FROM delivery_counts WHERE minute = m.minute AND subscription_id = $1 OFFSET 0
) c";

/// Sagas that wait for a job, and jobs that wait for a worker or are parked. Jobs that wait are few, whoever's they are: of
/// the sagas `$2` are read at most, of the jobs twice as many.
pub(crate) const WAITING: &str = "/* reader.waiting */
SELECT (SELECT count(*) FROM (
            SELECT FROM webhook_delivery_sagas
            WHERE subscription_id = $1 AND status IN ('Pending', 'PendingRetry')
            ORDER BY next_attempt_at LIMIT $2::bigint) s)
     + (SELECT count(*) FROM (
            SELECT subscription_id FROM webhook_delivery_jobs WHERE status = 'Pending'
            ORDER BY lease_until LIMIT 2 * $2::bigint) j WHERE j.subscription_id = $1)";

/// The counters have no response status: it is looked up in the attempts, of which a saga has few.
pub(crate) const LAST_FAILURE: &str = "/* reader.last_failure */
SELECT f.last_saga_id, f.last_error_code, f.last_at,
       (SELECT j.response_status FROM webhook_delivery_jobs j
        WHERE j.saga_id = f.last_saga_id AND j.error_code = f.last_error_code ORDER BY j.attempt_at DESC LIMIT 1)
FROM endpoint_failures f WHERE f.subscription_id = $1";

pub(super) async fn read(client: &Client, id: SubscriptionId) -> DbResult<Health> {
    let (day, waiting, failure) = tokio::try_join!(
        client.prepare_cached(DAY),
        client.prepare_cached(WAITING),
        client.prepare_cached(LAST_FAILURE),
    )?;
    let most = bigint(Health::MOST_WAITING);
    let (day, waiting, failure) = tokio::try_join!(
        async { client.query_one(&day, &[&id.0]).await },
        async { client.query_one(&waiting, &[&id.0, &most]).await },
        async { client.query_opt(&failure, &[&id.0]).await },
    )?;
    let number = |column: usize| -> DbResult<u64> { Ok(count(day.try_get(column)?)) };
    let mut latencies = Latencies { slowest_ms: natural(day.try_get(3)?), ..Latencies::default() };
    for (range, column) in latencies.ranges.iter_mut().zip(4..) {
        *range = number(column)?;
    }
    Ok(Health {
        delivered: number(0)?,
        failed: number(1)?,
        dead_lettered: number(2)?,
        latencies,
        waiting: count(waiting.try_get(0)?).min(Health::MOST_WAITING.into()),
        last_failure: failure.as_ref().map(last_failure).transpose()?,
    })
}

fn last_failure(row: &Row) -> DbResult<LastFailure> {
    Ok(LastFailure {
        saga_id: SagaId(row.try_get(0)?),
        error_code: ErrorCode::from_stored(row.try_get(1)?),
        at: row.try_get::<_, SqlTime>(2)?.0,
        response_status: row.try_get::<_, Option<i32>>(3)?.and_then(|status| u16::try_from(status).ok()),
    })
}
