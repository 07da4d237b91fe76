//! When a run of failures is spoken of, and when it disables a subscription.

use hooksaga_saga::{CareStep, ErrorCode, FailureRun, LEAST_FAILURES, Timestamp, judge};
use proptest::prelude::*;
use std::time::Duration;

fn run(failed_for: Duration, failures: u32, announced: bool) -> FailureRun {
    let since = Timestamp::from_micros(1_700_000_000_000_000);
    FailureRun { since, last_at: since.after(failed_for), failures, announced }
}

fn durations() -> impl Strategy<Value = Duration> {
    (1_u64..1_000_000).prop_map(Duration::from_millis)
}

proptest! {
    /// Neither few failures nor a short time disable anything; both together do.
    #[test]
    fn a_run_disables_by_time_and_number_together(
        after in durations(), failed_for in durations(), failures in 1_u32..100, announced: bool,
    ) {
        let disables = judge(&run(failed_for, failures, announced), after) == CareStep::Disable;
        prop_assert_eq!(disables, failed_for >= after && failures >= LEAST_FAILURES);
    }

    /// Half of the time is announced, once.
    #[test]
    fn half_of_the_time_is_announced_once(after in durations(), failed_for in durations(), failures in 1_u32..100) {
        prop_assert_ne!(judge(&run(failed_for, failures, true), after), CareStep::Announce);
        let told = judge(&run(failed_for, failures, false), after);
        if told == CareStep::Wait {
            prop_assert!(failed_for < after / 2);
        }
    }

    /// A run that goes on is never judged more mildly.
    #[test]
    fn more_failures_are_never_less(
        after in durations(), failed_for in durations(), failures in 1_u32..100, longer in durations(), more in 0_u32..50,
    ) {
        let rank = |verdict| [CareStep::Wait, CareStep::Announce, CareStep::Disable].iter().position(|v| *v == verdict);
        let before = judge(&run(failed_for, failures, false), after);
        let later = judge(&run(failed_for + longer, failures + more, false), after);
        prop_assert!(rank(later) >= rank(before), "{before:?}, then {later:?}");
    }
}

#[test]
fn a_single_failure_disables_nothing_however_short_the_time_is() {
    assert_eq!(judge(&run(Duration::ZERO, 1, true), Duration::from_secs(1)), CareStep::Wait);
}

#[test]
fn only_what_was_sent_counts_against_an_endpoint() {
    for code in [ErrorCode::LEASE_EXHAUSTED, ErrorCode::INTERNAL, ErrorCode::SUBSCRIPTION_DELETED] {
        assert!(!code.counts_against_endpoint(), "{code}");
    }
    for code in [ErrorCode::TIMEOUT, ErrorCode::http(500), ErrorCode::http(410), ErrorCode::BLOCKED_ADDRESS] {
        assert!(code.counts_against_endpoint(), "{code}");
    }
    assert!(ErrorCode::http(410).means_gone() && !ErrorCode::http(404).means_gone());
}
