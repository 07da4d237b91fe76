//! The delivery saga: domain types and the state machine, as pure functions.
//!
//! Nothing here reads a clock, draws a random number, opens a connection or awaits. Every decision
//! about a delivery is taken in this crate and nowhere else: SQL carries guards, never decisions.
//!
//! Read [`step`] first: it is the whole state machine. The other decisions:
//!
//! | function or type | decides |
//! |---|---|
//! | [`may_create_job`] | when a saga may get a job |
//! | [`apply_result`] | what becomes of a saga whose job has finished |
//! | [`send_again`] | what an operator's requeue or resend creates |
//! | [`allot`] | how many jobs each subscription may have open, given what [`Endpoint`] has observed |
//! | [`WorkerSlots`] | how much a worker may claim |
//! | [`RateLimit`], [`Lead`] | how many attempts may start, and when |
//! | [`judge`] | when an endpoint that keeps failing is disabled |
//! | [`may_go`] | when finished history may be removed |

mod allotment;
mod backoff;
mod callback_url;
mod care;
mod disabled;
mod endpoint;
mod error_code;
mod ids;
mod latency;
mod lead;
mod names;
mod rate_limit;
mod redrive;
mod request_headers;
mod retention;
mod retry_after;
mod send_again;
mod status;
mod step;
mod stranded;
mod time;
mod topics;
mod why_held;
mod wording;
mod worker_slots;

pub use allotment::{Demand, allot};
pub use backoff::{RetryPolicy, backoff};
pub use callback_url::CallbackUrl;
pub use care::{CareStep, FailureRun, LEAST_FAILURES, judge};
pub use disabled::DisabledReason;
pub use endpoint::{Endpoint, EndpointReaction, Standing};
pub use error_code::ErrorCode;
pub use ids::{DeadLetterId, EventId, JobId, KeyId, RedriveId, SagaId, SecretId, SubscriptionId};
pub use latency::Latencies;
pub use lead::{Lead, StartWindow};
pub use names::{AuditAction, CorrelationId, EventType, ExternalId, Invalid, Tenant, is_visible_ascii};
pub use rate_limit::{Passage, RateLimit, Reservation};
pub use redrive::{Chosen, Fate, choose};
pub use request_headers::{RequestHeaderName, RequestHeaderValue, RequestHeaders};
pub use retention::{EventRemains, Expiry, JanitorRest, Retention, SagaRemains, may_go};
pub use retry_after::retry_after;
pub use send_again::send_again;
pub use status::{JobStatus, SagaStatus, UnknownStatus};
pub use step::{
    Applied, IllegalTransition, JobResult, Outcome, Saga, SagaEvent, apply_result, may_create_job, step,
};
pub use stranded::{
    FurthestAttempt, counts_as_due, furthest_catch_up, furthest_check, furthest_hand_back, furthest_lease,
};
pub use time::Timestamp;
pub use topics::{Topic, Topics};
pub use why_held::Held;
pub use wording::Wording;
pub use worker_slots::{Attempts, Claimable, WorkerSlots};
