//! Deliveries: list and show.

use crate::{
    auth::{Allowed, Read},
    cursor::List,
    dto::{DeliveriesQuery, DeliveryItem, DeliveryView, PageOf, PageQuery},
    errors::FieldErrors,
    openapi::{KeyProblems, ListProblems, NoSuchRow},
    path::Id,
    problem::Problem,
    query::{NoParams, Params},
    state::SharedState,
};
use axum::{Json, extract::State};
use hooksaga_saga::SagaId;

/// List deliveries
///
/// Newest first.
#[utoipa::path(
    get, path = "/v1/deliveries", tag = "deliveries", operation_id = "list_deliveries",
    security(("key" = ["read"])),
    params(DeliveriesQuery, PageQuery),
    responses(
        (status = 200, description = "A page of deliveries", body = PageOf<DeliveryItem>),
        ListProblems, KeyProblems
    )
)]
pub(crate) async fn list(
    _: Allowed<Read>,
    State(state): State<SharedState>,
    mut params: Params,
) -> Result<Json<PageOf<DeliveryItem>>, Problem> {
    let mut errors = FieldErrors::default();
    let query = DeliveriesQuery::read(&mut params, &mut errors);
    let page = params.page(List::Deliveries, errors)?;
    let deliveries = state.reader.deliveries(&query.into(), page).await?;
    Ok(Json(PageOf::new(deliveries, List::Deliveries)))
}

/// Show a delivery
///
/// With every attempt, oldest first.
#[utoipa::path(
    get, path = "/v1/deliveries/{saga_id}", tag = "deliveries", operation_id = "get_delivery",
    security(("key" = ["read"])),
    params(("saga_id" = i64, Path, minimum = 1)),
    responses((status = 200, description = "The delivery", body = DeliveryView), NoSuchRow, KeyProblems)
)]
pub(crate) async fn show(
    _: Allowed<Read>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
) -> Result<Json<DeliveryView>, Problem> {
    let delivery = state.reader.delivery(SagaId(id)).await?;
    delivery.map(|delivery| Json(delivery.into())).ok_or_else(|| Problem::no_such("delivery", id))
}
