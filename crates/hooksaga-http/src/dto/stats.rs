//! Statistics.

use crate::time::Time;
use hooksaga_store::{MinuteCount, QueueGauges, Stats, SubscriptionCount};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// How everything stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatsView {
    /// The database's clock.
    now: Time,
    open_deliveries: OpenDeliveries,
    /// Open deliveries of subscriptions that are not active and verified.
    held: u64,
    queue_depths: QueueDepths,
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
    minute: Time,
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

impl From<&Stats> for StatsView {
    fn from(stats: &Stats) -> Self {
        let QueueGauges {
            unrouted_events,
            pending_sagas,
            pending_retry_sagas,
            held_sagas,
            pending_jobs,
            leased_jobs,
            finished_jobs,
            pending_dead_letters,
            oldest_due_age_micros,
        } = stats.gauges;
        Self {
            now: stats.now.into(),
            open_deliveries: OpenDeliveries {
                pending: pending_sagas,
                in_progress: stats.gauges.in_progress_sagas(),
                pending_retry: pending_retry_sagas,
            },
            held: held_sagas,
            queue_depths: QueueDepths {
                unrouted_events,
                pending_jobs,
                leased_jobs,
                finished_jobs,
                pending_dead_letters,
            },
            oldest_due_age_seconds: Duration::from_micros(oldest_due_age_micros).as_secs_f64(),
            per_minute: stats.minutes.iter().map(Into::into).collect(),
            per_subscription: stats.subscriptions.iter().map(Into::into).collect(),
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
