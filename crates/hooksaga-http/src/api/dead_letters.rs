//! Dead letters: list, show, requeue one, requeue many.

use crate::{
    api::{endpoint_care::cannot_send_again, events::stored_payload},
    audit,
    auth::{Allowed, Operator, Read},
    body::{SMALL, Unread},
    cursor::ListKind,
    dto::{
        DeadLetterItem, DeadLetterView, DeadLettersQuery, PageOf, PageQuery, RequeueAllRequest,
        RequeueResult, RequeuedSaga,
    },
    errors::{FieldErrors, complete},
    json::Object,
    listing::ListRequest,
    openapi::{BodyProblems, Conflict, KeyProblems, ListProblems, NoSuchRow},
    path::Id,
    problem::Problem,
    query::NoParams,
    state::{ApiState, SharedState},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hooksaga_pipeline::RequeueTally;
use hooksaga_saga::DeadLetterId;
use hooksaga_store::{DeadLetterFilter, QUERY_LIMIT, RequeueOutcome, Requeued, TenantScope};
use http::{StatusCode, header};
use std::time::Instant;

/// List dead letters
///
/// Newest first, without their payloads.
#[utoipa::path(
    get, path = "/v1/dead-letters", tag = "dead letters", operation_id = "list_dead_letters",
    security(("key" = ["read"])),
    params(DeadLettersQuery, PageQuery),
    responses(
        (status = 200, description = "A page of dead letters", body = PageOf<DeadLetterItem>),
        ListProblems, KeyProblems
    )
)]
pub(crate) async fn list(
    ListRequest { scope, query, page, .. }: ListRequest<DeadLettersQuery>,
    State(state): State<SharedState>,
) -> Result<Json<PageOf<DeadLetterItem>>, Problem> {
    let letters = state.reader.dead_letters(page.of(&scope, &query.into())).await?;
    Ok(Json(PageOf::new(letters, ListKind::DeadLetters)))
}

/// Show a dead letter
///
/// With the payload byte for byte.
#[utoipa::path(
    get, path = "/v1/dead-letters/{id}", tag = "dead letters", operation_id = "get_dead_letter",
    security(("key" = ["read"])),
    params(("id" = i64, Path, minimum = 1)),
    responses((status = 200, description = "The dead letter", body = DeadLetterView), NoSuchRow, KeyProblems)
)]
pub(crate) async fn show(
    Allowed { caller, .. }: Allowed<Read>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
) -> Result<Response, Problem> {
    let letter = state.reader.dead_letter(&caller.scope(None)?, DeadLetterId(id)).await?;
    let letter = letter.ok_or_else(|| no_such(id))?;
    let view = DeadLetterView { letter: letter.summary.into(), payload: stored_payload(&letter.payload)? };
    Ok(Json(view).into_response())
}

/// Requeue a dead letter
///
/// Starts a new delivery of the same event to the same subscription. Again returns 200 with the same delivery.
#[utoipa::path(
    post, path = "/v1/dead-letters/{id}/requeue", tag = "dead letters", operation_id = "requeue_dead_letter",
    security(("key" = ["operator"])),
    params(("id" = i64, Path, minimum = 1)),
    responses(
        (status = 201, description = "The new delivery", body = RequeuedSaga,
            headers(("location" = String, description = "The delivery's path"))),
        (status = 200, description = "It was requeued before: that delivery", body = RequeuedSaga),
        Conflict, NoSuchRow, BodyProblems, KeyProblems
    )
)]
pub(crate) async fn requeue(
    Allowed { caller, .. }: Allowed<Operator>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<Response, Problem> {
    body.nothing(&state.bodies).await?;
    match state.requeue.one(&caller.scope(None)?, DeadLetterId(id)).await? {
        RequeueOutcome::Created(requeued, _) => Ok(created(requeued)),
        RequeueOutcome::Already(requeued) => {
            audit::changed_nothing();
            Ok(Json(RequeuedSaga::from(requeued)).into_response())
        }
        RequeueOutcome::NotDeliverable(subscription) => Err(cannot_send_again(&state, subscription).await),
        RequeueOutcome::NotFound => Err(no_such(id)),
    }
}

/// Requeue many dead letters
///
/// Oldest first. `filter` is required, and `{}` means all. What was requeued already does not match; letters of
/// inactive or unverified subscriptions are skipped and do not count against the limit. A request
/// goes on for 5 s at most. `complete` says whether that was all; if not, the next one does more.
#[utoipa::path(
    post, path = "/v1/dead-letters/requeue", tag = "dead letters", operation_id = "requeue_dead_letters",
    security(("key" = ["operator"])),
    request_body = RequeueAllRequest,
    responses(
        (status = 200, description = "What was done, or in a dry run would have been", body = RequeueResult),
        BodyProblems, KeyProblems
    )
)]
pub(crate) async fn requeue_all(
    Allowed { caller, .. }: Allowed<Operator>,
    State(state): State<SharedState>,
    _: NoParams,
    body: Unread,
) -> Result<Json<RequeueResult>, Problem> {
    let body = body.json(SMALL, &state.bodies).await?;
    let mut errors = FieldErrors::default();
    let request = RequeueAllRequest::read(Object::from_body(&body.bytes)?, &mut errors);
    let request = complete(errors, request)?;
    let scope = caller.scope(request.filter.tenant.clone())?;
    let filter = request.filter.into();
    let tally = requeue_many(&state, &scope, &filter, request.limit, request.dry_run).await?;
    Ok(Json(tally.into()))
}

/// Requeues what matches the filter. Error codes are compared as the scope sees them, by the store.
pub(crate) async fn requeue_many(
    state: &ApiState,
    scope: &TenantScope,
    filter: &DeadLetterFilter,
    limit: u32,
    dry_run: bool,
) -> Result<RequeueTally, Problem> {
    audit::whose(scope);
    if dry_run {
        audit::changed_nothing();
    }
    Ok(state.requeue.many(scope, filter, limit, dry_run, Instant::now() + QUERY_LIMIT).await?)
}

/// A delivery that a requeue or a resend has made.
pub(super) fn created(requeued: Requeued) -> Response {
    let location = [(header::LOCATION, format!("/v1/deliveries/{}", requeued.saga_id))];
    (StatusCode::CREATED, location, Json(RequeuedSaga::from(requeued))).into_response()
}

fn no_such(id: i64) -> Problem {
    Problem::no_such("dead letter", id)
}
