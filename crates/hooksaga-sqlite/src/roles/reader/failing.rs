//! Endpoints that fail. This reads the counters of their runs of failures, never deliveries.

use crate::{
    error::DbResult,
    roles::rows::{self, count, error_code, optional_time, time},
    session::Tx,
};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{FailingEndpoint, FailingEndpoints, TenantScope};
use rusqlite::{Result, Row};

/// The failing endpoints. Leaves out deleted subscriptions: nobody can fix their endpoints.
macro_rules! failing {
    () => {
        "
  FROM endpoint_failures AS f INDEXED BY idx_failures_since CROSS JOIN subscriptions AS s ON s.id = f.subscription_id
 WHERE f.since IS NOT NULL AND s.deliverable AND s.deleted_at IS NULL AND (?1 IS NULL OR s.tenant = ?1)
   AND (f.last_at >= ?2 OR EXISTS (
            SELECT 1 FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
             WHERE g.subscription_id = f.subscription_id AND g.status IN ('Pending', 'PendingRetry')))"
    };
}

/// Reads the first delivery that waits, and counts up to `?4`.
const LIST: &str = concat!(
    "/* reader.failing */
SELECT f.subscription_id, s.callback_url, f.since, f.failures, f.last_error_code,
       (SELECT g.next_attempt_at FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
         WHERE g.subscription_id = f.subscription_id AND g.status IN ('Pending', 'PendingRetry')
         ORDER BY g.next_attempt_at LIMIT 1),
       (SELECT count(*) FROM (
            SELECT 1 FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
             WHERE g.subscription_id = f.subscription_id AND g.status IN ('Pending', 'PendingRetry') LIMIT ?4))",
    failing!()
);

/// The orders of the two ends.
const OLDEST: &str = "f.since, f.subscription_id";
const NEWEST: &str = "f.since DESC, f.subscription_id DESC";

const COUNT: &str =
    concat!("/* reader.failing_count */ SELECT count(*) FROM (SELECT 1", failing!(), " LIMIT ?3)");

pub(super) fn list(tx: &Tx<'_>, scope: &TenantScope, each: u32) -> DbResult<FailingEndpoints> {
    let recent = tx.now.before(FailingEndpoint::QUIET_AFTER).as_micros();
    let read = |order| {
        let sql = format!("{LIST} ORDER BY {order} LIMIT ?3");
        let parameters = (scope.tenant(), recent, each, FailingEndpoint::MOST_WAITING);
        rows::all(tx, &sql, parameters, failing)
    };
    let oldest = read(OLDEST)?;
    let newest = if oldest.len() < each as usize { Vec::new() } else { read(NEWEST)? };
    let mut found = FailingEndpoints::of(oldest, newest);
    if found.may_be_more(each) {
        let parameters = (scope.tenant(), recent, FailingEndpoints::MOST_COUNTED);
        found.total = tx.prepare(COUNT)?.query_row(parameters, |row| count(row, 0))?;
    }
    Ok(found)
}

fn failing(row: &Row<'_>) -> Result<FailingEndpoint> {
    Ok(FailingEndpoint {
        subscription_id: SubscriptionId(row.get(0)?),
        callback_url: row.get(1)?,
        since: time(row, 2)?,
        failures: count(row, 3)?,
        last_error: error_code(row, 4)?,
        next_attempt_at: optional_time(row, 5)?,
        waiting: count(row, 6)?,
    })
}
