//! Statistics: read from counters, at most once a second however many ask.

use crate::{
    auth::{Allowed, Read},
    dto::StatsView,
    openapi::KeyProblems,
    problem::Problem,
    query::NoParams,
    state::SharedState,
};
use axum::{Json, extract::State};

/// Show how everything stands
///
/// Open deliveries, queues, and what ended lately, in all and per subscription.
#[utoipa::path(
    get, path = "/v1/stats", tag = "stats", operation_id = "get_stats",
    security(("key" = ["read"])),
    responses((status = 200, description = "The statistics", body = StatsView), KeyProblems)
)]
pub(crate) async fn show(
    _: Allowed<Read>,
    State(state): State<SharedState>,
    _: NoParams,
) -> Result<Json<StatsView>, Problem> {
    let stats = state.stats.get(state.reader.stats()).await.map_err(|error| Problem::from(&*error))?;
    Ok(Json(StatsView::from(&*stats)))
}
