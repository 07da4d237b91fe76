//! How much waits where, and what ended when. Nothing here reads finished rows.

use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{MinuteCount, QueueGauges, Stats, SubscriptionCount};

const QUEUES: &str = "/* api_reader: queues */
SELECT (SELECT count(*) FROM unrouted_events),
       (SELECT count(*) FROM finished_jobs),
       (SELECT count(*) FROM pending_dead_letters)";

/// INDEXED BY, in all of these: the partial index over just the rows that are counted.
const OPEN: &str = "/* api_reader: open */
SELECT (SELECT count(*) FROM webhook_delivery_sagas INDEXED BY idx_saga_waiting
         WHERE status IN ('Pending', 'PendingRetry'))
     - (SELECT count(*) FROM webhook_delivery_sagas INDEXED BY idx_saga_status_retry
         WHERE status = 'PendingRetry'),
       (SELECT count(*) FROM webhook_delivery_sagas INDEXED BY idx_saga_status_retry
         WHERE status = 'PendingRetry'),
       (SELECT count(*) FROM webhook_delivery_jobs INDEXED BY idx_job_pending WHERE status = 'Pending'),
       (SELECT count(*) FROM webhook_delivery_jobs INDEXED BY idx_job_leased WHERE status = 'Leased')";

const HELD: &str = "/* api_reader: held */
SELECT (SELECT coalesce(sum(
            (SELECT count(*) FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
              WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = s.id)), 0)
          FROM subscriptions AS s WHERE NOT (s.active AND s.verified))
     + (SELECT count(*) FROM (
            SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_pending
             WHERE status = 'Pending'
            UNION ALL
            SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_leased
             WHERE status = 'Leased'
            UNION ALL
            SELECT j.subscription_id FROM finished_jobs AS q CROSS JOIN webhook_delivery_jobs AS j ON j.id = q.job_id
          ) AS open CROSS JOIN subscriptions AS s ON s.id = open.subscription_id
         WHERE NOT (s.active AND s.verified))";

/// The earliest saga of each deliverable subscription: one index probe each.
const OLDEST_DUE: &str = "/* api_reader: oldest_due */
SELECT min((SELECT min(g.next_attempt_at) FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
             WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = s.id))
  FROM subscriptions AS s WHERE s.active AND s.verified";

const MINUTES: &str = "/* api_reader: minutes */
SELECT minute, sum(delivered), sum(failed), sum(dead_lettered)
  FROM delivery_counts WHERE minute > ?1 GROUP BY minute ORDER BY minute";

const SUBSCRIPTIONS: &str = "/* api_reader: subscription_counts */
SELECT subscription_id, sum(delivered), sum(failed), sum(dead_lettered)
  FROM delivery_counts WHERE minute > ?1 GROUP BY subscription_id ORDER BY subscription_id LIMIT 1000";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[QUEUES, OPEN, HELD, OLDEST_DUE];

const HOUR: i64 = 3_600_000_000;

pub(super) fn gauges(tx: &Tx<'_>) -> DbResult<QueueGauges> {
    let mut gauges = QueueGauges::default();
    let count = |row: &rusqlite::Row<'_>, index| Ok::<u64, rusqlite::Error>(unsigned(row.get(index)?));
    tx.prepare(QUEUES)?.query_row([], |row| {
        gauges.unrouted_events = count(row, 0)?;
        gauges.finished_jobs = count(row, 1)?;
        gauges.pending_dead_letters = count(row, 2)?;
        Ok(())
    })?;
    tx.prepare(OPEN)?.query_row([], |row| {
        gauges.pending_sagas = count(row, 0)?;
        gauges.pending_retry_sagas = count(row, 1)?;
        gauges.pending_jobs = count(row, 2)?;
        gauges.leased_jobs = count(row, 3)?;
        Ok(())
    })?;
    gauges.held_sagas = tx.prepare(HELD)?.query_row([], |row| count(row, 0))?;
    let oldest: Option<i64> = tx.prepare(OLDEST_DUE)?.query_row([], |row| row.get(0))?;
    gauges.oldest_due_age_micros = oldest.map_or(0, |oldest| unsigned(tx.now.as_micros() - oldest));
    Ok(gauges)
}

pub(super) fn stats(tx: &Tx<'_>) -> DbResult<Stats> {
    let now = tx.now.as_micros();
    let minutes = rows::all(tx, MINUTES, [now - 3 * HOUR], |row| {
        Ok(MinuteCount {
            minute: rows::time(row, 0)?,
            delivered: unsigned(row.get(1)?),
            failed: unsigned(row.get(2)?),
            dead_lettered: unsigned(row.get(3)?),
        })
    })?;
    let subscriptions = rows::all(tx, SUBSCRIPTIONS, [now - 24 * HOUR], |row| {
        Ok(SubscriptionCount {
            subscription_id: SubscriptionId(row.get(0)?),
            delivered: unsigned(row.get(1)?),
            failed: unsigned(row.get(2)?),
            dead_lettered: unsigned(row.get(3)?),
        })
    })?;
    Ok(Stats { now: tx.now, gauges: gauges(tx)?, minutes, subscriptions })
}

/// Counts are never negative; an age in the future counts as none.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
