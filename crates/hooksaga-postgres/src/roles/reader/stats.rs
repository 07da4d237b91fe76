//! How much waits at each stage, and how many deliveries ended per minute.

use super::{counts, tenant_stats};
use crate::{
    error::DbResult,
    roles::{rows::count, waiting::with_waiting},
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{MinuteCount, QueueGauges, Stats, SubscriptionCount, TenantScope};
use tokio_postgres::Row;

/// Counts come from the partial indexes, which hold only what is open: finished rows cost nothing. Subscriptions
/// with waiting sagas are found by hopping from one to the next, as the scheduler does; each is then looked up by its
/// key. (The order in the counts of jobs points the planner to the narrowest index.)
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
    (SELECT count(*) FROM pending_dead_letters)"
);

/// The earliest saga of each subscription is one hop. They are looked at in order, up to the first whose subscription is
/// deliverable.
pub(crate) const OLDEST_DUE: &str = concat!(
    "/* reader.oldest_due */
",
    with_waiting!(),
    "
SELECT now(), coalesce((
    SELECT (extract(epoch FROM now() - w.next_attempt_at) * 1000000)::bigint
    FROM (SELECT * FROM waiting WHERE next_attempt_at <= now() ORDER BY next_attempt_at OFFSET 0) w
    CROSS JOIN LATERAL (
        SELECT deliverable FROM subscriptions WHERE id = w.subscription_id OFFSET 0
    ) sub
    WHERE sub.deliverable ORDER BY w.next_attempt_at LIMIT 1
), 0)"
);

pub(super) async fn gauges(client: &Client) -> DbResult<QueueGauges> {
    let statement = client.prepare_cached(GAUGES).await?;
    let row = client.query_one(&statement, &[]).await?;
    let mut gauges = QueueGauges::of_columns(|column| DbResult::Ok(count(row.try_get(column)?)))?;
    // What waits is either new or a retry, and all of it is in one index.
    gauges.pending_sagas = gauges.pending_sagas.saturating_sub(gauges.pending_retry_sagas);
    gauges.oldest_due_age_micros = oldest_due(client, &TenantScope::All).await?.1;
    Ok(gauges)
}

pub(super) async fn stats(client: &Client, scope: &TenantScope) -> DbResult<Stats> {
    let oldest_due = oldest_due(client, scope).await?;
    let (minutes, subscriptions) = counts::read(client, scope.tenant()).await?;
    counted(oldest_due, &minutes, &subscriptions)
}

pub(super) async fn in_all(client: &Client, scope: &TenantScope) -> DbResult<Stats> {
    let oldest_due = oldest_due(client, scope).await?;
    counted(oldest_due, &counts::minutes(client, scope.tenant()).await?.0, &[])
}

/// The time, and for how long the oldest saga that could run has been due.
async fn oldest_due(client: &Client, scope: &TenantScope) -> DbResult<(SqlTime, u64)> {
    let row = match scope.tenant() {
        None => client.query_one(&client.prepare_cached(OLDEST_DUE).await?, &[]).await?,
        Some(tenant) => {
            let statement = client.prepare_cached(tenant_stats::OLDEST_DUE).await?;
            client.query_one(&statement, &[&tenant]).await?
        }
    };
    Ok((row.try_get(0)?, count(row.try_get(1)?)))
}

/// Statistics from rows of minutes and of subscriptions: each with delivered, failed and dead-lettered ones.
fn counted(
    (now, oldest_due_age_micros): (SqlTime, u64),
    minutes: &[Row],
    subscriptions: &[Row],
) -> DbResult<Stats> {
    Ok(Stats {
        now: now.0,
        oldest_due_age_micros,
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
