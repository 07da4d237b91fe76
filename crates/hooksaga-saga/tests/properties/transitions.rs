//! One step: only legal transitions, and each changes exactly what it may.

use super::{counts, policies, sagas, sagas_with_events, timestamps};
use hooksaga_saga::{ErrorCode, Outcome, Saga, SagaEvent, SagaStatus, may_create_job, send_again, step};
use proptest::prelude::*;

/// The legal transitions, written down a second time: from, what happens, to.
const LEGAL: &[(&str, &str, &str)] = &[
    ("Pending", "created", "InProgress"),
    ("PendingRetry", "created", "InProgress"),
    ("InProgress", "delivered", "Completed"),
    ("InProgress", "failed, attempts left", "PendingRetry"),
    ("InProgress", "failed, last attempt", "DeadLettered"),
    ("InProgress", "failed for good", "DeadLettered"),
];

fn what_happens(saga: &Saga, event: &SagaEvent) -> &'static str {
    let left = u64::from(saga.max_retry_limit).saturating_sub(u64::from(saga.attempt_count) + 1);
    match event {
        SagaEvent::JobCreated { .. } => "created",
        SagaEvent::JobFinished { outcome: Outcome::Delivered, .. } => "delivered",
        SagaEvent::JobFinished { outcome: Outcome::Failed(code), .. } if final_codes().contains(code) => {
            "failed for good"
        }
        SagaEvent::JobFinished { outcome: Outcome::Failed(_), .. } if left > 0 => "failed, attempts left",
        SagaEvent::JobFinished { outcome: Outcome::Failed(_), .. } => "failed, last attempt",
    }
}

/// The codes that end a delivery at once, written down a second time.
fn final_codes() -> [ErrorCode; 2] {
    ["HTTP_410", "SUBSCRIPTION_DELETED"].map(|code| ErrorCode::from_stored(code.to_owned()))
}

fn key(event: &SagaEvent) -> hooksaga_saga::Timestamp {
    match event {
        SagaEvent::JobCreated { attempt_at } | SagaEvent::JobFinished { attempt_at, .. } => *attempt_at,
    }
}

proptest! {
    /// SG-2, SG-9: a step happens exactly when the list has it and the event names the saga's attempt.
    #[test]
    fn only_legal_transitions(
        (saga, event) in sagas_with_events(), policy in policies(), now in timestamps(),
    ) {
        let listed = LEGAL.iter().find(|(from, event_is, _)| {
            *from == saga.status.as_str() && *event_is == what_happens(&saga, &event)
        });
        let expected = listed.filter(|_| key(&event) == saga.next_attempt_at).map(|(_, _, to)| *to);
        let next = step(&saga, &event, &policy, now);
        prop_assert_eq!(next.as_ref().ok().map(|next| next.status.as_str()), expected);
        if let Err(error) = next {
            prop_assert_eq!((error.status, error.next_attempt_at), (saga.status, saga.next_attempt_at));
            prop_assert!(error.to_string().contains(saga.status.as_str()), "{}", error);
            prop_assert_eq!(error.event, event);
        }
    }

    /// SG-7: final is final.
    #[test]
    fn nothing_leaves_a_final_status(
        (mut saga, event) in sagas_with_events(), completed: bool, policy in policies(), now in timestamps(),
    ) {
        saga.status = if completed { SagaStatus::Completed } else { SagaStatus::DeadLettered };
        prop_assert!(saga.status.is_final());
        prop_assert!(step(&saga, &event, &policy, now).is_err());
        prop_assert!(!may_create_job(&saga, false, now));
    }

    /// SG-4, SG-5, SG-8: what a step changes besides the status.
    #[test]
    fn a_step_changes_what_it_may(
        (saga, event) in sagas_with_events(), policy in policies(), now in timestamps(),
    ) {
        let Ok(next) = step(&saga, &event, &policy, now) else { return Ok(()) };
        prop_assert_eq!(next.max_retry_limit, saga.max_retry_limit);
        match event {
            SagaEvent::JobCreated { .. } => {
                prop_assert_eq!(next, Saga { status: SagaStatus::InProgress, ..saga });
            }
            SagaEvent::JobFinished { outcome, .. } => {
                prop_assert_eq!(next.attempt_count, saga.attempt_count.saturating_add(1));
                match outcome {
                    Outcome::Delivered => {
                        prop_assert_eq!(next.final_error_code, saga.final_error_code);
                        prop_assert_eq!(next.next_attempt_at, saga.next_attempt_at);
                    }
                    Outcome::Failed(code) => prop_assert_eq!(next.final_error_code, Some(code)),
                }
            }
        }
    }

    /// SG-5, SG-6: the limit counts attempts in all, and reaching it is enough.
    #[test]
    fn the_limit_is_reached_with_equality(limit in 1_u32..=100, policy in policies(), now in timestamps()) {
        let mut saga = Saga::new(limit, now);
        for attempt in 1..=limit {
            let attempt_at = saga.next_attempt_at;
            saga = step(&saga, &SagaEvent::JobCreated { attempt_at }, &policy, now).unwrap();
            let outcome = Outcome::Failed(ErrorCode::TIMEOUT);
            saga = step(&saga, &SagaEvent::JobFinished { attempt_at, outcome, retry_at: None }, &policy, now).unwrap();
            let dead = saga.status == SagaStatus::DeadLettered;
            prop_assert_eq!(dead, attempt == limit, "attempt {} of {}", attempt, limit);
        }
        prop_assert_eq!(saga.attempt_count, limit);
    }

    /// CA-2, CA-11: a final failure ends a delivery at its first attempt, however many are left.
    #[test]
    fn a_final_failure_is_the_last(limit in 1_u32..=100, policy in policies(), now in timestamps()) {
        for code in final_codes() {
            prop_assert!(code.is_final());
            let saga = Saga { status: SagaStatus::InProgress, ..Saga::new(limit, now) };
            let outcome = Outcome::Failed(code.clone());
            let failed = SagaEvent::JobFinished { attempt_at: now, outcome, retry_at: None };
            let dead = step(&saga, &failed, &policy, now).unwrap();
            prop_assert_eq!((dead.status, dead.attempt_count), (SagaStatus::DeadLettered, 1));
            prop_assert_eq!(dead.final_error_code, Some(code));
        }
    }

    /// SG-3: when a job may be created.
    #[test]
    fn a_job_is_created_only_when_it_may(saga in sagas(), active: bool, now in timestamps()) {
        let due = saga.next_attempt_at <= now;
        let left = saga.attempt_count < saga.max_retry_limit;
        let expected = match saga.status.as_str() {
            "Pending" => due && !active,
            "PendingRetry" => due && !active && left,
            _ => false,
        };
        prop_assert_eq!(may_create_job(&saga, active, now), expected);
    }

    /// DL-2, DL-3, AG-1: a saga that has ended, and only such a one, gets a successor; twice gives the same one.
    #[test]
    fn sending_again_makes_the_next_generation(
        saga in sagas(), generation in counts(), limit in counts(), now in timestamps(),
    ) {
        let next = send_again(&saga, generation, limit, now);
        prop_assert_eq!(&next, &send_again(&saga, generation, limit, now));
        prop_assert_eq!(next.is_some(), ["Completed", "DeadLettered"].contains(&saga.status.as_str()));
        if let Some((next_generation, next)) = next {
            prop_assert_eq!(next_generation, generation.saturating_add(1));
            prop_assert_eq!((next.status, next.attempt_count), (SagaStatus::Pending, 0));
            prop_assert_eq!((next.max_retry_limit, next.next_attempt_at), (limit, now));
            prop_assert_eq!(next.final_error_code, None);
        }
    }
}
