//! Endpoints that fail. This reads the counters of their runs of failures, never deliveries.

use crate::{
    error::DbResult,
    roles::rows::{bigint, count},
    time::{SqlTime, micros},
};
use deadpool_postgres::Client;
use hooksaga_saga::{ErrorCode, SubscriptionId};
use hooksaga_store::{FailingEndpoint, FailingEndpoints, TenantScope};
use tokio_postgres::Row;

/// Those that fail, with the first delivery that waits for each. Leaves deleted subscriptions out: nobody can fix their
/// endpoints.
macro_rules! failing {
    () => {
        "
FROM endpoint_failures f
JOIN subscriptions s ON s.id = f.subscription_id
LEFT JOIN LATERAL (
    SELECT g.next_attempt_at FROM webhook_delivery_sagas g
    WHERE g.subscription_id = f.subscription_id AND g.status IN ('Pending', 'PendingRetry')
    ORDER BY g.next_attempt_at LIMIT 1) w ON true
WHERE f.since IS NOT NULL AND s.deliverable AND s.deleted_at IS NULL AND ($1::text IS NULL OR s.tenant = $1)
  AND (f.last_at >= now() - $2::bigint * interval '1 microsecond' OR w.next_attempt_at IS NOT NULL)"
    };
}

/// Counts what waits, up to `$4`.
const LIST: &str = concat!(
    "/* reader.failing */
SELECT f.subscription_id, s.callback_url, f.since, f.failures::bigint, f.last_error_code, w.next_attempt_at,
       (SELECT count(*) FROM (
            SELECT FROM webhook_delivery_sagas g
            WHERE g.subscription_id = f.subscription_id AND g.status IN ('Pending', 'PendingRetry')
            LIMIT $4::bigint) c)",
    failing!()
);

/// The orders of the two ends.
const OLDEST: &str = "f.since, f.subscription_id";
const NEWEST: &str = "f.since DESC, f.subscription_id DESC";

const COUNT: &str =
    concat!("/* reader.failing_count */ SELECT count(*) FROM (SELECT", failing!(), " LIMIT $3::bigint) c");

pub(super) async fn list(client: &Client, scope: &TenantScope, each: u32) -> DbResult<FailingEndpoints> {
    let tenant = scope.tenant();
    let (quiet, most) = (micros(FailingEndpoint::QUIET_AFTER), bigint(FailingEndpoint::MOST_WAITING));
    let read = async |order: &str| {
        let sql = format!("{LIST} ORDER BY {order} LIMIT $3::bigint");
        let statement = client.prepare_cached(&sql).await?;
        let rows = client.query(&statement, &[&tenant, &quiet, &bigint(each), &most]).await?;
        rows.iter().map(failing).collect::<DbResult<Vec<_>>>()
    };
    let oldest = read(OLDEST).await?;
    let newest = if oldest.len() < each as usize { Vec::new() } else { read(NEWEST).await? };
    let mut found = FailingEndpoints::of(oldest, newest);
    if found.may_be_more(each) {
        let statement = client.prepare_cached(COUNT).await?;
        let most = bigint(FailingEndpoints::MOST_COUNTED);
        found.total = count(client.query_one(&statement, &[&tenant, &quiet, &most]).await?.try_get(0)?);
    }
    Ok(found)
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
