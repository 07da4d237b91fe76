//! How a subscription's endpoint has been doing.

use super::SubscriptionView;
use crate::time::ApiTime;
use hooksaga_store::{Health, LastFailure, SubscriptionDetail};
use serde::Serialize;
use utoipa::ToSchema;

/// A subscription, and how its endpoint has been doing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SubscriptionDetailView {
    #[serde(flatten)]
    subscription: SubscriptionView,
    health: HealthView,
    /// Deliveries that wait for their next attempt: for their turn, their time, or the subscription to be active and
    /// verified. 10,000 if there are as many or more.
    #[schema(maximum = 10000)]
    waiting: u64,
    /// The last attempt that failed, whenever that was; null if none ever did.
    #[schema(required)]
    last_failure: Option<LastFailureView>,
}

/// The last 24 hours of a subscription.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthView {
    delivered: u64,
    /// Attempts that failed.
    failed: u64,
    /// Deliveries that were given up.
    dead_lettered: u64,
    /// Estimated 95th percentile of attempt duration in ms; null if there were no attempts.
    #[schema(required)]
    p95_ms: Option<u32>,
}

/// An attempt that failed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LastFailureView {
    saga_id: i64,
    #[schema(example = "HTTP_503")]
    error_code: String,
    /// Null if the endpoint did not respond.
    #[schema(required)]
    response_status: Option<u16>,
    at: ApiTime,
}

impl From<SubscriptionDetail> for SubscriptionDetailView {
    fn from(detail: SubscriptionDetail) -> Self {
        let Health { delivered, failed, dead_lettered, latencies, waiting, last_failure } = detail.health;
        Self {
            subscription: detail.subscription.into(),
            health: HealthView { delivered, failed, dead_lettered, p95_ms: latencies.p95_ms() },
            waiting,
            last_failure: last_failure.map(LastFailureView::from),
        }
    }
}

impl From<LastFailure> for LastFailureView {
    fn from(failure: LastFailure) -> Self {
        Self {
            saga_id: failure.saga_id.0,
            error_code: failure.error_code.as_str().to_owned(),
            response_status: failure.response_status,
            at: failure.at.into(),
        }
    }
}
