//! Statistics: read from counters, at most once a second per tenant however many ask; and open deliveries, which are counted
//! (`refreshed`).

use crate::{
    auth::{Allowed, Read},
    dto::{StatsQuery, StatsView},
    errors::FieldErrors,
    openapi::{KeyProblems, ListProblems},
    problem::Problem,
    query::Params,
    refreshed::Patience,
    state::SharedState,
};
use axum::{Json, extract::State};
use std::{sync::Arc, time::Duration};

/// How long a request waits for what is open to be counted.
const PATIENCE: Patience = Patience { for_newer: Duration::from_secs(1), for_any: Duration::from_secs(5) };

/// Show how everything stands
///
/// Open deliveries, queues, and what ended lately, in all and per subscription. Where so many deliveries are open that counting
/// them takes long, the previous counts are returned, with their age.
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
    let of = scope.clone();
    let (stats, open) = tokio::join!(
        cached.get(async move { reader.stats(&of).await }),
        state.open_work.of(&scope, PATIENCE)
    );
    let stats = stats.map_err(|error| Problem::from(&*error))?;
    let open = open.figures().map_err(|error| Problem::from(&*error))?;
    Ok(Json(StatsView::new(&stats, &open)))
}
