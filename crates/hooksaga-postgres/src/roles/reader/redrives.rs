//! Redrives.

use super::page;
use crate::{
    error::DbResult,
    roles::{filter::Filter, redrive::redrive},
};
use deadpool_postgres::Client;
use hooksaga_saga::RedriveId;
use hooksaga_store::{Page, PageRequest, Redrive, TenantScope, redrive_columns};

const LIST: &str = concat!("/* reader.redrives */ SELECT ", redrive_columns!(), " FROM redrives");

const GET: &str = concat!(
    "/* reader.redrive */ SELECT ",
    redrive_columns!(),
    " FROM redrives WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)"
);

pub(super) async fn list(
    client: &Client,
    scope: &TenantScope,
    request: PageRequest,
) -> DbResult<Page<Redrive>> {
    let filter = Filter::of_page(scope, request);
    page(client, LIST, "id", &filter, request, redrive).await
}

pub(super) async fn get(client: &Client, scope: &TenantScope, id: RedriveId) -> DbResult<Option<Redrive>> {
    let statement = client.prepare_cached(GET).await?;
    let row = client.query_opt(&statement, &[&id.0, &scope.tenant()]).await?;
    row.as_ref().map(redrive).transpose()
}
