//! What waits for one tenant. This begins at the tenant's subscriptions, so that the rows of others cost nothing, and counts
//! a bounded number of rows.

use crate::{
    error::DbResult,
    roles::rows::{bigint, count},
};
use deadpool_postgres::Client;
use hooksaga_store::TenantGauges;

/// `waiting`: what waits for each of the tenant's subscriptions, from `idx_saga_waiting`, up to three times as many as a
/// count shows: new ones, retries and held ones are told apart only when they are read. Open jobs are few, whoever's they
/// are: workers bound them.
const GAUGES: &str = "/* reader.tenant_gauges */
WITH mine AS MATERIALIZED (
    SELECT id, deliverable FROM subscriptions WHERE tenant = $1
), waiting AS MATERIALIZED (
    SELECT m.deliverable, s.status FROM mine m CROSS JOIN LATERAL (
        SELECT status FROM webhook_delivery_sagas
        WHERE subscription_id = m.id AND status IN ('Pending', 'PendingRetry')
        LIMIT 3 * $2::bigint
    ) s LIMIT 3 * $2::bigint
), open_jobs AS MATERIALIZED (
    SELECT m.deliverable FROM (
        (SELECT subscription_id FROM webhook_delivery_jobs WHERE status = 'Pending' ORDER BY lease_until)
        UNION ALL
        (SELECT subscription_id FROM webhook_delivery_jobs WHERE status = 'Leased' ORDER BY lease_until)
        UNION ALL
        (SELECT j.subscription_id FROM finished_jobs f CROSS JOIN LATERAL (
            SELECT subscription_id FROM webhook_delivery_jobs
            WHERE saga_id = f.saga_id AND attempt_at = f.attempt_at OFFSET 0
        ) j ORDER BY f.seq)
    ) o JOIN mine m ON m.id = o.subscription_id
    LIMIT 2 * $2::bigint
)
SELECT
    least((SELECT count(*) FROM waiting WHERE status = 'Pending'), $2::bigint),
    least((SELECT count(*) FROM waiting WHERE status = 'PendingRetry'), $2::bigint),
    least((SELECT count(*) FROM open_jobs), $2::bigint),
    least((SELECT count(*) FROM waiting WHERE NOT deliverable)
          + (SELECT count(*) FROM open_jobs WHERE NOT deliverable), $2::bigint)";

/// The earliest saga of each subscription is one lookup.
pub(super) const OLDEST_DUE: &str = "/* reader.tenant_oldest_due */
SELECT now(), coalesce((extract(epoch FROM now() - min(s.next_attempt_at)) * 1000000)::bigint, 0)
FROM subscriptions m CROSS JOIN LATERAL (
    SELECT next_attempt_at FROM webhook_delivery_sagas
    WHERE subscription_id = m.id AND status IN ('Pending', 'PendingRetry')
    ORDER BY next_attempt_at LIMIT 1
) s
WHERE m.tenant = $1 AND m.deliverable AND s.next_attempt_at <= now()";

pub(super) async fn gauges(client: &Client, tenant: &str) -> DbResult<TenantGauges> {
    let statement = client.prepare_cached(GAUGES).await?;
    let row = client.query_one(&statement, &[&tenant, &bigint(TenantGauges::MOST)]).await?;
    let number = |column: usize| -> DbResult<u64> { Ok(count(row.try_get(column)?)) };
    Ok(TenantGauges {
        pending_sagas: number(0)?,
        pending_retry_sagas: number(1)?,
        in_progress_sagas: number(2)?,
        held_sagas: number(3)?,
    })
}
