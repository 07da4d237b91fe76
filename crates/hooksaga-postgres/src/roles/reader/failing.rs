//! Endpoints that fail: from their runs of failures, never from deliveries.

use crate::{
    error::DbResult,
    roles::rows::{bigint, count},
    time::{SqlTime, micros},
};
use deadpool_postgres::Client;
use hooksaga_saga::{ErrorCode, SubscriptionId};
use hooksaga_store::{FailingEndpoint, TenantScope};
use tokio_postgres::Row;

/// Reads the first delivery that waits, and counts up to `$4`. Leaves deleted subscriptions out: nobody can fix their
/// endpoints.
const LIST: &str = "/* reader.failing */
SELECT f.subscription_id, s.callback_url, f.since, f.failures::bigint, f.last_error_code, w.next_attempt_at,
       (SELECT count(*) FROM (
            SELECT FROM webhook_delivery_sagas g
            WHERE g.subscription_id = f.subscription_id AND g.status IN ('Pending', 'PendingRetry')
            LIMIT $4::bigint) c)
FROM endpoint_failures f
JOIN subscriptions s ON s.id = f.subscription_id
LEFT JOIN LATERAL (
    SELECT g.next_attempt_at FROM webhook_delivery_sagas g
    WHERE g.subscription_id = f.subscription_id AND g.status IN ('Pending', 'PendingRetry')
    ORDER BY g.next_attempt_at LIMIT 1) w ON true
WHERE f.since IS NOT NULL AND s.deliverable AND s.deleted_at IS NULL AND ($1::text IS NULL OR s.tenant = $1)
  AND (f.last_at >= now() - $2::bigint * interval '1 microsecond' OR w.next_attempt_at IS NOT NULL)
ORDER BY f.since, f.subscription_id LIMIT $3::bigint";

pub(super) async fn list(client: &Client, scope: &TenantScope, limit: u32) -> DbResult<Vec<FailingEndpoint>> {
    let statement = client.prepare_cached(LIST).await?;
    let (quiet, most) = (micros(FailingEndpoint::QUIET_AFTER), bigint(FailingEndpoint::MOST_WAITING));
    let rows = client.query(&statement, &[&scope.tenant(), &quiet, &bigint(limit), &most]).await?;
    rows.iter().map(failing).collect()
}

fn failing(row: &Row) -> DbResult<FailingEndpoint> {
    Ok(FailingEndpoint {
        subscription_id: SubscriptionId(row.try_get(0)?),
        callback_url: row.try_get(1)?,
        since: row.try_get::<_, SqlTime>(2)?.0,
        failures: count(row.try_get(3)?),
        last_error: ErrorCode::from_stored(row.try_get(4)?),
        next_attempt_at: row.try_get::<_, Option<SqlTime>>(5)?.map(|time| time.0),
        waiting: count(row.try_get(6)?),
    })
}
