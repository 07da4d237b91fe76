//! Audit records: who did what, and when.

use crate::{
    auth::{Admin, Allowed},
    cursor::ListKind,
    dto::{AuditItem, AuditQuery, PageOf, PageQuery},
    errors::FieldErrors,
    openapi::{KeyProblems, ListProblems},
    problem::Problem,
    query::Params,
    state::SharedState,
};
use axum::{Json, extract::State};

/// List audit records
///
/// Newest first: what was created, changed, deleted, revoked, sent again, and who signed in. For keys that are bound to no
/// tenant.
#[utoipa::path(
    get, path = "/v1/audit", tag = "keys", operation_id = "list_audit_records",
    security(("key" = ["admin"])),
    params(AuditQuery, PageQuery),
    responses(
        (status = 200, description = "A page of audit records", body = PageOf<AuditItem>),
        ListProblems, KeyProblems
    )
)]
pub(crate) async fn list(
    Allowed { caller, .. }: Allowed<Admin>,
    State(state): State<SharedState>,
    mut params: Params,
) -> Result<Json<PageOf<AuditItem>>, Problem> {
    caller.must_be_unbound()?;
    let mut errors = FieldErrors::default();
    let scope = params.scope(&caller, &mut errors)?;
    let query = AuditQuery::read(&mut params, &mut errors);
    let page = params.page(ListKind::Audit, errors)?;
    let records = state.reader.audit(page.of(&scope, &query.into())).await?;
    Ok(Json(PageOf::new(records, ListKind::Audit)))
}
