//! Redrives: start, list, show, cancel.

use super::endpoint_care::cannot_send_again;
use crate::{
    audit,
    auth::{Allowed, Caller, Operator, Read},
    body::{SMALL, Unread},
    cursor::ListKind,
    dto::{NewRedriveRequest, PageOf, PageQuery, RedriveView, RedrivesQuery},
    errors::{FieldErrors, complete},
    json::Object,
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
use hooksaga_saga::RedriveId;
use hooksaga_store::{
    CancelOutcome, NewRedrive, Page, Redrive, RunningLimits, Stage, StartOutcome, Starter, TooMany,
};
use http::{HeaderValue, StatusCode, header};

/// Start a redrive
///
/// Sends many again, in the background: all dead letters that match a filter, or all events of a subscription's tenant and
/// topics since a time of which it has no delivery yet. It can be watched and cancelled, and goes on after a crash. What
/// comes later is not part of it.
///
/// At most 20 run at a time, at most 5 of one tenant, and one of a tenant starts only while fewer than 15 run. Beyond that: 429
/// with the type `urn:hooksaga:problem:too-many-redrives` and `retry-after`.
#[utoipa::path(
    post, path = "/v1/redrives", tag = "redrives", operation_id = "start_redrive",
    security(("key" = ["operator"])),
    request_body = NewRedriveRequest,
    responses(
        (status = 202, description = "It has begun", body = RedriveView,
            headers(("location" = String, description = "The redrive's path"))),
        Conflict, NoSuchRow, BodyProblems, KeyProblems
    )
)]
pub(crate) async fn start(
    Allowed { caller, .. }: Allowed<Operator>,
    State(state): State<SharedState>,
    _: NoParams,
    body: Unread,
) -> Result<Response, Problem> {
    let body = body.json(SMALL, &state.bodies).await?;
    let redrive = start_from(&state, &caller, &body.bytes).await?;
    let location = [(header::LOCATION, format!("/v1/redrives/{}", redrive.id))];
    Ok((StatusCode::ACCEPTED, location, Json(RedriveView::for_caller(&caller, redrive))).into_response())
}

/// Starts what a request's body asks for.
pub(crate) async fn start_from(state: &ApiState, caller: &Caller, body: &[u8]) -> Result<Redrive, Problem> {
    let mut errors = FieldErrors::default();
    let request = NewRedriveRequest::read(Object::from_body(body)?, &mut errors);
    let request = complete(errors, request)?;
    let scope = caller.scope(request.tenant)?;
    let starter = Starter { key_id: caller.key_id, name: caller.name.clone() };
    match state
        .redrives
        .start(NewRedrive { scope: &scope, work: &request.work, starter: &starter }, RunningLimits::DEFAULT)
        .await?
    {
        StartOutcome::Started(redrive) => {
            state.signals.wake(Stage::Redrives);
            audit::about(format!("redrives/{}", redrive.id), redrive.tenant.as_deref().unwrap_or_default());
            Ok(*redrive)
        }
        StartOutcome::NoSuchSubscription(id) => Err(Problem::no_such("subscription", id.0)),
        StartOutcome::NotDeliverable(id) => Err(cannot_send_again(state, id).await),
        StartOutcome::TooMany(refusal) => Err(too_many(refusal)),
    }
}

/// A redrive's duration cannot be predicted; retrying once a minute is enough.
fn too_many(refusal: TooMany) -> Problem {
    let detail = match refusal {
        TooMany::OfTenant(running) => {
            format!(
                "{running} redrives of this tenant are already running; wait until one finishes, or cancel one"
            )
        }
        TooMany::InAll => {
            "the maximum number of redrives is already running; wait until one finishes".to_owned()
        }
    };
    Problem::new(Kind::TooManyRedrives, detail)
        .with_header(header::RETRY_AFTER, HeaderValue::from_static("60"))
}

/// List redrives
///
/// Newest first.
#[utoipa::path(
    get, path = "/v1/redrives", tag = "redrives", operation_id = "list_redrives",
    security(("key" = ["read"])),
    params(PageQuery),
    responses(
        (status = 200, description = "A page of redrives", body = PageOf<RedriveView>), ListProblems, KeyProblems
    )
)]
pub(crate) async fn list(
    ListRequest { caller, scope, page, .. }: ListRequest<RedrivesQuery>,
    State(state): State<SharedState>,
) -> Result<Json<PageOf<RedriveView>>, Problem> {
    let found = state.reader.redrives(&scope, page).await?;
    let items = found.items.into_iter().map(|redrive| RedriveView::for_caller(&caller, redrive)).collect();
    Ok(Json(PageOf::new(Page { items, next: found.next }, ListKind::Redrives)))
}

/// Show a redrive
///
/// How far it came.
#[utoipa::path(
    get, path = "/v1/redrives/{id}", tag = "redrives", operation_id = "get_redrive",
    security(("key" = ["read"])),
    params(("id" = i64, Path, minimum = 1)),
    responses((status = 200, description = "The redrive", body = RedriveView), NoSuchRow, KeyProblems)
)]
pub(crate) async fn show(
    Allowed { caller, .. }: Allowed<Read>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
) -> Result<Json<RedriveView>, Problem> {
    let redrive = state.reader.redrive(&caller.scope(None)?, RedriveId(id)).await?;
    Ok(Json(RedriveView::for_caller(&caller, redrive.ok_or_else(|| no_such(id))?)))
}

/// Cancel a redrive
///
/// What it has made stays.
#[utoipa::path(
    post, path = "/v1/redrives/{id}/cancel", tag = "redrives", operation_id = "cancel_redrive",
    security(("key" = ["operator"])),
    params(("id" = i64, Path, minimum = 1)),
    responses(
        (status = 200, description = "It is cancelled", body = RedriveView),
        Conflict, NoSuchRow, BodyProblems, KeyProblems
    )
)]
pub(crate) async fn cancel(
    Allowed { caller, .. }: Allowed<Operator>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<Json<RedriveView>, Problem> {
    body.nothing(&state.bodies).await?;
    Ok(Json(RedriveView::for_caller(&caller, cancel_from(&state, &caller, id).await?)))
}

/// Cancels one that runs.
pub(crate) async fn cancel_from(state: &ApiState, caller: &Caller, id: i64) -> Result<Redrive, Problem> {
    match state.redrives.cancel(&caller.scope(None)?, RedriveId(id)).await? {
        CancelOutcome::Cancelled(redrive) => {
            audit::about(format!("redrives/{id}"), redrive.tenant.as_deref().unwrap_or_default());
            Ok(*redrive)
        }
        CancelOutcome::NotRunning(status) => Err(Problem::new(
            Kind::NotRunning,
            format!("redrive {id} is {status}: there is nothing to cancel"),
        )),
        CancelOutcome::NotFound => Err(no_such(id)),
    }
}

fn no_such(id: i64) -> Problem {
    Problem::no_such("redrive", id)
}
