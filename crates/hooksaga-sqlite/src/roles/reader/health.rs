//! How a subscription's endpoint has been doing. This reads counters, never deliveries.

use crate::{
    error::DbResult,
    roles::rows::{count, error_code, time},
    session::Tx,
};
use hooksaga_saga::{Latencies, SagaId, SubscriptionId};
use hooksaga_store::{Health, LastFailure};
use rusqlite::{OptionalExtension, Result, Row};

/// A probe of the primary key for each minute of the day: an index by subscription would cost every batch of results.
pub(super) const DAY: &str = "/* reader.health */
WITH RECURSIVE minutes (minute) AS (
    SELECT ?2 UNION ALL SELECT minute + 60000000 FROM minutes WHERE minute + 60000000 <= ?3)
SELECT coalesce(sum(c.delivered), 0), coalesce(sum(c.failed), 0), coalesce(sum(c.dead_lettered), 0),
       coalesce(max(c.slowest_ms), 0),
       coalesce(sum(c.ms_10), 0), coalesce(sum(c.ms_20), 0), coalesce(sum(c.ms_50), 0),
       coalesce(sum(c.ms_100), 0), coalesce(sum(c.ms_200), 0), coalesce(sum(c.ms_500), 0),
       coalesce(sum(c.ms_1000), 0), coalesce(sum(c.ms_2000), 0), coalesce(sum(c.ms_5000), 0),
       coalesce(sum(c.ms_10000), 0), coalesce(sum(c.ms_20000), 0), coalesce(sum(c.ms_more), 0)
  FROM minutes CROSS JOIN delivery_counts AS c ON c.minute = minutes.minute AND c.subscription_id = ?1";

/// Sagas that wait for a job, and jobs that wait for a worker or are parked. Jobs that wait are few, whoever's they are: of
/// the sagas `?2` are read at most, of the jobs twice as many.
pub(super) const WAITING: &str = "/* reader.waiting */
SELECT (SELECT count(*) FROM (
            SELECT 1 FROM webhook_delivery_sagas INDEXED BY idx_saga_waiting
             WHERE subscription_id = ?1 AND status IN ('Pending', 'PendingRetry') LIMIT ?2))
     + (SELECT count(*) FROM (
            SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_pending
             WHERE status = 'Pending' LIMIT 2 * ?2) AS j WHERE j.subscription_id = ?1)";

/// The counters have no response status: it is looked up in the attempts, of which a saga has few.
pub(super) const LAST_FAILURE: &str = "/* reader.last_failure */
SELECT f.last_saga_id, f.last_error_code, f.last_at,
       (SELECT j.response_status FROM webhook_delivery_jobs AS j INDEXED BY uniq_job_saga_attempt
         WHERE j.saga_id = f.last_saga_id AND j.error_code = f.last_error_code ORDER BY j.attempt_at DESC LIMIT 1)
  FROM endpoint_failures AS f WHERE f.subscription_id = ?1";

const MINUTE: i64 = 60_000_000;

pub(super) fn read(tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Health> {
    let now = tx.now.as_micros();
    let last = now - now.rem_euclid(MINUTE);
    let first = last - (24 * 60 - 1) * MINUTE;
    let mut health = tx.prepare(DAY)?.query_row((id.0, first, last), day)?;
    let waiting = tx.prepare(WAITING)?.query_row((id.0, Health::MOST_WAITING), |row| count(row, 0))?;
    health.waiting = waiting.min(Health::MOST_WAITING.into());
    health.last_failure = tx.prepare(LAST_FAILURE)?.query_row([id.0], last_failure).optional()?;
    Ok(health)
}

fn day(row: &Row<'_>) -> Result<Health> {
    let mut latencies = Latencies { slowest_ms: row.get(3)?, ..Latencies::default() };
    for (range, column) in latencies.ranges.iter_mut().zip(4..) {
        *range = count(row, column)?;
    }
    Ok(Health {
        delivered: count(row, 0)?,
        failed: count(row, 1)?,
        dead_lettered: count(row, 2)?,
        latencies,
        ..Health::default()
    })
}

fn last_failure(row: &Row<'_>) -> Result<LastFailure> {
    Ok(LastFailure {
        saga_id: SagaId(row.get(0)?),
        error_code: error_code(row, 1)?,
        at: time(row, 2)?,
        response_status: row.get(3)?,
    })
}
