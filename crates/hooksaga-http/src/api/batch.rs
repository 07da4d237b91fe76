//! Ingest many events at once: all of them are valid and stored, or none is.

use crate::{
    api::events::{conflict, correlation_id, new_correlation_id},
    auth::{Allowed, Ingest},
    body::Unread,
    dto::{BatchRequest, BatchResult, BatchResults, IngestedEvent},
    errors::{FieldErrors, complete},
    json::Object,
    openapi::{BodyProblems, KeyProblems},
    problem::Problem,
    query::NoParams,
    state::SharedState,
};
use axum::{Json, extract::State};
use hooksaga_store::{Appended, NewEvent};

/// Ingest a batch of events
///
/// One result per event, in order. If any event is invalid nothing is stored, and the response names each fault as
/// `events[index].field`. An event whose `external_id` is taken by other content gets an `error`; its neighbours
/// are stored all the same.
#[utoipa::path(
    post, path = "/v1/events/batch", tag = "events", operation_id = "create_events",
    security(("key" = ["ingest"])),
    params(("x-correlation-id" = Option<String>, Header,
        description = "For every event of the batch; generated for each if it is not given",
        min_length = 1, max_length = 100, pattern = "^[!-~]+$")),
    request_body = BatchRequest,
    responses(
        (status = 200, description = "What became of each event", body = BatchResults),
        BodyProblems, KeyProblems
    )
)]
pub(crate) async fn create_batch(
    Allowed { caller, .. }: Allowed<Ingest>,
    State(state): State<SharedState>,
    _: NoParams,
    body: Unread,
) -> Result<Json<BatchResults>, Problem> {
    let mut errors = FieldErrors::default();
    let correlation_id = correlation_id(body.headers(), &mut errors);
    let body = body.json(state.max_batch_bytes, &state.bodies).await?;
    let object = Object::from_body(&body.bytes)?;
    let request = BatchRequest::read(object, state.max_payload_bytes, &mut errors);
    let events: Vec<NewEvent> = complete(errors, request)?
        .events
        .into_iter()
        .map(|event| event.into_event(&caller, correlation_id.clone().unwrap_or_else(new_correlation_id)))
        .collect::<Result<_, Problem>>()?;
    // The events hold their own copies: what waits for its commit is not in memory twice.
    drop(body);

    let results = state.ingest.submit(events).await?.into_iter().map(result).collect();
    Ok(Json(BatchResults { results }))
}

fn result(appended: Appended) -> BatchResult {
    match appended {
        Appended::Created(head) => BatchResult::Stored(IngestedEvent::new(head, false)),
        Appended::Duplicate(head) => BatchResult::Stored(IngestedEvent::new(head, true)),
        Appended::Conflict { existing } => BatchResult::Conflict { error: conflict(existing).into_body() },
    }
}
