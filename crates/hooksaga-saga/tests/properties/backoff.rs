//! The delay formula, against a second computation of it.

use super::{counts, policies};
use hooksaga_saga::{RetryPolicy, backoff};
use proptest::prelude::*;
use std::time::Duration;

/// A whole number of any size, as decimal digits, lowest first: nothing in it can overflow.
fn digits(mut number: u128) -> Vec<u8> {
    let mut digits = Vec::new();
    while number > 0 {
        digits.push(u8::try_from(number % 10).unwrap());
        number /= 10;
    }
    digits
}

fn double(digits: &mut Vec<u8>) {
    let mut carry = 0;
    for digit in digits.iter_mut() {
        let doubled = *digit * 2 + carry;
        (*digit, carry) = (doubled % 10, doubled / 10);
    }
    if carry > 0 {
        digits.push(carry);
    }
}

fn larger(a: &[u8], b: &[u8]) -> bool {
    a.len().cmp(&b.len()).then_with(|| a.iter().rev().cmp(b.iter().rev())).is_gt()
}

/// `min(base × 2^(n − 1), max)` by doubling n − 1 times. 400 doublings of anything but zero are past
/// every `Duration`, and of zero change nothing: more make no difference.
fn expected(attempt_count: u32, policy: &RetryPolicy) -> Vec<u8> {
    let mut delay = digits(policy.base_delay.as_nanos());
    for _ in 1..attempt_count.min(400) {
        double(&mut delay);
    }
    let max = digits(policy.max_delay.as_nanos());
    if larger(&delay, &max) { max } else { delay }
}

proptest! {
    #[test]
    fn is_exactly_the_formula(attempt_count in counts(), policy in policies()) {
        let delay = backoff(attempt_count, &policy);
        prop_assert_eq!(digits(delay.as_nanos()), expected(attempt_count.max(1), &policy));
    }

    #[test]
    fn never_shrinks_and_never_passes_the_cap(attempt_count in counts(), policy in policies()) {
        let delay = backoff(attempt_count, &policy);
        prop_assert!(delay <= policy.max_delay);
        prop_assert!(delay <= backoff(attempt_count.saturating_add(1), &policy));
    }
}

/// The worked example of docs/STATE_MACHINE.md.
#[test]
fn the_defaults_by_hand() {
    let seconds = |attempt| backoff(attempt, &RetryPolicy::default()).as_secs();
    let first: Vec<u64> = (1..=9).map(seconds).collect();
    assert_eq!(first, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
    assert_eq!(backoff(100, &RetryPolicy::default()), Duration::from_secs(3600));
}
