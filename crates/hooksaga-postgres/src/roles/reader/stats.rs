//! How much waits at each stage, and what ended per minute.

use super::{counts, tenant_stats};
use crate::{
    error::DbResult,
    roles::{rows::count, waiting::with_waiting},
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{Gauges, MinuteCount, QueueGauges, Stats, SubscriptionCount, TenantScope};
use tokio_postgres::Row;

/// Counts come from the partial indexes, which hold only what is open: finished rows cost nothing. Subscriptions
/// with waiting sagas, and the oldest due one of each, are found by hopping from one to the next, as the scheduler
/// does; each is then looked up by its key. (The order in the counts of jobs points the planner to the narrowest
/// index.)
pub(crate) const GAUGES: &str = concat!(
    "/* reader.gauges */
",
    with_waiting!(),
    ", idle AS MATERIALIZED (
    SELECT sub.id
    FROM waiting w
    CROSS JOIN LATERAL (
        SELECT id, deliverable FROM subscriptions WHERE id = w.subscription_id OFFSET 0
    ) sub
    WHERE NOT sub.deliverable
), open_jobs AS (
    (SELECT subscription_id FROM webhook_delivery_jobs WHERE status = 'Pending' ORDER BY lease_until)
    UNION ALL
    (SELECT subscription_id FROM webhook_delivery_jobs WHERE status = 'Leased' ORDER BY lease_until)
    UNION ALL
    (SELECT j.subscription_id FROM finished_jobs f CROSS JOIN LATERAL (
        SELECT subscription_id FROM webhook_delivery_jobs
        WHERE saga_id = f.saga_id AND attempt_at = f.attempt_at OFFSET 0
    ) j ORDER BY f.seq)
)
SELECT
    (SELECT count(*) FROM unrouted_events),
    (SELECT count(*) FROM webhook_delivery_sagas WHERE status IN ('Pending', 'PendingRetry')),
    (SELECT count(*) FROM webhook_delivery_sagas WHERE status = 'PendingRetry'),
    (SELECT coalesce(sum(held.sagas), 0)::bigint FROM idle CROSS JOIN LATERAL (
        SELECT count(*) AS sagas FROM webhook_delivery_sagas s
        WHERE s.subscription_id = idle.id AND s.status IN ('Pending', 'PendingRetry')
    ) held)
    + (SELECT count(*) FROM open_jobs o CROSS JOIN LATERAL (
        SELECT deliverable FROM subscriptions WHERE id = o.subscription_id OFFSET 0
    ) sub WHERE NOT sub.deliverable),
    (SELECT count(*) FROM (
        SELECT FROM webhook_delivery_jobs WHERE status = 'Pending' ORDER BY lease_until) jobs),
    (SELECT count(*) FROM (
        SELECT FROM webhook_delivery_jobs WHERE status = 'Leased' ORDER BY lease_until) jobs),
    (SELECT count(*) FROM finished_jobs),
    (SELECT count(*) FROM pending_dead_letters),
    (SELECT coalesce((extract(epoch FROM now() - min(w.next_attempt_at)) * 1000000)::bigint, 0)
     FROM waiting w CROSS JOIN LATERAL (
        SELECT deliverable FROM subscriptions WHERE id = w.subscription_id OFFSET 0
     ) sub
     WHERE w.next_attempt_at <= now() AND sub.deliverable),
    now()"
);

pub(super) async fn gauges(client: &Client) -> DbResult<QueueGauges> {
    Ok(read(client).await?.1)
}

pub(super) async fn stats(client: &Client, scope: &TenantScope) -> DbResult<Stats> {
    let (now, gauges) = any_gauges(client, scope).await?;
    let (minutes, subscriptions) = counts::read(client, scope.tenant()).await?;
    counted(now, gauges, &minutes, &subscriptions)
}

pub(super) async fn in_all(client: &Client, scope: &TenantScope) -> DbResult<Stats> {
    let (now, gauges) = any_gauges(client, scope).await?;
    counted(now, gauges, &counts::minutes(client, scope.tenant()).await?.0, &[])
}

async fn any_gauges(client: &Client, scope: &TenantScope) -> DbResult<(SqlTime, Gauges)> {
    Ok(match scope {
        TenantScope::All => {
            let (now, gauges) = read(client).await?;
            (now, Gauges::Server(gauges))
        }
        TenantScope::One(tenant) => {
            let (now, gauges) = tenant_stats::read(client, tenant.as_str()).await?;
            (now, Gauges::Tenant(gauges))
        }
    })
}

/// Statistics from rows of minutes and of subscriptions: each with delivered, failed and dead-lettered ones.
fn counted(now: SqlTime, gauges: Gauges, minutes: &[Row], subscriptions: &[Row]) -> DbResult<Stats> {
    Ok(Stats {
        now: now.0,
        gauges,
        minutes: minutes
            .iter()
            .map(|row| {
                Ok(MinuteCount {
                    minute: row.try_get::<_, SqlTime>(0)?.0,
                    delivered: count(row.try_get(1)?),
                    failed: count(row.try_get(2)?),
                    dead_lettered: count(row.try_get(3)?),
                })
            })
            .collect::<DbResult<_>>()?,
        subscriptions: subscriptions
            .iter()
            .map(|row| {
                Ok(SubscriptionCount {
                    subscription_id: SubscriptionId(row.try_get(0)?),
                    delivered: count(row.try_get(1)?),
                    failed: count(row.try_get(2)?),
                    dead_lettered: count(row.try_get(3)?),
                })
            })
            .collect::<DbResult<_>>()?,
    })
}

async fn read(client: &Client) -> DbResult<(SqlTime, QueueGauges)> {
    let statement = client.prepare_cached(GAUGES).await?;
    let row = client.query_one(&statement, &[]).await?;
    let number = |column: usize| -> DbResult<u64> { Ok(count(row.try_get(column)?)) };
    let mut gauges = QueueGauges::of_columns(number)?;
    // What waits is either new or a retry, and all of it is in one index.
    gauges.pending_sagas = gauges.pending_sagas.saturating_sub(gauges.pending_retry_sagas);
    gauges.oldest_due_age_micros = number(8)?;
    Ok((row.try_get(9)?, gauges))
}
