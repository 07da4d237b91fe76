//! Dead letters and their requeue.

use crate::{
    cursor::ListKind,
    errors::FieldErrors,
    json::{self, Object},
    listing::ListParameters,
    query::Params,
    time::{self, ApiTime},
    validate,
};
use hooksaga_pipeline::RequeueTally;
use hooksaga_saga::{ErrorCode, EventType, SubscriptionId, Tenant, Timestamp};
use hooksaga_store::{DeadLetterFilter, DeadLetterSummary, Requeued};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

/// A delivery that was given up, without the payload.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadLetterItem {
    id: i64,
    tenant: String,
    saga_id: i64,
    event_id: i64,
    event_type: String,
    subscription_id: i64,
    #[schema(example = "HTTP_503")]
    final_error_code: String,
    created_at: ApiTime,
    /// The delivery that a requeue made of it.
    #[schema(required)]
    requeued_saga_id: Option<i64>,
}

impl From<DeadLetterSummary> for DeadLetterItem {
    fn from(letter: DeadLetterSummary) -> Self {
        Self {
            id: letter.id.0,
            tenant: letter.tenant,
            saga_id: letter.saga_id.0,
            event_id: letter.event_id.0,
            event_type: letter.event_type,
            subscription_id: letter.subscription_id.0,
            final_error_code: letter.final_error_code.as_str().to_owned(),
            created_at: letter.created_at.into(),
            requeued_saga_id: letter.requeued_saga_id.map(|id| id.0),
        }
    }
}

/// A dead letter with the payload.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadLetterView<'a> {
    #[serde(flatten)]
    pub(crate) letter: DeadLetterItem,
    /// Exactly the bytes that were received with the event.
    #[schema(value_type = serde_json::Value)]
    pub(crate) payload: &'a RawValue,
}

/// Which dead letters; all of what is given must hold.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeadLettersQuery {
    #[param(minimum = 1)]
    subscription_id: Option<i64>,
    #[param(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$")]
    event_type: Option<EventType>,
    #[param(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^[!-~]+$")]
    final_error_code: Option<ErrorCode>,
    /// Only those that have been requeued, or only those that have not.
    requeued: Option<bool>,
    /// Created at this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    created_after: Option<Timestamp>,
    /// Created before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    created_before: Option<Timestamp>,
}

impl ListParameters for DeadLettersQuery {
    const LIST: ListKind = ListKind::DeadLetters;

    fn read(params: &mut Params, errors: &mut FieldErrors) -> Self {
        Self {
            subscription_id: params.take("subscription_id", errors, |text| validate::id(&text)),
            event_type: params.parsed("event_type", errors),
            final_error_code: params.parsed("final_error_code", errors),
            requeued: params.take("requeued", errors, |text| validate::boolean(&text)),
            created_after: params.take("created_after", errors, |text| time::parse(&text)),
            created_before: params.take("created_before", errors, |text| time::parse(&text)),
        }
    }
}

impl From<DeadLettersQuery> for DeadLetterFilter {
    fn from(query: DeadLettersQuery) -> Self {
        Self {
            subscription_id: query.subscription_id.map(SubscriptionId),
            event_type: query.event_type,
            final_error_code: query.final_error_code,
            requeued: query.requeued,
            created_after: query.created_after,
            created_before: query.created_before,
        }
    }
}

/// Which dead letters to requeue; all of what is given must hold, and `{}` means all. What was requeued already
/// never matches.
#[derive(Debug, ToSchema)]
pub(crate) struct RequeueFilter {
    /// Only this tenant's; a key that is bound to a tenant may name no other.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$")]
    pub(crate) tenant: Option<Tenant>,
    #[schema(minimum = 1)]
    subscription_id: Option<i64>,
    #[schema(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$")]
    event_type: Option<EventType>,
    #[schema(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^[!-~]+$", example = "HTTP_503")]
    final_error_code: Option<ErrorCode>,
    /// Only `false`: what was requeued already is not sent again.
    requeued: Option<bool>,
    /// Created at this time or later.
    #[schema(value_type = Option<String>, format = DateTime)]
    created_after: Option<Timestamp>,
    /// Created before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    created_before: Option<Timestamp>,
}

impl RequeueFilter {
    pub(super) fn read(mut object: Object<'_>, errors: &mut FieldErrors) -> Self {
        let filter = Self {
            tenant: object.optional("tenant", errors, validate::parsed_json),
            subscription_id: object
                .optional("subscription_id", errors, |value| json::integer(value, 1..=i64::MAX)),
            event_type: object.optional("event_type", errors, validate::parsed_json),
            final_error_code: object.optional("final_error_code", errors, validate::parsed_json),
            requeued: object.optional("requeued", errors, |value| match json::boolean(value)? {
                true => Err("must be false: what was requeued already is not sent again".to_owned()),
                false => Ok(false),
            }),
            created_after: object.optional("created_after", errors, |value| {
                json::string(value).and_then(|text| time::parse(&text))
            }),
            created_before: object.optional("created_before", errors, |value| {
                json::string(value).and_then(|text| time::parse(&text))
            }),
        };
        object.finish(errors);
        filter
    }
}

impl From<RequeueFilter> for DeadLetterFilter {
    fn from(filter: RequeueFilter) -> Self {
        Self {
            subscription_id: filter.subscription_id.map(SubscriptionId),
            event_type: filter.event_type,
            final_error_code: filter.final_error_code,
            requeued: filter.requeued,
            created_after: filter.created_after,
            created_before: filter.created_before,
        }
    }
}

/// A requeue of many dead letters.
#[derive(Debug, ToSchema)]
pub(crate) struct RequeueAllRequest {
    pub(crate) filter: RequeueFilter,
    /// The most that are requeued, oldest first; skipped ones do not count.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10000, default = 1000)]
    pub(crate) limit: u32,
    /// Counts, and changes nothing.
    #[schema(value_type = Option<bool>, default = false)]
    pub(crate) dry_run: bool,
}

impl RequeueAllRequest {
    pub(crate) fn read(mut object: Object<'_>, errors: &mut FieldErrors) -> Option<Self> {
        let filter = object.required("filter", errors, |value| Object::from_value(value, "filter"));
        let filter = filter.map(|filter| RequeueFilter::read(filter, errors));
        let limit = object.optional("limit", errors, |value| {
            json::integer(value, 1..=10_000)
                .and_then(|limit| u32::try_from(limit).map_err(|_| "is out of range".to_owned()))
        });
        let dry_run = object.optional("dry_run", errors, json::boolean);
        object.finish(errors);
        Some(Self { filter: filter?, limit: limit.unwrap_or(1000), dry_run: dry_run.unwrap_or(false) })
    }
}

/// What a requeue of many did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RequeueResult {
    /// Letters that fit the filter and were considered: requeued + skipped.
    matched: u64,
    /// In a dry run: what would have been requeued.
    requeued: u64,
    /// Letters of subscriptions that are not active and verified.
    skipped: u64,
    /// Whether every letter that fits the filter was considered. If not, the limit, the time or an error of the database
    /// ended the request: the same request again does more.
    complete: bool,
}

impl From<RequeueTally> for RequeueResult {
    fn from(tally: RequeueTally) -> Self {
        Self {
            matched: tally.matched(),
            requeued: tally.requeued,
            skipped: tally.skipped,
            complete: tally.complete,
        }
    }
}

/// The delivery that a requeue leads to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RequeuedSaga {
    saga_id: i64,
    generation: u32,
}

impl From<Requeued> for RequeuedSaga {
    fn from(requeued: Requeued) -> Self {
        Self { saga_id: requeued.saga_id.0, generation: requeued.generation }
    }
}
