//! Endpoints that fail. This reads the counters of their runs of failures, never deliveries.

use crate::{
    error::DbResult,
    roles::rows::{count, take},
    time::{SqlTime, micros},
};
use hooksaga_saga::{ErrorCode, SubscriptionId};
use hooksaga_store::{FailingEndpoint, FailingEndpoints, TenantScope};
use mysql_async::{Conn, Row, prelude::Queryable as _};

/// The failing endpoints. Leaves out deleted subscriptions: nobody can fix their endpoints.
macro_rules! failing {
    () => {
        "
FROM endpoint_failures f FORCE INDEX (idx_failures_since)
STRAIGHT_JOIN subscriptions s ON s.id = f.subscription_id
WHERE f.since >= '1000-01-01 00:00:00' AND s.deliverable AND s.deleted_at IS NULL
  AND (? IS NULL OR s.tenant = ?)
  AND (f.last_at >= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND OR EXISTS (
           SELECT 1 FROM webhook_delivery_sagas g FORCE INDEX (idx_saga_waiting)
           WHERE g.waiting_subscription_id = f.subscription_id))"
    };
}

/// Also reads the first waiting delivery of each.
const LIST: &str = concat!(
    "/* reader.failing */
SELECT f.subscription_id, s.callback_url, f.since, CAST(f.failures AS SIGNED), f.last_error_code,
       (SELECT g.next_attempt_at FROM webhook_delivery_sagas g FORCE INDEX (idx_saga_waiting)
        WHERE g.waiting_subscription_id = f.subscription_id ORDER BY g.next_attempt_at LIMIT 1)",
    failing!()
);

/// The orders of the two ends.
const OLDEST: &str = "f.since, f.subscription_id";
const NEWEST: &str = "f.since DESC, f.subscription_id DESC";

const COUNT: &str =
    concat!("/* reader.failing_count */ SELECT COUNT(*) FROM (SELECT 1", failing!(), " LIMIT ?) counted");

/// A separate statement, since a derived table cannot refer to a row outside of it.
const WAITING: &str = "/* reader.failing_waiting */
SELECT COUNT(*) FROM (
    SELECT 1 FROM webhook_delivery_sagas FORCE INDEX (idx_saga_waiting) WHERE waiting_subscription_id = ? LIMIT ?) w";

pub(super) async fn list(mut connection: Conn, scope: &TenantScope, each: u32) -> DbResult<FailingEndpoints> {
    let parameters = |most: u32| (scope.tenant(), scope.tenant(), micros(FailingEndpoint::QUIET_AFTER), most);
    let mut ends = [Vec::new(), Vec::new()];
    for (order, end) in [OLDEST, NEWEST].into_iter().zip(&mut ends) {
        let sql = format!("{LIST} ORDER BY {order} LIMIT ?");
        let rows: Vec<Row> = connection.exec(sql, parameters(each)).await?;
        *end = rows.into_iter().map(endpoint).collect::<DbResult<Vec<_>>>()?;
        if end.len() < each as usize {
            break;
        }
    }
    let [oldest, newest] = ends;
    let mut found = FailingEndpoints::of(oldest, newest);
    for one in &mut found.shown {
        let parameters = (one.subscription_id.0, FailingEndpoint::MOST_WAITING);
        let waiting: Option<i64> = connection.exec_first(WAITING, parameters).await?;
        one.waiting = count(waiting.unwrap_or_default());
    }
    if found.may_be_more(each) {
        let total: Option<i64> =
            connection.exec_first(COUNT, parameters(FailingEndpoints::MOST_COUNTED)).await?;
        found.total = count(total.unwrap_or_default());
    }
    Ok(found)
}

/// An endpoint without the number of waiting deliveries.
fn endpoint(mut row: Row) -> DbResult<FailingEndpoint> {
    let row = &mut row;
    Ok(FailingEndpoint {
        subscription_id: SubscriptionId(take(row, 0)?),
        callback_url: take(row, 1)?,
        since: take::<SqlTime>(row, 2)?.0,
        failures: count(take(row, 3)?),
        last_error: ErrorCode::from_stored(take(row, 4)?),
        next_attempt_at: take::<Option<SqlTime>>(row, 5)?.map(|time| time.0),
        waiting: 0,
    })
}
