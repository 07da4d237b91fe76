//! Audit records.

use super::page;
use crate::{error::DbResult, roles::filter::Filter, time::SqlTime};
use deadpool_postgres::Client;
use hooksaga_saga::KeyId;
use hooksaga_store::{AuditFilter, AuditRecord, Conditions as _, ListQuery, Page};
use tokio_postgres::Row;

const SELECT: &str = "/* reader.audit */
SELECT a.id, a.at, a.key_id, a.key_name, a.action, a.target, a.tenant FROM audit_records a";

/// Of the record with this id, or of the one before it where that was removed.
const TIME: &str =
    "/* reader.audit_time */ SELECT at FROM audit_records WHERE id <= $1 ORDER BY id DESC LIMIT 1";

pub(super) async fn list(client: &Client, wanted: ListQuery<'_, AuditFilter>) -> DbResult<Page<AuditRecord>> {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    let mut filter = Filter::new();
    wanted.add_to(scope, &mut filter);
    if !wanted.is_of_times_alone() {
        filter.add_some("a.id < ", request.before);
        return page(client, SELECT, "a.id", &filter, request, record).await;
    }
    // In the order of their times: an index has that, wherever the times are.
    if let Some(before) = request.before {
        let statement = client.prepare_cached(TIME).await?;
        let Some(row) = client.query_opt(&statement, &[&before]).await? else { return Ok(Page::empty()) };
        let (at, id) = (filter.number(row.try_get::<_, SqlTime>(0)?), filter.number(before));
        filter.add_fixed(&format!("(a.at, a.id) < ({at}, {id})"));
    }
    page(client, SELECT, "a.at DESC, a.id", &filter, request, record).await
}

fn record(row: &Row) -> DbResult<AuditRecord> {
    Ok(AuditRecord {
        id: row.try_get(0)?,
        at: row.try_get::<_, SqlTime>(1)?.0,
        key_id: row.try_get::<_, Option<i64>>(2)?.map(KeyId),
        key_name: row.try_get(3)?,
        action: row.try_get(4)?,
        target: row.try_get(5)?,
        tenant: row.try_get(6)?,
    })
}
