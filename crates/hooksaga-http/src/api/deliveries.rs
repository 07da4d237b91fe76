//! Deliveries: list, show, resend.

use crate::{
    api::{dead_letters::created, endpoint_care::cannot_send_again},
    audit,
    auth::{Allowed, Operator, Read},
    body::Unread,
    cursor::ListKind,
    dto::{DeliveriesQuery, DeliveryItem, DeliveryView, PageOf, PageQuery, RequeuedSaga},
    explanation::WaitCauses,
    listing::ListRequest,
    openapi::{BodyProblems, Conflict, KeyProblems, ListProblems, NoSuchRow},
    path::Id,
    problem::{Kind, Problem},
    query::NoParams,
    state::{ApiState, SharedState},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hooksaga_saga::{Held, SagaId};
use hooksaga_store::{Delivery, ResendOutcome, StoreResult, TenantScope};

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
    ListRequest { scope, query, page, .. }: ListRequest<DeliveriesQuery>,
    State(state): State<SharedState>,
) -> Result<Json<PageOf<DeliveryItem>>, Problem> {
    let deliveries = state.reader.deliveries(page.of(&scope, &query.into())).await?;
    Ok(Json(PageOf::new(deliveries, ListKind::Deliveries)))
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
    Allowed { caller, .. }: Allowed<Read>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
) -> Result<Json<DeliveryView>, Problem> {
    let scope = caller.scope(None)?;
    let detail = state.reader.delivery(&scope, SagaId(id)).await?.ok_or_else(|| no_such(id))?;
    let wait_causes = wait_causes(&state, &scope, &detail.delivery).await?;
    Ok(Json(DeliveryView::new(detail, wait_causes)))
}

/// How an open delivery's subscription stands.
pub(crate) async fn wait_causes(
    state: &ApiState,
    scope: &TenantScope,
    delivery: &Delivery,
) -> StoreResult<WaitCauses> {
    if delivery.status.is_final() {
        return Ok(WaitCauses::default());
    }
    Ok(match state.reader.subscription(scope, delivery.subscription_id).await? {
        Some(subscription) => WaitCauses { held: subscription.held(), rate_limit: subscription.rate_limit },
        None => WaitCauses { held: Some(Held::Deleted), rate_limit: None },
    })
}

/// Send a delivery again
///
/// Starts a new delivery of the same event to the same subscription, once this one has ended. Again returns 200 with the
/// same delivery. The requeue of its dead letter is the same thing.
#[utoipa::path(
    post, path = "/v1/deliveries/{saga_id}/resend", tag = "deliveries", operation_id = "resend_delivery",
    security(("key" = ["operator"])),
    params(("saga_id" = i64, Path, minimum = 1)),
    responses(
        (status = 201, description = "The new delivery", body = RequeuedSaga,
            headers(("location" = String, description = "The delivery's path"))),
        (status = 200, description = "It was sent again before: that delivery", body = RequeuedSaga),
        Conflict, NoSuchRow, BodyProblems, KeyProblems
    )
)]
pub(crate) async fn resend(
    Allowed { caller, .. }: Allowed<Operator>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<Response, Problem> {
    body.nothing(&state.bodies).await?;
    match state.requeue.resend(&caller.scope(None)?, SagaId(id)).await? {
        ResendOutcome::Created(requeued, _) => Ok(created(requeued)),
        ResendOutcome::Already(requeued) => {
            audit::changed_nothing();
            Ok(Json(RequeuedSaga::from(requeued)).into_response())
        }
        ResendOutcome::Open => Err(Problem::new(
            Kind::StillOpen,
            format!("delivery {id} is under way; it can be sent again once it is Completed or DeadLettered"),
        )),
        ResendOutcome::NotDeliverable(subscription) => Err(cannot_send_again(&state, subscription).await),
        ResendOutcome::NotFound => Err(no_such(id)),
    }
}

fn no_such(id: i64) -> Problem {
    Problem::no_such("delivery", id)
}
