//! Statistics.

use crate::{open_work::OpenWork, refreshed::Figures, time::ApiTime};
use hooksaga_store::{MinuteCount, QueueGauges, Stats, SubscriptionCount};
use serde::Serialize;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// How everything stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatsView {
    /// The database's clock.
    now: ApiTime,
    /// For a tenant each is counted up to 10,000.
    open_deliveries: OpenDeliveries,
    /// Open deliveries of subscriptions that are not active and verified.
    held: u64,
    /// Null for a tenant: the queues are the server's.
    #[schema(required)]
    queue_depths: Option<QueueDepths>,
    /// How long ago `open_deliveries`, `held` and `queue_depths` were counted: 0 or 1, and up to a minute where millions of
    /// deliveries are open.
    counted_seconds_ago: u64,
    /// How long the oldest delivery that could run has been due.
    oldest_due_age_seconds: f64,
    /// The last three hours, oldest first; minutes in which nothing ended are left out.
    per_minute: Vec<EndedInMinute>,
    /// The last 24 hours, by subscription; those for which nothing ended are left out.
    per_subscription: Vec<EndedPerSubscription>,
}

/// Open deliveries by status.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct OpenDeliveries {
    pending: u64,
    in_progress: u64,
    pending_retry: u64,
}

/// What waits between the stages.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueDepths {
    unrouted_events: u64,
    pending_jobs: u64,
    leased_jobs: u64,
    finished_jobs: u64,
    pending_dead_letters: u64,
}

/// What ended in one minute.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EndedInMinute {
    /// Its beginning.
    minute: ApiTime,
    delivered: u64,
    /// Failed attempts.
    failed: u64,
    dead_lettered: u64,
}

/// What ended for one subscription.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EndedPerSubscription {
    subscription_id: i64,
    delivered: u64,
    /// Failed attempts.
    failed: u64,
    dead_lettered: u64,
}

impl StatsView {
    pub(crate) fn new(stats: &Stats, open: &Figures<OpenWork>) -> Self {
        let deliveries = open.value.deliveries();
        let queue_depths = match &open.value {
            OpenWork::Server(gauges) => Some(gauges.into()),
            OpenWork::Tenant(_) => None,
        };
        Self {
            now: stats.now.into(),
            open_deliveries: OpenDeliveries {
                pending: deliveries.pending,
                in_progress: deliveries.in_progress,
                pending_retry: deliveries.pending_retry,
            },
            held: deliveries.held,
            queue_depths,
            counted_seconds_ago: open.age().as_secs(),
            oldest_due_age_seconds: Duration::from_micros(stats.oldest_due_age_micros).as_secs_f64(),
            per_minute: stats.minutes.iter().map(Into::into).collect(),
            per_subscription: stats.subscriptions.iter().map(Into::into).collect(),
        }
    }
}

impl From<&QueueGauges> for QueueDepths {
    fn from(gauges: &QueueGauges) -> Self {
        Self {
            unrouted_events: gauges.unrouted_events,
            pending_jobs: gauges.pending_jobs,
            leased_jobs: gauges.leased_jobs,
            finished_jobs: gauges.finished_jobs,
            pending_dead_letters: gauges.pending_dead_letters,
        }
    }
}

impl From<&MinuteCount> for EndedInMinute {
    fn from(count: &MinuteCount) -> Self {
        Self {
            minute: count.minute.into(),
            delivered: count.delivered,
            failed: count.failed,
            dead_lettered: count.dead_lettered,
        }
    }
}

impl From<&SubscriptionCount> for EndedPerSubscription {
    fn from(count: &SubscriptionCount) -> Self {
        Self {
            subscription_id: count.subscription_id.0,
            delivered: count.delivered,
            failed: count.failed,
            dead_lettered: count.dead_lettered,
        }
    }
}

/// Whose statistics.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes `query::Params::scope` in the OpenAPI document")]
pub(crate) struct StatsQuery {
    /// Only this tenant's. A key that is bound to a tenant sees its own only, and may name no other.
    #[param(min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$")]
    tenant: Option<String>,
}
