//! Events.

use super::DeliveryItem;
use crate::{
    auth::Caller,
    cursor::ListKind,
    errors::FieldErrors,
    json::{self, Object},
    listing::ListParameters,
    problem::{Kind, Problem, ProblemBody},
    query::Params,
    time::{self, ApiTime},
    validate,
};
use hooksaga_saga::{CorrelationId, EventType, ExternalId, Tenant, Timestamp};
use hooksaga_store::{EventFilter, EventHead, NewEvent, Unmatched};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

/// An event to ingest.
#[derive(Debug, ToSchema)]
pub(crate) struct EventRequest<'a> {
    /// Compared exactly, case included, with the topics of subscriptions. Types that begin with `hooksaga.` are reserved.
    #[schema(value_type = String, min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$", example = "order.created")]
    event_type: EventType,
    /// Any JSON value, nested at most 128 deep. Stored and delivered byte for byte.
    #[schema(value_type = serde_json::Value, example = json!({"order": 42}))]
    payload: &'a RawValue,
    /// Makes the request safe to repeat: the same id with the same content is stored once.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 200, pattern = "^[!-~]+$", example = "order-42-created")]
    external_id: Option<ExternalId>,
    /// Whose event it is: only this tenant's subscriptions receive it. `default` if it is not given; a key that is bound to
    /// a tenant may name no other.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$")]
    tenant: Option<Tenant>,
}

impl<'a> EventRequest<'a> {
    /// Reads an event; everything that is wrong with it goes into `errors`.
    pub(crate) fn read(
        mut object: Object<'a>,
        max_payload_bytes: usize,
        errors: &mut FieldErrors,
    ) -> Option<Self> {
        let event_type = object.required("event_type", errors, validate::writable_event_type);
        let payload = object.required("payload", errors, |value| {
            if json::depth(value.get()) > validate::MAX_DEPTH {
                return Err(format!("must be nested at most {} deep", validate::MAX_DEPTH));
            }
            Ok(value)
        });
        let payload = payload.filter(|payload| {
            let length = payload.get().len();
            let fits = length <= max_payload_bytes;
            if !fits {
                let detail = format!("has {length} bytes; at most {max_payload_bytes} are allowed");
                errors.add_too_large(&object.name_of("payload"), detail);
            }
            fits
        });
        let external_id = object.optional("external_id", errors, validate::parsed_json);
        let tenant = object.optional("tenant", errors, validate::writable_tenant);
        object.finish(errors);
        Some(Self { event_type: event_type?, payload: payload?, external_id, tenant })
    }

    /// The event, if the caller may write it.
    pub(crate) fn into_event(
        self,
        caller: &Caller,
        correlation_id: CorrelationId,
    ) -> Result<NewEvent, Problem> {
        let tenant = caller.owner(self.tenant)?;
        if tenant.is_reserved() {
            return Err(Problem::with_field(Kind::Invalid, "tenant", validate::RESERVED_TENANT));
        }
        Ok(NewEvent {
            tenant,
            event_type: self.event_type,
            payload: self.payload.get().into(),
            external_id: self.external_id,
            correlation_id,
        })
    }
}

/// Events to ingest together.
#[derive(Debug, ToSchema)]
pub(crate) struct BatchRequest<'a> {
    #[schema(min_items = 1, max_items = 1000)]
    pub(crate) events: Vec<EventRequest<'a>>,
}

impl<'a> BatchRequest<'a> {
    pub(crate) const MAX_EVENTS: usize = 1000;

    pub(crate) fn read(
        mut object: Object<'a>,
        max_payload_bytes: usize,
        errors: &mut FieldErrors,
    ) -> Option<Self> {
        let elements = object.required("events", errors, |value| {
            let elements = json::elements(value, Self::MAX_EVENTS)?;
            if (1..=Self::MAX_EVENTS).contains(&elements.count) {
                Ok(elements.items)
            } else {
                Err(format!("must have 1 to {} elements; it has {}", Self::MAX_EVENTS, elements.count))
            }
        });
        object.finish(errors);
        let elements = elements?;
        let mut events = Vec::with_capacity(elements.len());
        for (index, element) in elements.into_iter().enumerate() {
            let name = format!("events[{index}]");
            let event = errors
                .note(&name, Object::from_value(element, &name))
                .and_then(|object| EventRequest::read(object, max_payload_bytes, errors));
            events.extend(event);
        }
        Some(Self { events })
    }
}

/// An event that is stored.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IngestedEvent {
    #[serde(flatten)]
    event: EventItem,
    /// It had been stored before: this is the original.
    duplicate: bool,
}

impl IngestedEvent {
    pub(crate) fn new(head: EventHead, duplicate: bool) -> Self {
        Self { event: head.into(), duplicate }
    }
}

/// What became of one event of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum BatchResult {
    Stored(IngestedEvent),
    /// Its external_id is taken by an event with other content.
    Conflict {
        error: ProblemBody,
    },
}

/// The results of a batch, in the order of its events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchResults {
    pub(crate) results: Vec<BatchResult>,
}

/// An event without its payload.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventItem {
    id: i64,
    tenant: String,
    event_type: String,
    #[schema(required)]
    external_id: Option<String>,
    /// The caller's, or made for the event.
    correlation_id: String,
    created_at: ApiTime,
}

impl From<EventHead> for EventItem {
    fn from(head: EventHead) -> Self {
        Self {
            id: head.id.0,
            tenant: head.tenant,
            event_type: head.event_type,
            external_id: head.external_id,
            correlation_id: head.correlation_id,
            created_at: head.created_at.into(),
        }
    }
}

/// An event with its payload and deliveries.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventView<'a> {
    #[serde(flatten)]
    pub(crate) event: EventItem,
    /// Exactly the bytes that were received.
    #[schema(value_type = serde_json::Value)]
    pub(crate) payload: &'a RawValue,
    /// Whether its subscriptions have been looked up.
    pub(crate) routed: bool,
    /// Subscriptions with a matching topic that it could not go to when it was routed.
    pub(crate) unmatched: UnmatchedView,
    /// Oldest first, at most 500. `GET /v1/deliveries?event_id=` pages through all.
    pub(crate) deliveries: Vec<DeliveryItem>,
}

/// How many subscriptions an event could not go to when it was routed, each counted once: disabled, else paused, else
/// unverified. One that is unverified gets it once it is verified; a redrive makes up for the others.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UnmatchedView {
    paused: u64,
    disabled: u64,
    unverified: u64,
}

impl From<Unmatched> for UnmatchedView {
    fn from(unmatched: Unmatched) -> Self {
        let Unmatched { paused, disabled, unverified } = unmatched;
        Self { paused, disabled, unverified }
    }
}

/// Which events.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    #[param(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$")]
    event_type: Option<EventType>,
    #[param(value_type = Option<String>, min_length = 1, max_length = 200, pattern = "^[!-~]+$")]
    external_id: Option<ExternalId>,
    #[param(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^[!-~]+$")]
    correlation_id: Option<CorrelationId>,
    /// Created at this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    created_after: Option<Timestamp>,
    /// Created before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    created_before: Option<Timestamp>,
}

impl ListParameters for EventsQuery {
    const LIST: ListKind = ListKind::Events;

    fn read(params: &mut Params, errors: &mut FieldErrors) -> Self {
        Self {
            event_type: params.parsed("event_type", errors),
            external_id: params.parsed("external_id", errors),
            correlation_id: params.parsed("correlation_id", errors),
            created_after: params.take("created_after", errors, |text| time::parse(&text)),
            created_before: params.take("created_before", errors, |text| time::parse(&text)),
        }
    }
}

impl From<EventsQuery> for EventFilter {
    fn from(query: EventsQuery) -> Self {
        Self {
            event_type: query.event_type,
            external_id: query.external_id,
            correlation_id: query.correlation_id,
            created_after: query.created_after,
            created_before: query.created_before,
        }
    }
}
