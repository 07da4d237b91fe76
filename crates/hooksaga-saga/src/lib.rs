//! The delivery saga: domain types and the state machine, as pure functions.
//!
//! Nothing here reads a clock, draws a random number, opens a connection or awaits. Every decision
//! about a delivery is taken in this crate and nowhere else: SQL carries guards, never decisions.
//!
//! Read [`step`] first: it is the whole state machine. [`apply_result`] is what the orchestrator does
//! with a finished job, [`may_create_job`] when a saga may get one, [`requeue`] what an operator does
//! with a dead letter, [`Window`] how many jobs one subscription may have open.

mod error_code;
mod ids;
mod policy;
mod requeue;
mod status;
mod step;
mod time;
mod window;

pub use error_code::ErrorCode;
pub use ids::{DeadLetterId, EventId, JobId, KeyId, SagaId, SecretId, SubscriptionId};
pub use policy::{RetryPolicy, backoff};
pub use requeue::requeue;
pub use status::{JobStatus, SagaStatus, UnknownStatus};
pub use step::{
    Applied, IllegalTransition, JobResult, Outcome, Saga, SagaEvent, apply_result, may_create_job, step,
};
pub use time::Timestamp;
pub use window::{Feedback, Window};
