//! What lies further ahead than it could counts as due; what a right clock wrote never does before its time.

use hooksaga_saga::{
    ErrorCode, FurthestAttempt, Outcome, RetryPolicy, Saga, SagaEvent, SagaStatus, Timestamp, counts_as_due,
    step,
};
use proptest::prelude::*;
use std::time::Duration;

proptest! {
    #[test]
    fn a_retry_that_a_right_clock_planned_is_not_due_before_its_time(
        base in 0_u64..100_000_000_000, max in 0_u64..100_000_000_000, attempts in 0_u32..50,
        asked in proptest::option::of(0_i64..4_000_000_000_000_000), now in 1_000_000_000_000_i64..2_000_000_000_000_000,
    ) {
        let policy = RetryPolicy {
            base_delay: Duration::from_micros(base),
            max_delay: Duration::from_micros(max),
        };
        let now = Timestamp::from_micros(now);
        let before = Saga { status: SagaStatus::InProgress, attempt_count: attempts, ..Saga::new(100, now) };
        let failed = SagaEvent::JobFinished {
            attempt_at: now,
            outcome: Outcome::Failed(ErrorCode::TIMEOUT),
            retry_at: asked.map(Timestamp::from_micros),
        };
        let saga = step(&before, &failed, &policy, now).expect("a legal step");
        let due = counts_as_due(saga.next_attempt_at, now, FurthestAttempt::of(&policy).retry);
        prop_assert_eq!(due, saga.next_attempt_at <= now);
    }

    #[test]
    fn what_was_written_an_hour_too_late_counts_as_due_at_once(ahead in 3_600_000_000_u64..1_000_000_000_000) {
        let policy = RetryPolicy { base_delay: Duration::from_secs(1), max_delay: Duration::from_secs(600) };
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        prop_assert!(counts_as_due(now.after(Duration::from_micros(ahead)), now, FurthestAttempt::of(&policy).retry));
    }

    #[test]
    fn a_first_attempt_two_minutes_ahead_counts_as_due_whatever_the_longest_delay(
        max in 0_u64..100_000_000_000, ahead in 120_000_000_u64..1_000_000_000_000,
    ) {
        let policy =
            RetryPolicy { base_delay: Duration::from_secs(1), max_delay: Duration::from_micros(max) };
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let saga = Saga::new(5, now.after(Duration::from_micros(ahead)));
        prop_assert!(counts_as_due(saga.next_attempt_at, now, FurthestAttempt::of(&policy).first));
        let saga = Saga::new(5, now.after(Duration::from_secs(59)));
        prop_assert!(!counts_as_due(saga.next_attempt_at, now, FurthestAttempt::of(&policy).first));
    }
}
