//! Redrives.

use super::page;
use crate::{
    error::DbResult,
    roles::{
        filter::Filter,
        redrive::{redrive, redrive_columns},
    },
};
use deadpool_postgres::Client;
use hooksaga_saga::RedriveId;
use hooksaga_store::{Page, PageRequest, Redrive, TenantScope};

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
    let mut filter = Filter::new();
    filter.add_some("id < ", request.before);
    filter.add_scope("tenant = ", scope);
    page(client, LIST, "id", &filter, request, redrive).await
}

pub(super) async fn get(client: &Client, scope: &TenantScope, id: RedriveId) -> DbResult<Option<Redrive>> {
    let statement = client.prepare_cached(GET).await?;
    let row = client.query_opt(&statement, &[&id.0, &scope.tenant()]).await?;
    row.as_ref().map(redrive).transpose()
}
