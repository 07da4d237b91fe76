//! How much waits at each stage, and how many deliveries ended per minute.

use super::counts;
use crate::{
    error::{DbError, DbResult},
    roles::rows::{count, natural, take},
    time::{SqlTime, micros},
};
use hooksaga_saga::Timestamp;
use hooksaga_store::{LivingWorker, QueueGauges, Stats, TenantGauges, TenantScope, WORKER_GONE_AFTER};
use mysql_async::{Conn, Row, prelude::Queryable as _};

/// Counts read ranges of indexes that have open rows only: finished rows cost nothing. Held rows are looked up per
/// subscription, by those indexes.
pub(crate) const GAUGES: &str = "/* reader.gauges */
SELECT
    (SELECT COUNT(*) FROM unrouted_events),
    (SELECT COUNT(*) FROM webhook_delivery_sagas FORCE INDEX (idx_saga_status_retry) WHERE status = 'Pending'),
    (SELECT COUNT(*) FROM webhook_delivery_sagas FORCE INDEX (idx_saga_status_retry)
     WHERE status = 'PendingRetry'),
    (SELECT CAST(COALESCE(SUM(
        (SELECT COUNT(*) FROM webhook_delivery_sagas w FORCE INDEX (idx_saga_waiting)
         WHERE w.waiting_subscription_id = sub.id)), 0) AS SIGNED)
     FROM subscriptions sub WHERE NOT sub.deliverable)
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
       WHERE NOT held.deliverable),
    (SELECT COUNT(*) FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
     WHERE pending_until >= '1000-01-01 00:00:00'),
    (SELECT COUNT(*) FROM webhook_delivery_jobs FORCE INDEX (idx_job_leased)
     WHERE leased_until >= '1000-01-01 00:00:00'),
    (SELECT COUNT(*) FROM finished_jobs),
    (SELECT COUNT(*) FROM pending_dead_letters)";

/// The earliest saga of each subscription is one lookup.
pub(crate) const OLDEST_DUE: &str = "/* reader.oldest_due */
SELECT UTC_TIMESTAMP(6),
       MIN((SELECT MIN(w.next_attempt_at) FROM webhook_delivery_sagas w FORCE INDEX (idx_saga_waiting)
            WHERE w.waiting_subscription_id = sub.id))
FROM subscriptions sub WHERE sub.deliverable";

/// One tenant's waiting sagas, by its subscriptions, counted up to twice [`TenantGauges::MOST`]; and open jobs, of which there
/// are never more than the workers have slots for, apart from those of paused subscriptions.
pub(crate) const TENANT_WAITING: &str = "/* reader.tenant_waiting */
SELECT CAST(COALESCE(SUM(w.status = 'Pending'), 0) AS SIGNED),
       CAST(COALESCE(SUM(w.status = 'PendingRetry'), 0) AS SIGNED),
       CAST(COALESCE(SUM(NOT w.deliverable), 0) AS SIGNED)
FROM (SELECT s.status, sub.deliverable
      FROM subscriptions sub FORCE INDEX (idx_sub_tenant)
      STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (idx_saga_waiting) ON s.waiting_subscription_id = sub.id
      WHERE sub.tenant = ? LIMIT 20000) w";

pub(crate) const TENANT_OPEN: &str = "/* reader.tenant_open */
SELECT COUNT(*), CAST(COALESCE(SUM(NOT o.deliverable), 0) AS SIGNED)
FROM (SELECT sub.deliverable FROM (
        SELECT subscription_id FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
        WHERE pending_until >= '1000-01-01 00:00:00'
        UNION ALL
        SELECT subscription_id FROM webhook_delivery_jobs FORCE INDEX (idx_job_leased)
        WHERE leased_until >= '1000-01-01 00:00:00'
        UNION ALL
        SELECT j.subscription_id FROM finished_jobs
        STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = finished_jobs.job_id
      ) open STRAIGHT_JOIN subscriptions sub FORCE INDEX (PRIMARY) ON sub.id = open.subscription_id
      WHERE sub.tenant = ? LIMIT 10000) o";

const TENANT_OLDEST_DUE: &str = "/* reader.tenant_oldest_due */
SELECT UTC_TIMESTAMP(6),
       MIN((SELECT MIN(w.next_attempt_at) FROM webhook_delivery_sagas w FORCE INDEX (idx_saga_waiting)
            WHERE w.waiting_subscription_id = sub.id))
FROM subscriptions sub FORCE INDEX (idx_sub_tenant) WHERE sub.tenant = ? AND sub.deliverable";

const WORKERS: &str = "/* reader.workers */
SELECT id, slots, version, started_at, seen_at FROM workers
WHERE ABS(TIMESTAMPDIFF(MICROSECOND, seen_at, UTC_TIMESTAMP(6))) <= ? ORDER BY started_at, id LIMIT 1000";

pub(super) async fn gauges(mut connection: Conn) -> DbResult<QueueGauges> {
    let row: Option<Row> = connection.exec_first(GAUGES, ()).await?;
    let mut row = row.ok_or_else(|| DbError::unreadable("no gauges"))?;
    let mut gauges = QueueGauges::of_columns(|column| DbResult::Ok(count(take(&mut row, column)?)))?;
    gauges.oldest_due_age_micros = oldest_due(&mut connection, None).await?.1;
    Ok(gauges)
}

pub(super) async fn workers(mut connection: Conn) -> DbResult<Vec<LivingWorker>> {
    let read: Vec<Row> = connection.exec(WORKERS, (micros(WORKER_GONE_AFTER),)).await?;
    let worker = |mut row: Row| {
        let row = &mut row;
        Ok(LivingWorker {
            worker_id: take(row, 0)?,
            slots: natural(take(row, 1)?),
            version: take(row, 2)?,
            started_at: take::<SqlTime>(row, 3)?.0,
            seen_at: take::<SqlTime>(row, 4)?.0,
        })
    };
    read.into_iter().map(worker).collect()
}

pub(super) async fn stats(mut connection: Conn, scope: &TenantScope) -> DbResult<Stats> {
    let (now, oldest_due_age_micros) = oldest_due(&mut connection, scope.tenant()).await?;
    let (minutes, subscriptions) = counts::read(&mut connection, scope.tenant()).await?;
    Ok(Stats { now, oldest_due_age_micros, minutes, subscriptions })
}

pub(super) async fn in_all(mut connection: Conn, scope: &TenantScope) -> DbResult<Stats> {
    let (now, oldest_due_age_micros) = oldest_due(&mut connection, scope.tenant()).await?;
    let (minutes, _) = counts::by_minute(&mut connection, scope.tenant()).await?;
    Ok(Stats { now, oldest_due_age_micros, minutes, subscriptions: Vec::new() })
}

pub(super) async fn tenant_gauges(mut connection: Conn, tenant: &str) -> DbResult<TenantGauges> {
    let missing = || DbError::unreadable("no gauges");
    let waiting: Option<(i64, i64, i64)> = connection.exec_first(TENANT_WAITING, (tenant,)).await?;
    let (pending, pending_retry, held_waiting) = waiting.ok_or_else(missing)?;
    let open: Option<(i64, i64)> = connection.exec_first(TENANT_OPEN, (tenant,)).await?;
    let (open, held_open) = open.ok_or_else(missing)?;
    let bounded = |number: i64| count(number).min(TenantGauges::MOST.into());
    Ok(TenantGauges {
        pending_sagas: bounded(pending),
        pending_retry_sagas: bounded(pending_retry),
        in_progress_sagas: bounded(open),
        held_sagas: bounded(held_waiting + held_open),
    })
}

/// The time, and for how long the oldest saga that could run has been due: 0 if none is due yet.
async fn oldest_due(connection: &mut Conn, tenant: Option<&str>) -> DbResult<(Timestamp, u64)> {
    let row: Option<(SqlTime, Option<SqlTime>)> = match tenant {
        None => connection.exec_first(OLDEST_DUE, ()).await?,
        Some(tenant) => connection.exec_first(TENANT_OLDEST_DUE, (tenant,)).await?,
    };
    let (SqlTime(now), oldest) = row.ok_or_else(|| DbError::unreadable("no time"))?;
    let age = |oldest: SqlTime| u64::try_from(now.since(oldest.0).as_micros()).unwrap_or(u64::MAX);
    Ok((now, oldest.map_or(0, age)))
}
