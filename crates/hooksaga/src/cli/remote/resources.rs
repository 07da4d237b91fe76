//! What the API returns, as far as commands show it. Unknown fields are ignored, so that a newer server can be talked
//! to.

use hooksaga_saga::DisabledReason;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Deserialize)]
pub(in crate::cli) struct ApiSubscription {
    pub(in crate::cli) id: i64,
    pub(in crate::cli) tenant: String,
    pub(in crate::cli) event_types: Vec<String>,
    pub(in crate::cli) callback_url: String,
    pub(in crate::cli) description: Option<String>,
    pub(in crate::cli) active: bool,
    pub(in crate::cli) verified: bool,
    pub(in crate::cli) max_retry_limit: Option<u32>,
    pub(in crate::cli) rate_limit: Option<u32>,
    #[serde(default)]
    pub(in crate::cli) headers: Vec<String>,
    pub(in crate::cli) disabled: Option<ApiDisabled>,
    pub(in crate::cli) verification: ApiVerification,
    /// Where one is shown alone, as the next two.
    pub(in crate::cli) health: Option<ApiHealth>,
    pub(in crate::cli) waiting: Option<u64>,
    pub(in crate::cli) last_failure: Option<ApiLastFailure>,
    pub(in crate::cli) created_at: String,
    pub(in crate::cli) updated_at: String,
    /// Only when it was just created.
    pub(in crate::cli) secret: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(in crate::cli) struct ApiVerification {
    pub(in crate::cli) status: String,
    pub(in crate::cli) last_error: Option<String>,
    pub(in crate::cli) checked_at: Option<String>,
    pub(in crate::cli) trusted: Option<ApiTrusted>,
}

/// The last 24 hours of a subscription.
#[derive(Clone, Debug, Deserialize)]
pub(in crate::cli) struct ApiHealth {
    pub(in crate::cli) delivered: u64,
    pub(in crate::cli) failed: u64,
    pub(in crate::cli) dead_lettered: u64,
    pub(in crate::cli) p95_ms: Option<u32>,
}

/// The last attempt that failed at a subscription's endpoint.
#[derive(Clone, Debug, Deserialize)]
pub(in crate::cli) struct ApiLastFailure {
    pub(in crate::cli) saga_id: i64,
    pub(in crate::cli) error_code: String,
    pub(in crate::cli) at: String,
}

/// Who vouched for an endpoint.
#[derive(Clone, Debug, Deserialize)]
pub(in crate::cli) struct ApiTrusted {
    pub(in crate::cli) by: String,
    pub(in crate::cli) at: String,
}

/// Why the server switched a subscription off.
#[derive(Clone, Debug, Deserialize)]
pub(in crate::cli) struct ApiDisabled {
    pub(in crate::cli) reason: String,
    pub(in crate::cli) at: String,
}

impl ApiDisabled {
    /// The reason in words; a newer server's as it is.
    pub(in crate::cli) fn because(&self) -> &str {
        DisabledReason::from_name(&self.reason).map_or(&self.reason, |reason| reason.wording().meaning)
    }
}

#[derive(Debug, Deserialize)]
pub(in crate::cli) struct ApiEvent {
    pub(in crate::cli) id: i64,
    pub(in crate::cli) tenant: String,
    pub(in crate::cli) event_type: String,
    pub(in crate::cli) external_id: Option<String>,
    pub(in crate::cli) correlation_id: String,
    pub(in crate::cli) created_at: String,
}

/// What became of an event. Read apart from the event itself: its payload may hold what no JSON library can represent,
/// and is passed over.
#[derive(Debug, Deserialize)]
pub(in crate::cli) struct ApiRouting {
    pub(in crate::cli) routed: bool,
    #[serde(default)]
    pub(in crate::cli) unmatched: ApiUnmatched,
    pub(in crate::cli) deliveries: Vec<ApiDelivery>,
}

/// How many subscriptions an event could not go to when it was routed.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(in crate::cli) struct ApiUnmatched {
    pub(in crate::cli) paused: u64,
    pub(in crate::cli) disabled: u64,
    pub(in crate::cli) unverified: u64,
}

impl ApiUnmatched {
    /// "1 paused, 1 unverified"; `None` if there was none.
    pub(in crate::cli) fn text(self) -> Option<String> {
        let parts = [(self.disabled, "disabled"), (self.paused, "paused"), (self.unverified, "unverified")];
        let parts: Vec<String> =
            parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

#[derive(Debug, Deserialize)]
pub(in crate::cli) struct ApiRedrive {
    pub(in crate::cli) id: i64,
    pub(in crate::cli) tenant: Option<String>,
    pub(in crate::cli) status: String,
    pub(in crate::cli) error: Option<String>,
    pub(in crate::cli) examined: u64,
    pub(in crate::cli) created: u64,
    pub(in crate::cli) skipped: u64,
    pub(in crate::cli) subscription_id: Option<i64>,
    pub(in crate::cli) since: Option<String>,
    pub(in crate::cli) until: Option<String>,
    /// Of one of events.
    pub(in crate::cli) percent: Option<u8>,
    /// Of one of dead letters.
    pub(in crate::cli) filter: Option<LetterFilter>,
    /// `None`: not shown to this key.
    pub(in crate::cli) started_by: Option<String>,
    pub(in crate::cli) created_at: String,
    pub(in crate::cli) updated_at: String,
}

/// Which dead letters a redrive sends again.
#[derive(Clone, Debug, Default, Deserialize)]
pub(in crate::cli) struct LetterFilter {
    pub(in crate::cli) subscription_id: Option<i64>,
    pub(in crate::cli) event_type: Option<String>,
    pub(in crate::cli) final_error_code: Option<String>,
    pub(in crate::cli) created_after: Option<String>,
    pub(in crate::cli) created_before: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(in crate::cli) struct ApiDelivery {
    pub(in crate::cli) saga_id: i64,
    pub(in crate::cli) tenant: String,
    pub(in crate::cli) event_id: i64,
    pub(in crate::cli) event_type: String,
    pub(in crate::cli) subscription_id: i64,
    pub(in crate::cli) callback_url: String,
    pub(in crate::cli) generation: u32,
    pub(in crate::cli) status: String,
    pub(in crate::cli) attempt_count: u32,
    pub(in crate::cli) max_retry_limit: u32,
    pub(in crate::cli) next_attempt_at: String,
    pub(in crate::cli) final_error_code: Option<String>,
    pub(in crate::cli) created_at: String,
    pub(in crate::cli) updated_at: String,
    pub(in crate::cli) held: bool,
}

impl ApiDelivery {
    /// Whether nothing changes it any more.
    pub(in crate::cli) fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "Completed" | "DeadLettered")
    }
}

#[derive(Debug, Deserialize)]
pub(in crate::cli) struct ApiDeliveryDetail {
    #[serde(flatten)]
    pub(in crate::cli) delivery: ApiDelivery,
    /// One plain sentence: what happened and what happens next.
    pub(in crate::cli) explanation: String,
    pub(in crate::cli) attempts: Vec<ApiAttempt>,
}

#[derive(Debug, Deserialize)]
pub(in crate::cli) struct ApiAttempt {
    pub(in crate::cli) job_id: i64,
    /// When it was due, and when it was really sent, if it was.
    pub(in crate::cli) attempt_at: String,
    pub(in crate::cli) started_at: Option<String>,
    /// Where it went, if it was sent.
    pub(in crate::cli) callback_url: Option<String>,
    pub(in crate::cli) status: String,
    pub(in crate::cli) response_status: Option<u16>,
    pub(in crate::cli) error_code: Option<String>,
    pub(in crate::cli) duration_ms: Option<u32>,
    pub(in crate::cli) response_excerpt: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(in crate::cli) struct ApiDeadLetter {
    pub(in crate::cli) id: i64,
    pub(in crate::cli) tenant: String,
    pub(in crate::cli) saga_id: i64,
    pub(in crate::cli) event_id: i64,
    pub(in crate::cli) event_type: String,
    pub(in crate::cli) subscription_id: i64,
    pub(in crate::cli) final_error_code: String,
    pub(in crate::cli) created_at: String,
    pub(in crate::cli) requeued_saga_id: Option<i64>,
}

/// A payload, unchanged: any JSON, even numbers that no JSON library can represent.
#[derive(Debug, Deserialize)]
pub(in crate::cli) struct ApiPayload {
    pub(in crate::cli) payload: Box<RawValue>,
}

/// The delivery that a requeue leads to.
#[derive(Debug, Deserialize)]
pub(in crate::cli) struct ApiRequeued {
    pub(in crate::cli) saga_id: i64,
    pub(in crate::cli) generation: u32,
}

/// What a requeue of many did, or would do.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(in crate::cli) struct ApiRequeueTally {
    pub(in crate::cli) matched: u64,
    pub(in crate::cli) requeued: u64,
    pub(in crate::cli) skipped: u64,
    /// Whether every dead letter that fits was considered.
    pub(in crate::cli) complete: bool,
}

#[derive(Debug, Deserialize)]
pub(in crate::cli) struct ApiStats {
    pub(in crate::cli) now: String,
    pub(in crate::cli) open_deliveries: BTreeMap<String, u64>,
    pub(in crate::cli) held: u64,
    /// The server's own: nobody sees them for one tenant.
    pub(in crate::cli) queue_depths: Option<BTreeMap<String, u64>>,
    /// How long ago the three above were counted.
    #[serde(default)]
    pub(in crate::cli) counted_seconds_ago: u64,
    pub(in crate::cli) oldest_due_age_seconds: f64,
    pub(in crate::cli) per_minute: Vec<InMinute>,
    pub(in crate::cli) per_subscription: Vec<OfSubscription>,
}

/// What ended in a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(in crate::cli) struct EndedCounts {
    pub(in crate::cli) delivered: u64,
    pub(in crate::cli) failed: u64,
    pub(in crate::cli) dead_lettered: u64,
}

#[derive(Debug, Deserialize)]
pub(in crate::cli) struct InMinute {
    pub(in crate::cli) minute: String,
    #[serde(flatten)]
    pub(in crate::cli) ended: EndedCounts,
}

#[derive(Debug, Deserialize)]
pub(in crate::cli) struct OfSubscription {
    pub(in crate::cli) subscription_id: i64,
    #[serde(flatten)]
    pub(in crate::cli) ended: EndedCounts,
}
