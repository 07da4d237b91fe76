//! Deliveries.

use crate::{
    cursor::ListKind,
    errors::FieldErrors,
    explanation::{WaitCauses, explain},
    listing::ListParameters,
    query::Params,
    time::{self, ApiTime},
    validate,
};
use hooksaga_saga::{CorrelationId, EventId, EventType, ExternalId, SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{Attempt, Delivery, DeliveryDetail, DeliveryFilter};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

/// The delivery of one event to one subscription.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryItem {
    saga_id: i64,
    tenant: String,
    event_id: i64,
    event_type: String,
    #[schema(required)]
    external_id: Option<String>,
    correlation_id: String,
    subscription_id: i64,
    /// Where the subscription's deliveries go at present; each attempt says where it went.
    #[schema(example = "https://example.com/hook")]
    callback_url: String,
    /// 0 as routed; one more each time it is requeued or resent.
    generation: u32,
    #[schema(value_type = String, pattern = "^(Pending|InProgress|PendingRetry|Completed|DeadLettered)$", example = "Completed")]
    status: &'static str,
    /// Attempts that have ended.
    attempt_count: u32,
    /// Attempts in all, the first included.
    max_retry_limit: u32,
    next_attempt_at: ApiTime,
    /// The last failure; kept when a later attempt succeeded.
    #[schema(required, example = "HTTP_503")]
    final_error_code: Option<String>,
    /// Of the last attempt that the callback responded to.
    #[schema(required)]
    last_response_status: Option<u16>,
    created_at: ApiTime,
    updated_at: ApiTime,
    /// Open, and waiting for its subscription to be active and verified.
    held: bool,
}

impl From<Delivery> for DeliveryItem {
    fn from(delivery: Delivery) -> Self {
        Self {
            saga_id: delivery.saga_id.0,
            tenant: delivery.tenant,
            event_id: delivery.event_id.0,
            event_type: delivery.event_type,
            external_id: delivery.external_id,
            correlation_id: delivery.correlation_id,
            subscription_id: delivery.subscription_id.0,
            callback_url: delivery.callback_url,
            generation: delivery.generation,
            status: delivery.status.as_str(),
            attempt_count: delivery.attempt_count,
            max_retry_limit: delivery.max_retry_limit,
            next_attempt_at: delivery.next_attempt_at.into(),
            final_error_code: delivery.final_error_code.map(|code| code.as_str().to_owned()),
            last_response_status: delivery.last_response_status,
            created_at: delivery.created_at.into(),
            updated_at: delivery.updated_at.into(),
            held: delivery.held,
        }
    }
}

/// One attempt of a delivery.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AttemptView {
    job_id: i64,
    /// When it was due.
    attempt_at: ApiTime,
    /// When it was really sent; null if it was not.
    #[schema(required)]
    started_at: Option<ApiTime>,
    /// Where it was sent; null if it was not.
    #[schema(required, example = "https://example.com/hook")]
    callback_url: Option<String>,
    #[schema(value_type = String, pattern = "^(Pending|Leased|Completed|Failed)$", example = "Failed")]
    status: &'static str,
    /// The status of the callback's response, if there was one.
    #[schema(required)]
    response_status: Option<u16>,
    #[schema(required, example = "HTTP_503")]
    error_code: Option<String>,
    #[schema(required)]
    duration_ms: Option<u32>,
    /// The beginning of a failed attempt's response.
    #[schema(required)]
    response_excerpt: Option<String>,
    /// How often a worker has died over it.
    lease_resets: u32,
}

impl From<Attempt> for AttemptView {
    fn from(attempt: Attempt) -> Self {
        Self {
            job_id: attempt.job_id.0,
            attempt_at: attempt.attempt_at.into(),
            started_at: attempt.started_at.map(Into::into),
            callback_url: attempt.callback_url,
            status: attempt.status.as_str(),
            response_status: attempt.response_status,
            error_code: attempt.error_code.map(|code| code.as_str().to_owned()),
            duration_ms: attempt.duration_ms,
            response_excerpt: attempt.response_excerpt,
            lease_resets: attempt.lease_resets,
        }
    }
}

/// A delivery with what is to be said about it, and its attempts, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryView {
    #[serde(flatten)]
    delivery: DeliveryItem,
    /// What happened and what happens next, in one sentence.
    #[schema(
        example = "1 of 5 attempts failed, with HTTP_500 (the endpoint failed); the next is due at 2026-01-31T12:00:00.123456Z."
    )]
    explanation: String,
    attempts: Vec<AttemptView>,
}

impl DeliveryView {
    pub(crate) fn new(detail: DeliveryDetail, wait_causes: WaitCauses) -> Self {
        Self {
            explanation: explain(&detail, wait_causes).to_string(),
            delivery: detail.delivery.into(),
            attempts: detail.attempts.into_iter().map(Into::into).collect(),
        }
    }
}

/// Which deliveries; all of what is given must hold.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeliveriesQuery {
    /// May be given more than once: any of them.
    #[param(value_type = Option<Vec<String>>, style = Form, explode)]
    status: Vec<SagaStatus>,
    #[param(minimum = 1)]
    subscription_id: Option<i64>,
    /// Also as receivers see it: `evt_17`.
    #[param(value_type = Option<String>, pattern = "^(evt_)?[1-9][0-9]{0,17}$")]
    event_id: Option<i64>,
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

impl ListParameters for DeliveriesQuery {
    const LIST: ListKind = ListKind::Deliveries;

    fn read(params: &mut Params, errors: &mut FieldErrors) -> Self {
        Self {
            status: params.take_all("status", errors, |text| {
                text.parse().map_err(|_| {
                    "must be Pending, InProgress, PendingRetry, Completed or DeadLettered".to_owned()
                })
            }),
            subscription_id: params.take("subscription_id", errors, |text| validate::id(&text)),
            event_id: params.take("event_id", errors, |text| validate::event_id(&text)),
            event_type: params.parsed("event_type", errors),
            external_id: params.parsed("external_id", errors),
            correlation_id: params.parsed("correlation_id", errors),
            created_after: params.take("created_after", errors, |text| time::parse(&text)),
            created_before: params.take("created_before", errors, |text| time::parse(&text)),
        }
    }
}

impl From<DeliveriesQuery> for DeliveryFilter {
    fn from(query: DeliveriesQuery) -> Self {
        Self {
            statuses: query.status.into_iter().collect(),
            subscription_id: query.subscription_id.map(SubscriptionId),
            event_id: query.event_id.map(EventId),
            event_type: query.event_type,
            external_id: query.external_id,
            correlation_id: query.correlation_id,
            created_after: query.created_after,
            created_before: query.created_before,
        }
    }
}
