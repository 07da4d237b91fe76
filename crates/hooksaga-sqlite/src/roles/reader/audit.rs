//! Audit records.

use super::blocks::{Access, Listed, Source, page};
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows},
    session::Tx,
};
use hooksaga_saga::KeyId;
use hooksaga_store::{AuditFilter, AuditRecord, Page, PageRequest, TenantScope};
use rusqlite::{OptionalExtension, Row, params_from_iter};

const LIST: Source = Source {
    select: "/* reader.audit */ SELECT a.id, a.at, a.key_id, a.key_name, a.action, a.target, a.tenant",
    from: "audit_records AS a",
    from_unindexed: "audit_records AS a NOT INDEXED",
    id: "a.id",
    newest: "/* reader.newest_audit */ SELECT max(id) FROM audit_records",
};

/// Of the record with this id, or of the one before it where that was removed.
const TIME: &str =
    "/* reader.audit_time */ SELECT at FROM audit_records WHERE id <= ?1 ORDER BY id DESC LIMIT 1";

pub(super) fn list(
    tx: &Tx<'_>,
    scope: &TenantScope,
    filter: &AuditFilter,
    request: PageRequest,
) -> DbResult<Page<AuditRecord>> {
    let mut filters = Filter::default();
    filter.add_to(scope, &mut filters);
    if filter.is_of_times_alone() {
        let index = if scope.tenant().is_some() { "idx_audit_tenant_at" } else { "idx_audit_at" };
        return of_times(tx, index, filters, request);
    }
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

/// In the order of their times: an index has that, wherever the times are.
fn of_times(
    tx: &Tx<'_>,
    index: &str,
    mut filter: Filter,
    request: PageRequest,
) -> DbResult<Page<AuditRecord>> {
    if let Some(before) = request.before {
        let at: Option<i64> = tx.prepare(TIME)?.query_row([before], |row| row.get(0)).optional()?;
        let Some(at) = at else { return Ok(Page::empty()) };
        filter.add_with("(a.at, a.id) < (?, ?)", [at.into(), before.into()]);
    }
    let sql = format!(
        "{} FROM audit_records AS a INDEXED BY {index} WHERE true{} ORDER BY a.at DESC, a.id DESC LIMIT ?",
        LIST.select,
        filter.sql(),
    );
    let mut values = filter.values();
    values.push((i64::from(request.limit) + 1).into());
    let mut statement = tx.prepare(&sql)?;
    let rows = statement.query_map(params_from_iter(values), record)?;
    Ok(Page::cut(rows.collect::<rusqlite::Result<_>>()?, request.limit, |record| record.id))
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
