//! Audit records.

use super::page;
use crate::{error::DbResult, roles::filter::Filter, time::SqlTime};
use deadpool_postgres::Client;
use hooksaga_saga::KeyId;
use hooksaga_store::{AuditFilter, AuditRecord, ListQuery, Page};
use tokio_postgres::Row;

const SELECT: &str = "/* reader.audit */
SELECT a.id, a.at, a.key_id, a.key_name, a.action, a.target, a.tenant FROM audit_records a";

pub(super) async fn list(client: &Client, wanted: ListQuery<'_, AuditFilter>) -> DbResult<Page<AuditRecord>> {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    let mut filter = Filter::new();
    filter.add_some("a.id < ", request.before);
    wanted.add_to(scope, &mut filter);
    page(client, SELECT, "a.id", &filter, request, record).await
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
