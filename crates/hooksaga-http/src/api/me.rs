//! The key that a request carries.

use crate::{auth::AnyKey, dto::MeView, openapi::KeyProblems, query::NoParams};
use axum::Json;

/// Show the key that is used
///
/// Its name, scopes, tenant and expiry.
#[utoipa::path(
    get, path = "/v1/me", tag = "keys", operation_id = "get_me",
    security(("key" = [])),
    responses((status = 200, description = "The key", body = MeView), KeyProblems)
)]
pub(crate) async fn show(AnyKey(caller): AnyKey, _: NoParams) -> Json<MeView> {
    Json(MeView::from(&*caller))
}
