//! Events: ingest one, list, show.

use crate::{
    auth::{Allowed, Ingest, Read},
    body::{ENVELOPE_ALLOWANCE, Unread},
    cursor::ListKind,
    dto::{EventItem, EventRequest, EventView, EventsQuery, IngestedEvent, PageOf, PageQuery},
    errors::{FieldErrors, complete},
    json::Object,
    listing::ListRequest,
    openapi::{BodyProblems, Conflict, KeyProblems, ListProblems, NoSuchRow},
    path::EventIdInPath,
    problem::{Kind, Problem},
    query::NoParams,
    state::SharedState,
    validate,
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hooksaga_pipeline::random_hex;
use hooksaga_saga::{CorrelationId, EventId};
use hooksaga_store::Appended;
use http::{HeaderMap, StatusCode, header};
use serde_json::value::RawValue;
use std::time::{SystemTime, UNIX_EPOCH};

/// The header that carries the correlation id.
pub(crate) const CORRELATION_HEADER: &str = "x-correlation-id";

/// Ingest an event
///
/// It is stored durably before the response, and delivered to every active and verified subscription of its tenant with a
/// topic that matches its type. The same `external_id` with the same content again returns 200 with the original.
#[utoipa::path(
    post, path = "/v1/events", tag = "events", operation_id = "create_event",
    security(("key" = ["ingest"])),
    params(("x-correlation-id" = Option<String>, Header,
        description = "Carried through logs and to the callback; generated if it is not given",
        min_length = 1, max_length = 100, pattern = "^[!-~]+$")),
    request_body = EventRequest,
    responses(
        (status = 201, description = "Stored", body = IngestedEvent,
            headers(("location" = String, description = "The event's path"))),
        (status = 200, description = "It was stored before: the original", body = IngestedEvent),
        Conflict, BodyProblems, KeyProblems
    )
)]
pub(crate) async fn create(
    Allowed { caller, .. }: Allowed<Ingest>,
    State(state): State<SharedState>,
    _: NoParams,
    body: Unread,
) -> Result<Response, Problem> {
    let mut errors = FieldErrors::default();
    let correlation_id = correlation_id(body.headers(), &mut errors);
    let limit = state.max_payload_bytes.saturating_add(ENVELOPE_ALLOWANCE);
    let body = body.json(limit, &state.bodies).await?;
    let object = Object::from_body(&body.bytes)?;
    let request = EventRequest::read(object, state.max_payload_bytes, &mut errors);
    let event =
        complete(errors, request)?.into_event(&caller, correlation_id.unwrap_or_else(new_correlation_id))?;
    // The event holds its own copy: what waits for its commit is not in memory twice.
    drop(body);

    let appended = state.ingest.submit(vec![event]).await?.pop();
    match appended.ok_or_else(|| Problem::new(Kind::Internal, "ingestion returned nothing"))? {
        Appended::Created(head) => {
            let location = [(header::LOCATION, format!("/v1/events/{}", head.id))];
            Ok((StatusCode::CREATED, location, Json(IngestedEvent::new(head, false))).into_response())
        }
        Appended::Duplicate(head) => Ok(Json(IngestedEvent::new(head, true)).into_response()),
        Appended::Conflict { existing } => Err(conflict(existing)),
    }
}

/// List events
///
/// Newest first, without their payloads.
#[utoipa::path(
    get, path = "/v1/events", tag = "events", operation_id = "list_events",
    security(("key" = ["read"])),
    params(EventsQuery, PageQuery),
    responses((status = 200, description = "A page of events", body = PageOf<EventItem>), ListProblems, KeyProblems)
)]
pub(crate) async fn list(
    ListRequest { scope, query, page, .. }: ListRequest<EventsQuery>,
    State(state): State<SharedState>,
) -> Result<Json<PageOf<EventItem>>, Problem> {
    let events = state.reader.events(page.of(&scope, &query.into())).await?;
    Ok(Json(PageOf::new(events, ListKind::Events)))
}

/// Show an event
///
/// With its payload byte for byte, whether it is routed, the subscriptions that it could not be delivered to, and its deliveries.
#[utoipa::path(
    get, path = "/v1/events/{id}", tag = "events", operation_id = "get_event",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The event's id, also as receivers see it", pattern = "^(evt_)?[1-9][0-9]*$", example = "evt_17")),
    responses((status = 200, description = "The event", body = EventView), NoSuchRow, KeyProblems)
)]
pub(crate) async fn show(
    Allowed { caller, .. }: Allowed<Read>,
    State(state): State<SharedState>,
    EventIdInPath(id): EventIdInPath,
    _: NoParams,
) -> Result<Response, Problem> {
    let scope = caller.scope(None)?;
    let event =
        state.reader.event(&scope, EventId(id)).await?.ok_or_else(|| Problem::no_such("event", id))?;
    let view = EventView {
        event: event.head.into(),
        payload: stored_payload(&event.payload)?,
        routed: event.routed,
        unmatched: event.unmatched.into(),
        deliveries: event.deliveries.into_iter().map(Into::into).collect(),
    };
    Ok(Json(view).into_response())
}

/// The caller's correlation id, if there is one.
pub(crate) fn correlation_id(headers: &HeaderMap, errors: &mut FieldErrors) -> Option<CorrelationId> {
    let mut values = headers.get_all(CORRELATION_HEADER).iter();
    let value = values.next()?;
    if values.next().is_some() {
        errors.add(CORRELATION_HEADER, "is given more than once");
    }
    // Bytes that are no ASCII text become one that no id may have.
    errors.note(CORRELATION_HEADER, validate::parsed(value.to_str().unwrap_or(" ")))
}

/// 32 hexadecimal digits: a timestamp in milliseconds, then random digits. Ids that grow with time are neighbours in the
/// index on them; ids that are entirely random would touch another page of it with every event.
pub(crate) fn new_correlation_id() -> CorrelationId {
    #[expect(clippy::disallowed_methods, reason = "only the order of ids depends on it")]
    let now = SystemTime::now();
    let millis = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() & 0xffff_ffff_ffff;
    let text = format!("{millis:012x}{}", random_hex(10));
    text.parse().expect("hexadecimal digits are visible ASCII")
}

pub(crate) fn conflict(existing: EventId) -> Problem {
    let detail = format!("event {existing} has this external_id, with another event_type or payload");
    Problem::new(Kind::ExternalIdTaken, detail).with_existing(existing.0)
}

/// A payload from the database, to be put into a response as it is.
pub(crate) fn stored_payload(payload: &str) -> Result<&RawValue, Problem> {
    serde_json::from_str(payload).map_err(|error| {
        tracing::error!(%error, "a stored payload is not JSON");
        Problem::new(Kind::Internal, "the stored payload is not JSON")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_correlation_ids_grow_with_time_and_differ() {
        let first = new_correlation_id();
        std::thread::sleep(std::time::Duration::from_millis(3));
        let first = first.as_str();
        let later: Vec<_> = (0..100).map(|_| new_correlation_id().to_string()).collect();
        assert!(first.len() == 32 && first.bytes().all(|byte| byte.is_ascii_hexdigit()), "{first}");
        assert!(later.iter().all(|id| first[..12] < id[..12]), "{first} {later:?}");
        assert_eq!(later.iter().collect::<std::collections::HashSet<_>>().len(), 100);
    }
}
