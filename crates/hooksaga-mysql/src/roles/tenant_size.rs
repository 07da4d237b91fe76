//! Whether a tenant has so few rows that a list of them is best read from its own, and sorted. One with many has some among
//! the newest of all, where a list begins.

use crate::error::DbResult;
use mysql_async::{Conn, prelude::Queryable};

/// Counted no further.
const EVENTS: &str = "/* tenant.events */
SELECT COUNT(*) <= 5000
FROM (SELECT 1 FROM events FORCE INDEX (idx_event_tenant) WHERE tenant = ? LIMIT 5001) counted";

pub(crate) async fn has_few_events(connection: &mut Conn, tenant: &str) -> DbResult<bool> {
    Ok(connection.exec_first(EVENTS, (tenant,)).await?.unwrap_or(true))
}
