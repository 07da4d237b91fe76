//! The key of the next attempt, whatever the clock does.

use super::{codes, policies, sagas, timestamps};
use hooksaga_saga::{
    ErrorCode, Outcome, RetryPolicy, Saga, SagaEvent, SagaStatus, Timestamp, backoff, may_create_job, step,
};
use proptest::{option, prelude::*};

fn fail(saga: &Saga, code: ErrorCode, policy: &RetryPolicy, now: Timestamp) -> Saga {
    fail_until(saga, code, None, policy, now)
}

fn fail_until(
    saga: &Saga,
    code: ErrorCode,
    retry_at: Option<Timestamp>,
    policy: &RetryPolicy,
    now: Timestamp,
) -> Saga {
    let saga = Saga { status: SagaStatus::InProgress, ..saga.clone() };
    let failed =
        SagaEvent::JobFinished { attempt_at: saga.next_attempt_at, outcome: Outcome::Failed(code), retry_at };
    step(&saga, &failed, policy, now).unwrap()
}

proptest! {
    /// The next job's key differs from the last one's: a clock that stands still or goes back, a delay of
    /// zero and an absurd one included.
    #[test]
    fn the_next_attempt_is_strictly_later(
        saga in sagas(), code in codes(), retry_at in option::of(timestamps()), policy in policies(),
        now in timestamps(),
    ) {
        prop_assume!(saga.next_attempt_at < Timestamp::MAX);
        let next = fail_until(&saga, code, retry_at, &policy, now).next_attempt_at;
        prop_assert!(next > saga.next_attempt_at);
    }

    /// CA-1: not before what the endpoint asked for, and for its sake not later than `max_delay` from now.
    #[test]
    fn the_endpoint_may_ask_for_a_later_attempt(
        saga in sagas(), code in codes(), retry_at in timestamps(), policy in policies(), now in timestamps(),
    ) {
        let without = fail(&saga, code.clone(), &policy, now);
        let with = fail_until(&saga, code, Some(retry_at), &policy, now);
        let cap = i128::from(now.as_micros()) + i128::try_from(policy.max_delay.as_micros()).unwrap();
        let asked = i128::from(retry_at.as_micros()).min(cap);
        let expected = asked.max(without.next_attempt_at.as_micros().into());
        prop_assert_eq!(i128::from(with.next_attempt_at.as_micros()), expected);
        prop_assert_eq!(Saga { next_attempt_at: without.next_attempt_at, ..with }, without);
    }

    /// SG-5: it is now plus the backoff, to the microsecond, unless that is not later.
    #[test]
    fn the_next_attempt_is_now_plus_the_backoff(
        saga in sagas(), code in codes(), policy in policies(), now in timestamps(),
    ) {
        let next = fail(&saga, code, &policy, now);
        let delay = i128::try_from(backoff(next.attempt_count, &policy).as_micros()).unwrap();
        let planned = i128::from(now.as_micros()) + delay;
        let earliest = i128::from(saga.next_attempt_at.as_micros()) + 1;
        let expected = planned.max(earliest).min(Timestamp::MAX.as_micros().into());
        prop_assert_eq!(i128::from(next.next_attempt_at.as_micros()), expected);
    }

    /// At the end of time the key cannot grow: a failure of an attempt at MAX leaves MAX. But an attempt at
    /// MAX is due only when the database's clock reads the last microsecond of the year 9999, so no saga
    /// gets there; one that an absurd delay has put at MAX waits, unattempted, and is not stuck.
    #[test]
    fn the_end_of_time_is_never_due(
        mut saga in sagas(), code in codes(), policy in policies(), now in timestamps(),
    ) {
        saga.next_attempt_at = Timestamp::MAX;
        prop_assert_eq!(fail(&saga, code, &policy, now).next_attempt_at, Timestamp::MAX);
        prop_assert!(now == Timestamp::MAX || !may_create_job(&saga, false, now));
    }

    /// With delays of up to a century, nothing before the year 2200 comes near the end of time.
    #[test]
    fn no_sane_retry_reaches_the_end_of_time(
        attempts in 0_u32..=100, secs in 0_u64..=3_155_760_000, code in codes(),
    ) {
        let max_delay = std::time::Duration::from_secs(secs);
        let policy = RetryPolicy { base_delay: max_delay, max_delay };
        let year_2200 = Timestamp::from_micros(7_258_118_400_000_000);
        let saga = Saga { attempt_count: attempts, ..Saga::new(101, year_2200) };
        prop_assert!(fail(&saga, code, &policy, year_2200).next_attempt_at < Timestamp::MAX);
    }
}
