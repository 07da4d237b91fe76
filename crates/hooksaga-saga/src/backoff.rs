//! When a failed delivery is tried again.

use std::time::Duration;

/// How retries are spaced. The attempt limit is not here: every saga carries its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The delay after the first failure.
    pub base_delay: Duration,
    /// No delay is longer.
    pub max_delay: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { base_delay: Duration::from_secs(30), max_delay: Duration::from_secs(3600) }
    }
}

/// The delay after the `attempt_count`-th failed attempt: `min(base × 2^(attempt_count − 1), max)`.
///
/// Deterministic and without jitter, so that an operator can calculate every retry. Total: any
/// input gives a delay, none overflows. `attempt_count` 0 (never a failed attempt) counts as 1.
pub fn backoff(attempt_count: u32, policy: &RetryPolicy) -> Duration {
    // A Duration has fewer than 2^94 nanoseconds, so 2^100 of any base but zero is past every cap.
    let factor = 1_u128 << attempt_count.saturating_sub(1).min(100);
    let delay = policy.base_delay.as_nanos().saturating_mul(factor);
    Duration::from_nanos_u128(delay.min(policy.max_delay.as_nanos()))
}
