//! The percentile that is calculated from counted ranges.

use hooksaga_saga::{ErrorCode, Latencies, Outcome};
use proptest::{collection::vec, prelude::*};
use std::time::Duration;

fn counted(took: &[u32]) -> Latencies {
    let mut latencies = Latencies::default();
    took.iter().for_each(|ms| latencies.add(*ms));
    latencies
}

/// Attempts as endpoints make them: from at once to beyond every range.
fn attempts() -> impl Strategy<Value = Vec<u32>> {
    vec(prop_oneof![0_u32..60, 0_u32..3_000, 0_u32..100_000, Just(u32::MAX)], 1..300)
}

proptest! {
    #[test]
    fn the_estimate_is_in_the_range_of_the_true_value(mut took in attempts()) {
        let latencies = counted(&took);
        took.sort_unstable();
        let rank = took.len() - took.len() / 20;
        let (truth, slowest) = (took[rank - 1], took[took.len() - 1]);
        let estimate = latencies.p95_ms().unwrap();
        prop_assert_eq!(latencies.slowest_ms, slowest);
        prop_assert!(estimate <= slowest);
        prop_assert_eq!(Latencies::range_of(estimate), Latencies::range_of(truth), "{} for {}", estimate, truth);
    }
}

#[test]
fn equal_attempts_are_told_closely() {
    for ms in [1_u32, 15, 30, 300, 1_234, 15_000, 60_000] {
        let p95 = counted(&vec![ms; 1000]).p95_ms().unwrap();
        assert!(p95 <= ms && p95 >= ms - ms / 20, "{p95} for {ms}");
    }
}

#[test]
fn without_attempts_there_is_none() {
    assert_eq!(Latencies::default().p95_ms(), None);
}

#[test]
fn what_was_not_sent_took_no_time() {
    let took = Duration::from_millis(7);
    assert_eq!(Latencies::measured(&Outcome::Delivered, took), Some(7));
    assert_eq!(Latencies::measured(&Outcome::Failed(ErrorCode::TIMEOUT), took), Some(7));
    for code in [ErrorCode::LEASE_EXHAUSTED, ErrorCode::SUBSCRIPTION_DELETED, ErrorCode::INTERNAL] {
        assert_eq!(Latencies::measured(&Outcome::Failed(code), took), None);
    }
    assert_eq!(Latencies::measured(&Outcome::Delivered, Duration::MAX), Some(u32::MAX));
}
