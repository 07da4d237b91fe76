//! Whether a tenant has few rows. If so, a list reads all of them by the tenant's index and sorts; otherwise it scans
//! the newest rows of all tenants, where some of the tenant's will be found soon.

use crate::error::DbResult;
use mysql_async::{Conn, prelude::Queryable};

/// Counted no further.
const EVENTS: &str = "/* tenant.events */
SELECT COUNT(*) <= 5000
FROM (SELECT 1 FROM events FORCE INDEX (idx_event_tenant) WHERE tenant = ? LIMIT 5001) counted";

pub(crate) async fn has_few_events(connection: &mut Conn, tenant: &str) -> DbResult<bool> {
    Ok(connection.exec_first(EVENTS, (tenant,)).await?.unwrap_or(true))
}
