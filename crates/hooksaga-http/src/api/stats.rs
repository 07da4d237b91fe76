//! Statistics: read from counters, at most once a second per tenant however many ask.

use crate::{
    auth::{Allowed, Read},
    dto::{StatsQuery, StatsView},
    errors::FieldErrors,
    openapi::{KeyProblems, ListProblems},
    problem::Problem,
    query::Params,
    state::SharedState,
};
use axum::{Json, extract::State};
use std::sync::Arc;

/// Show how everything stands
///
/// Open deliveries, queues, and what ended lately, in all and per subscription.
#[utoipa::path(
    get, path = "/v1/stats", tag = "stats", operation_id = "get_stats",
    security(("key" = ["read"])),
    params(StatsQuery),
    responses((status = 200, description = "The statistics", body = StatsView), ListProblems, KeyProblems)
)]
pub(crate) async fn show(
    Allowed { caller, .. }: Allowed<Read>,
    State(state): State<SharedState>,
    mut params: Params,
) -> Result<Json<StatsView>, Problem> {
    let mut errors = FieldErrors::default();
    let scope = params.scope(&caller, &mut errors)?;
    params.finish(&mut errors);
    errors.check()?;
    let (cached, reader) = (state.stats.of(&scope), Arc::clone(&state.reader));
    let stats = cached
        .get(async move { reader.stats(&scope).await })
        .await
        .map_err(|error| Problem::from(&*error))?;
    Ok(Json(StatsView::from(&*stats)))
}
