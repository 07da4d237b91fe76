//! Redrives.

use super::blocks::{Access, Listed, Source, page};
use crate::{
    error::DbResult,
    roles::{filter::Filter, redrive::redrive},
    session::Tx,
};
use hooksaga_saga::RedriveId;
use hooksaga_store::{Conditions as _, Page, PageRequest, Redrive, TenantScope, redrive_columns};
use rusqlite::OptionalExtension;

const LIST: Source = Source {
    select: concat!("/* reader.redrives */ SELECT ", redrive_columns!()),
    from: "redrives",
    from_unindexed: "redrives NOT INDEXED",
    id: "id",
    newest: "/* reader.newest_redrive */ SELECT max(id) FROM redrives",
};

const ONE: &str = concat!(
    "/* reader.redrive */ SELECT ",
    redrive_columns!(),
    " FROM redrives WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)"
);

pub(super) fn list(tx: &Tx<'_>, scope: &TenantScope, request: PageRequest) -> DbResult<Page<Redrive>> {
    let mut filters = Filter::default();
    filters.add_text("tenant", scope.tenant());
    page(
        tx,
        &Listed {
            source: LIST,
            access: Access::Direct,
            filter: &filters,
            read: redrive,
            id: |redrive| redrive.id.0,
        },
        None,
        request,
    )
}

pub(super) fn one(tx: &Tx<'_>, scope: &TenantScope, id: RedriveId) -> DbResult<Option<Redrive>> {
    Ok(tx.prepare(ONE)?.query_row((id.0, scope.tenant()), redrive).optional()?)
}
