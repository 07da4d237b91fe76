//! The state machine of one delivery.

use crate::{ErrorCode, RetryPolicy, SagaStatus, Timestamp, backoff};
use std::time::Duration;

/// The state of a delivery: what [`step`] decides on and changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Saga {
    pub status: SagaStatus,
    /// Results applied so far, good or bad.
    pub attempt_count: u32,
    /// Attempts in all, the first included; fixed when the saga was created.
    pub max_retry_limit: u32,
    /// Key of the job that may come next, or of the one that is active.
    pub next_attempt_at: Timestamp,
    /// The last failure, kept when a later attempt succeeds.
    pub final_error_code: Option<ErrorCode>,
}

impl Saga {
    /// A saga as the router and a requeue create it: due at once.
    pub fn new(max_retry_limit: u32, now: Timestamp) -> Self {
        Self {
            status: SagaStatus::Pending,
            attempt_count: 0,
            max_retry_limit,
            next_attempt_at: now,
            final_error_code: None,
        }
    }
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Delivered,
    Failed(ErrorCode),
}

/// What can happen to a saga. Each names the attempt it speaks of by its `attempt_at`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SagaEvent {
    /// The job with key (saga, `attempt_at`) exists.
    JobCreated { attempt_at: Timestamp },
    /// That job has reached its end. `retry_at`: when a failing endpoint wants to be asked again, if it said so.
    JobFinished { attempt_at: Timestamp, outcome: Outcome, retry_at: Option<Timestamp> },
}

/// An event that the state does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a {status} saga with next attempt at {next_attempt_at:?} does not accept {event:?}")]
pub struct IllegalTransition {
    pub status: SagaStatus,
    pub next_attempt_at: Timestamp,
    pub event: SagaEvent,
}

/// The whole state machine: the state that follows, or why nothing may.
///
/// - Pending, PendingRetry → InProgress, by the job whose key is `next_attempt_at`;
/// - InProgress → Completed on success;
/// - InProgress → PendingRetry on failure, with a later `next_attempt_at`;
/// - InProgress → DeadLettered on a failure that reaches the limit (through PendingRetry, in one step), or that is
///   final ([`ErrorCode::is_final`]) and so reaches it early.
pub fn step(
    saga: &Saga,
    event: &SagaEvent,
    policy: &RetryPolicy,
    now: Timestamp,
) -> Result<Saga, IllegalTransition> {
    use SagaStatus::{Completed, DeadLettered, InProgress, Pending, PendingRetry};

    let illegal = || IllegalTransition {
        status: saga.status,
        next_attempt_at: saga.next_attempt_at,
        event: event.clone(),
    };
    let (SagaEvent::JobCreated { attempt_at } | SagaEvent::JobFinished { attempt_at, .. }) = event;
    if *attempt_at != saga.next_attempt_at {
        return Err(illegal());
    }

    match (saga.status, event) {
        (Pending | PendingRetry, SagaEvent::JobCreated { .. }) => {
            Ok(Saga { status: InProgress, ..saga.clone() })
        }
        (InProgress, SagaEvent::JobFinished { outcome: Outcome::Delivered, .. }) => Ok(Saga {
            status: Completed,
            attempt_count: saga.attempt_count.saturating_add(1),
            ..saga.clone()
        }),
        (InProgress, SagaEvent::JobFinished { outcome: Outcome::Failed(code), retry_at, .. }) => {
            let attempt_count = saga.attempt_count.saturating_add(1);
            let exhausted = attempt_count >= saga.max_retry_limit || code.is_final();
            let due = due(attempt_count, *retry_at, policy, now);
            Ok(Saga {
                status: if exhausted { DeadLettered } else { PendingRetry },
                attempt_count,
                // Strictly later than the last attempt, whatever the clock does: it is the key of the next job.
                next_attempt_at: due.max(saga.next_attempt_at.after(Duration::from_micros(1))),
                final_error_code: Some(code.clone()),
                ..saga.clone()
            })
        }
        _ => Err(illegal()),
    }
}

/// `now` plus the backoff; later if the endpoint asked for it, but for that not later than `max_delay` from now.
fn due(attempt_count: u32, retry_at: Option<Timestamp>, policy: &RetryPolicy, now: Timestamp) -> Timestamp {
    let planned = now.after(backoff(attempt_count, policy));
    retry_at.map_or(planned, |retry_at| planned.max(retry_at.min(now.after(policy.max_delay))))
}

/// A finished job, as the orchestrator reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobResult {
    pub attempt_at: Timestamp,
    pub outcome: Outcome,
    /// When a failing endpoint wants to be asked again, see [`crate::retry_after`].
    pub retry_at: Option<Timestamp>,
}

/// What a finished job does to its saga.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The saga's new state. `promoted`: the worker was faster than the move to InProgress, which
    /// therefore has to be made first.
    Changed { saga: Saga, promoted: bool },
    /// This result has been applied before.
    Already,
}

/// Applies a finished job to its saga, exactly once however often it is called.
///
/// Total over everything that can be in the database: a job whose key is no longer the saga's
/// `next_attempt_at`, or whose saga is final, has been applied before.
pub fn apply_result(saga: &Saga, job: &JobResult, policy: &RetryPolicy, now: Timestamp) -> Applied {
    let attempt_at = job.attempt_at;
    let promoted = step(saga, &SagaEvent::JobCreated { attempt_at }, policy, now).ok();
    let current = promoted.as_ref().unwrap_or(saga);
    let finished =
        SagaEvent::JobFinished { attempt_at, outcome: job.outcome.clone(), retry_at: job.retry_at };
    match step(current, &finished, policy, now) {
        Ok(next) => Applied::Changed { saga: next, promoted: promoted.is_some() },
        Err(IllegalTransition { .. }) => Applied::Already,
    }
}

/// Whether a saga may get a job now. SQL selects with the same condition; this is its one definition.
pub fn may_create_job(saga: &Saga, has_active_job: bool, now: Timestamp) -> bool {
    let waiting = match saga.status {
        SagaStatus::Pending => true,
        SagaStatus::PendingRetry => saga.attempt_count < saga.max_retry_limit,
        SagaStatus::InProgress | SagaStatus::Completed | SagaStatus::DeadLettered => false,
    };
    waiting && !has_active_job && saga.next_attempt_at <= now
}
