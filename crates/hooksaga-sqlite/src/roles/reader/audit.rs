//! Audit records.

use super::blocks::{Access, Listed, Source, page};
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows},
    session::Tx,
};
use hooksaga_saga::KeyId;
use hooksaga_store::{AuditFilter, AuditRecord, Page, PageRequest, TenantScope};
use rusqlite::Row;

const LIST: Source = Source {
    select: "/* reader.audit */ SELECT a.id, a.at, a.key_id, a.key_name, a.action, a.target, a.tenant",
    from: "audit_records AS a",
    from_unindexed: "audit_records AS a NOT INDEXED",
    id: "a.id",
    newest: "/* reader.newest_audit */ SELECT max(id) FROM audit_records",
};

pub(super) fn list(
    tx: &Tx<'_>,
    scope: &TenantScope,
    filter: &AuditFilter,
    request: PageRequest,
) -> DbResult<Page<AuditRecord>> {
    let mut filters = Filter::default();
    filter.add_to(scope, &mut filters);
    page(
        tx,
        &Listed {
            source: LIST,
            access: Access::Direct,
            filter: &filters,
            read: record,
            id: |record| record.id,
        },
        None,
        request,
    )
}

fn record(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    Ok(AuditRecord {
        id: row.get(0)?,
        at: rows::time(row, 1)?,
        key_id: row.get::<_, Option<i64>>(2)?.map(KeyId),
        key_name: row.get(3)?,
        action: row.get(4)?,
        target: row.get(5)?,
        tenant: row.get(6)?,
    })
}
