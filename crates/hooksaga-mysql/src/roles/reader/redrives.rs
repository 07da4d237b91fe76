//! Redrives.

use super::page;
use crate::{
    error::DbResult,
    roles::{filter::Filter, redrive::redrive},
};
use hooksaga_saga::RedriveId;
use hooksaga_store::{Page, PageRequest, Redrive, TenantScope, redrive_columns};
use mysql_async::{Conn, Row, prelude::Queryable as _};

const LIST: &str = concat!("/* reader.redrives */ SELECT ", redrive_columns!(), " FROM redrives");

const GET: &str = concat!("/* reader.redrive */ SELECT ", redrive_columns!(), " FROM redrives WHERE id = ?");

pub(super) async fn list(
    mut connection: Conn,
    scope: &TenantScope,
    request: PageRequest,
) -> DbResult<Page<Redrive>> {
    let filter = Filter::of_page(scope, request);
    page(&mut connection, LIST, "id", &filter, request, |mut row| redrive(&mut row)).await
}

pub(super) async fn get(
    mut connection: Conn,
    scope: &TenantScope,
    id: RedriveId,
) -> DbResult<Option<Redrive>> {
    let row: Option<Row> = connection.exec_first(GET, (id.0,)).await?;
    let found = row.map(|mut row| redrive(&mut row)).transpose()?;
    Ok(found.filter(|redrive| match (scope.tenant(), &redrive.tenant) {
        (Some(own), Some(tenant)) => own == tenant,
        (Some(_), None) => false,
        (None, _) => true,
    }))
}
