//! How much waits at each stage, and how many deliveries ended per minute. Nothing here reads finished rows.

use super::counts;
#[cfg(feature = "test-support")]
use super::health;
use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_store::{LivingWorker, QueueGauges, Stats, TenantGauges, TenantScope, WORKER_GONE_AFTER};

const QUEUES: &str = "/* reader.queues */
SELECT (SELECT count(*) FROM unrouted_events),
       (SELECT count(*) FROM finished_jobs),
       (SELECT count(*) FROM pending_dead_letters)";

/// INDEXED BY, in all of these: the partial index over just the rows that are counted.
const OPEN: &str = "/* reader.open */
SELECT (SELECT count(*) FROM webhook_delivery_sagas INDEXED BY idx_saga_waiting
         WHERE status IN ('Pending', 'PendingRetry'))
     - (SELECT count(*) FROM webhook_delivery_sagas INDEXED BY idx_saga_status_retry
         WHERE status = 'PendingRetry'),
       (SELECT count(*) FROM webhook_delivery_sagas INDEXED BY idx_saga_status_retry
         WHERE status = 'PendingRetry'),
       (SELECT count(*) FROM webhook_delivery_jobs INDEXED BY idx_job_pending WHERE status = 'Pending'),
       (SELECT count(*) FROM webhook_delivery_jobs INDEXED BY idx_job_leased WHERE status = 'Leased')";

const HELD: &str = "/* reader.held */
SELECT (SELECT coalesce(sum(
            (SELECT count(*) FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
              WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = s.id)), 0)
          FROM subscriptions AS s WHERE NOT s.deliverable)
     + (SELECT count(*) FROM (
            SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_pending
             WHERE status = 'Pending'
            UNION ALL
            SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_leased
             WHERE status = 'Leased'
            UNION ALL
            SELECT j.subscription_id FROM finished_jobs AS q CROSS JOIN webhook_delivery_jobs AS j ON j.id = q.job_id
          ) AS open CROSS JOIN subscriptions AS s ON s.id = open.subscription_id
         WHERE NOT s.deliverable)";

/// The earliest saga of each deliverable subscription: one index probe each.
const OLDEST_DUE: &str = "/* reader.oldest_due */
SELECT min((SELECT min(g.next_attempt_at) FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
             WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = s.id))
  FROM subscriptions AS s WHERE s.deliverable";

/// The waiting sagas of a tenant's subscriptions, by their status and whether they are held. At most `?2` are read.
const WAITING_OF_TENANT: &str = "/* reader.waiting_of_tenant */
SELECT coalesce(sum(status = 'Pending'), 0), coalesce(sum(status = 'PendingRetry'), 0), coalesce(sum(is_held), 0)
  FROM (SELECT g.status AS status, NOT s.deliverable AS is_held
          FROM subscriptions AS s INDEXED BY idx_sub_tenant
         CROSS JOIN webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting ON g.subscription_id = s.id
         WHERE s.tenant = ?1 AND g.status IN ('Pending', 'PendingRetry') LIMIT ?2)";

/// The open jobs of a tenant's subscriptions, and how many of them are held. There are never more open jobs than the
/// workers were given.
const OPEN_OF_TENANT: &str = "/* reader.open_of_tenant */
SELECT count(*), coalesce(sum(is_held), 0)
  FROM (SELECT NOT s.deliverable AS is_held
          FROM (SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_pending
                 WHERE status = 'Pending'
                UNION ALL
                SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_leased
                 WHERE status = 'Leased'
                UNION ALL
                SELECT j.subscription_id FROM finished_jobs AS q
                 CROSS JOIN webhook_delivery_jobs AS j ON j.id = q.job_id) AS open
         CROSS JOIN subscriptions AS s ON s.id = open.subscription_id
         WHERE +s.tenant = ?1 LIMIT ?2)";

const OLDEST_DUE_OF_TENANT: &str = "/* reader.oldest_due_of_tenant */
SELECT min((SELECT min(g.next_attempt_at) FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
             WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = s.id))
  FROM (SELECT id FROM subscriptions INDEXED BY idx_sub_tenant
         WHERE tenant = ?1 AND deliverable LIMIT ?2) AS s";

const WORKERS: &str = "/* reader.workers */
SELECT id, slots, version, started_at, seen_at FROM workers WHERE abs(?1 - seen_at) < ?2 ORDER BY started_at, id LIMIT 1000";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[
    QUEUES,
    OPEN,
    HELD,
    OLDEST_DUE,
    health::DAY,
    health::WAITING,
    health::LAST_FAILURE,
    counts::TOTAL,
    counts::MINUTE_COUNT,
    counts::OF_HOUR,
    counts::OF_MINUTE,
    counts::OWN_OF_HOUR,
    counts::OWN_OF_MINUTE,
];

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
    gauges.oldest_due_age_micros = oldest_due(tx, None)?;
    Ok(gauges)
}

/// For how long the oldest saga that could run has been due.
fn oldest_due(tx: &Tx<'_>, tenant: Option<&str>) -> DbResult<u64> {
    let oldest: Option<i64> = match tenant {
        None => tx.prepare(OLDEST_DUE)?.query_row([], |row| row.get(0))?,
        Some(tenant) => {
            tx.prepare(OLDEST_DUE_OF_TENANT)?.query_row((tenant, TenantGauges::MOST), |row| row.get(0))?
        }
    };
    Ok(oldest.map_or(0, |oldest| unsigned(tx.now.as_micros() - oldest)))
}

/// Of one tenant. A count ends where it would be dear: the sagas that it reads are bounded.
pub(super) fn tenant_gauges(tx: &Tx<'_>, tenant: &str) -> DbResult<TenantGauges> {
    let most = u64::from(TenantGauges::MOST);
    let bounded = |count: i64| unsigned(count).min(most);
    let limits = (tenant, TenantGauges::MOST);
    // Both statuses together, so that neither hides the other before its own count ends.
    let (pending, retry, held) =
        tx.prepare(WAITING_OF_TENANT)?.query_row((tenant, 2 * TenantGauges::MOST), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?))
        })?;
    let (open, open_held) =
        tx.prepare(OPEN_OF_TENANT)?.query_row(limits, |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
    Ok(TenantGauges {
        pending_sagas: bounded(pending),
        pending_retry_sagas: bounded(retry),
        in_progress_sagas: bounded(open),
        held_sagas: bounded(held + open_held),
    })
}

pub(super) fn stats(tx: &Tx<'_>, scope: &TenantScope) -> DbResult<Stats> {
    let (minutes, day) = counts::minutes(tx, scope.tenant())?;
    let subscriptions = counts::subscriptions(tx, scope.tenant(), &day)?;
    Ok(Stats { now: tx.now, oldest_due_age_micros: oldest_due(tx, scope.tenant())?, minutes, subscriptions })
}

pub(super) fn in_all(tx: &Tx<'_>, scope: &TenantScope) -> DbResult<Stats> {
    let (minutes, _) = counts::minutes(tx, scope.tenant())?;
    let oldest_due_age_micros = oldest_due(tx, scope.tenant())?;
    Ok(Stats { now: tx.now, oldest_due_age_micros, minutes, subscriptions: Vec::new() })
}

pub(super) fn workers(tx: &Tx<'_>) -> DbResult<Vec<LivingWorker>> {
    let gone = i64::try_from(WORKER_GONE_AFTER.as_micros()).unwrap_or(i64::MAX);
    rows::all(tx, WORKERS, [tx.now.as_micros(), gone], |row| {
        Ok(LivingWorker {
            worker_id: row.get(0)?,
            slots: row.get(1)?,
            version: row.get(2)?,
            started_at: rows::time(row, 3)?,
            seen_at: rows::time(row, 4)?,
        })
    })
}

/// Counts are never negative; an age in the future counts as none.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
