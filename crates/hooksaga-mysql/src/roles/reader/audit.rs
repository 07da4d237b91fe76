//! Audit records.

use super::page;
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows::take},
    time::SqlTime,
};
use hooksaga_saga::KeyId;
use hooksaga_store::{AuditFilter, AuditRecord, ListQuery, Page};
use mysql_async::{Conn, Row, prelude::Queryable as _};

const SELECT: &str = "/* reader.audit */
SELECT a.id, a.at, a.key_id, a.key_name, a.action, a.target, a.tenant FROM audit_records a";

/// Of the record with this id, or of the one before it where that was removed.
const TIME: &str =
    "/* reader.audit_time */ SELECT at FROM audit_records WHERE id <= ? ORDER BY id DESC LIMIT 1";

pub(super) async fn list(
    mut connection: Conn,
    wanted: ListQuery<'_, AuditFilter>,
) -> DbResult<Page<AuditRecord>> {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    let mut filter = Filter::new();
    wanted.add_to(scope, &mut filter);
    if !wanted.is_of_times_alone() {
        filter.add_some("a.id < ", request.before);
        let index = match (&wanted.target, &wanted.action, scope.tenant()) {
            (Some(_), _, _) => "idx_audit_target",
            (None, Some(_), None) => "idx_audit_action",
            (None, Some(_), Some(_)) => "idx_audit_tenant_action",
            (None, None, Some(_)) => "idx_audit_tenant",
            (None, None, None) => "PRIMARY",
        };
        let select = format!("{SELECT} FORCE INDEX ({index})");
        return page(&mut connection, &select, "a.id", &filter, request, record).await;
    }
    // In the order of their times: an index has that, wherever the times are.
    if let Some(before) = request.before {
        let at: Option<SqlTime> = connection.exec_first(TIME, (before,)).await?;
        let Some(at) = at else { return Ok(Page::empty()) };
        filter.add("a.at <= ", at);
        filter.add("NOT (a.at = ", at);
        filter.add("a.id >= ", before);
        filter.close();
    }
    let index = if scope.tenant().is_some() { "idx_audit_tenant_at" } else { "idx_audit_at" };
    let select = format!("{SELECT} FORCE INDEX ({index})");
    page(&mut connection, &select, "a.at DESC, a.id", &filter, request, record).await
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
