//! Times that lie further in the future than they can.
//!
//! Every time that something waits for was written as the database's clock plus a bounded delay. A time that lies further
//! ahead was written while the clock was ahead, and would delay its row for as long. It counts as due.

use crate::{RetryPolicy, Timestamp};
use std::time::Duration;

/// What is allowed for beyond the longest delay: clocks are adjusted by little, all the time.
const ALLOWANCE: Duration = Duration::from_secs(60);
/// The longest time for which a worker gives a job back, generously.
const LONGEST_HAND_BACK: Duration = Duration::from_secs(60);

/// The longest time for which a check of an endpoint waits or is held, generously.
const LONGEST_CHECK: Duration = Duration::from_secs(60);
/// The longest time for which a subscription that catches up waits: while it is paused.
const LONGEST_CATCH_UP: Duration = Duration::from_secs(60);

/// A `next_attempt_at` further ahead than this was not put there by a right clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FurthestAttempt {
    /// Of a saga that has had no attempt: it is due from its beginning.
    pub first: Duration,
    /// Of one that is tried again.
    pub retry: Duration,
}

impl FurthestAttempt {
    pub fn of(policy: &RetryPolicy) -> Self {
        Self { first: ALLOWANCE, retry: policy.max_delay.saturating_add(ALLOWANCE) }
    }
}

/// The latest possible end of a lease, from now on. Other processes may have somewhat longer ones configured, so it is
/// twice this one's.
pub fn furthest_lease(lease_duration: Duration) -> Duration {
    lease_duration.saturating_mul(2).saturating_add(ALLOWANCE)
}

/// The latest possible not-before of a job that was given back, or has just been created, from now on.
pub fn furthest_hand_back() -> Duration {
    LONGEST_HAND_BACK.saturating_add(ALLOWANCE)
}

/// The latest possible time of a check that is held or tried again, from now on.
pub fn furthest_check() -> Duration {
    LONGEST_CHECK.saturating_add(ALLOWANCE)
}

/// The latest possible time at which a subscription goes on catching up, from now on.
pub fn furthest_catch_up() -> Duration {
    LONGEST_CATCH_UP.saturating_add(ALLOWANCE)
}

/// Whether a time counts as due. SQL selects with the same condition; this is its one definition.
pub fn counts_as_due(at: Timestamp, now: Timestamp, furthest: Duration) -> bool {
    at <= now || at > now.after(furthest)
}
