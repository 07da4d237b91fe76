//! Deliveries.

use crate::{
    errors::FieldErrors,
    query::Params,
    time::{self, Time},
    validate,
};
use hooksaga_saga::{EventId, SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{Attempt, Delivery, DeliveryDetail, DeliveryFilter};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

/// The delivery of one event to one subscription.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryItem {
    saga_id: i64,
    event_id: i64,
    subscription_id: i64,
    /// 0 as routed; one more with each requeue.
    generation: u32,
    #[schema(value_type = String, pattern = "^(Pending|InProgress|PendingRetry|Completed|DeadLettered)$", example = "Completed")]
    status: &'static str,
    /// Attempts that have ended.
    attempt_count: u32,
    /// Attempts in all, the first included.
    max_retry_limit: u32,
    next_attempt_at: Time,
    /// The last failure; kept when a later attempt succeeded.
    #[schema(required, example = "HTTP_503")]
    final_error_code: Option<String>,
    created_at: Time,
    updated_at: Time,
    /// Open, and waiting for its subscription to be active and verified.
    held: bool,
}

impl From<Delivery> for DeliveryItem {
    fn from(delivery: Delivery) -> Self {
        Self {
            saga_id: delivery.saga_id.0,
            event_id: delivery.event_id.0,
            subscription_id: delivery.subscription_id.0,
            generation: delivery.generation,
            status: delivery.status.as_str(),
            attempt_count: delivery.attempt_count,
            max_retry_limit: delivery.max_retry_limit,
            next_attempt_at: delivery.next_attempt_at.into(),
            final_error_code: delivery.final_error_code.map(|code| code.as_str().to_owned()),
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
    attempt_at: Time,
    #[schema(value_type = String, pattern = "^(Pending|Leased|Completed|Failed)$", example = "Failed")]
    status: &'static str,
    /// The status of the callback's answer, if there was one.
    #[schema(required)]
    response_status: Option<u16>,
    #[schema(required, example = "HTTP_503")]
    error_code: Option<String>,
    #[schema(required)]
    duration_ms: Option<u32>,
    /// The beginning of a failed attempt's answer.
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
            status: attempt.status.as_str(),
            response_status: attempt.response_status,
            error_code: attempt.error_code.map(|code| code.as_str().to_owned()),
            duration_ms: attempt.duration_ms,
            response_excerpt: attempt.response_excerpt,
            lease_resets: attempt.lease_resets,
        }
    }
}

/// A delivery with its attempts, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryView {
    #[serde(flatten)]
    delivery: DeliveryItem,
    attempts: Vec<AttemptView>,
}

impl From<DeliveryDetail> for DeliveryView {
    fn from(detail: DeliveryDetail) -> Self {
        Self {
            delivery: detail.delivery.into(),
            attempts: detail.attempts.into_iter().map(Into::into).collect(),
        }
    }
}

/// Which deliveries; all of what is given must hold.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeliveriesQuery {
    #[param(value_type = Option<String>, pattern = "^(Pending|InProgress|PendingRetry|Completed|DeadLettered)$")]
    status: Option<SagaStatus>,
    #[param(minimum = 1)]
    subscription_id: Option<i64>,
    #[param(minimum = 1)]
    event_id: Option<i64>,
    event_type: Option<String>,
    external_id: Option<String>,
    correlation_id: Option<String>,
    /// Created at this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    created_after: Option<Timestamp>,
    /// Created before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    created_before: Option<Timestamp>,
}

impl DeliveriesQuery {
    pub(crate) fn read(params: &mut Params, errors: &mut FieldErrors) -> Self {
        Self {
            status: params.take("status", errors, |text| {
                text.parse().map_err(|_| {
                    "must be Pending, InProgress, PendingRetry, Completed or DeadLettered".to_owned()
                })
            }),
            subscription_id: params.take("subscription_id", errors, |text| validate::id(&text)),
            event_id: params.take("event_id", errors, |text| validate::id(&text)),
            event_type: params.take("event_type", errors, validate::event_type),
            external_id: params.take("external_id", errors, validate::external_id),
            correlation_id: params.take("correlation_id", errors, validate::correlation_id),
            created_after: params.take("created_after", errors, |text| time::parse(&text)),
            created_before: params.take("created_before", errors, |text| time::parse(&text)),
        }
    }
}

impl From<DeliveriesQuery> for DeliveryFilter {
    fn from(query: DeliveriesQuery) -> Self {
        Self {
            status: query.status,
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
