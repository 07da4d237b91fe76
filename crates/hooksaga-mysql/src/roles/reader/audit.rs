//! Audit records.

use super::page;
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows::take},
    time::SqlTime,
};
use hooksaga_saga::KeyId;
use hooksaga_store::{AuditFilter, AuditRecord, ListQuery, Page};
use mysql_async::{Conn, Row};

const SELECT: &str = "/* reader.audit */
SELECT a.id, a.at, a.key_id, a.key_name, a.action, a.target, a.tenant FROM audit_records a";

pub(super) async fn list(
    mut connection: Conn,
    wanted: ListQuery<'_, AuditFilter>,
) -> DbResult<Page<AuditRecord>> {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    let mut filter = Filter::new();
    filter.add_some("a.id < ", request.before);
    wanted.add_to(scope, &mut filter);
    page(&mut connection, SELECT, "a.id", &filter, request, record).await
}

fn record(mut row: Row) -> DbResult<AuditRecord> {
    Ok(AuditRecord {
        id: take(&mut row, 0)?,
        at: take::<SqlTime>(&mut row, 1)?.0,
        key_id: take::<Option<i64>>(&mut row, 2)?.map(KeyId),
        key_name: take(&mut row, 3)?,
        action: take(&mut row, 4)?,
        target: take(&mut row, 5)?,
        tenant: take(&mut row, 6)?,
    })
}
