//! When an endpoint that keeps failing is announced, and when its subscription is disabled.
//!
//! Both are decided by its run of failures: the attempts that have failed since the last success, or since the subscription
//! was last activated.

use crate::{ErrorCode, Timestamp};
use std::time::Duration;

/// No subscription is disabled for fewer failed attempts than this.
pub const LEAST_FAILURES: u32 = 20;

/// An endpoint whose attempts have all failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRun {
    /// The first failure's result was applied then.
    pub since: Timestamp,
    /// The last one's.
    pub last_at: Timestamp,
    pub failures: u32,
    /// Somebody was told already that it fails.
    pub announced: bool,
}

/// What follows from a run of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CareStep {
    /// Nothing yet.
    Wait,
    /// Half of the time has passed: say so.
    Announce,
    /// All of it has: disable the subscription.
    Disable,
}

/// What follows from a run of failures, where a subscription is disabled after `disable_after` of them.
///
/// Only results count, not the time that passes without any: an endpoint that nothing is sent to does not fail.
pub fn judge(run: &FailureRun, disable_after: Duration) -> CareStep {
    let failed_for = run.last_at.since(run.since);
    if failed_for >= disable_after && run.failures >= LEAST_FAILURES {
        CareStep::Disable
    } else if failed_for >= disable_after / 2 && !run.announced {
        CareStep::Announce
    } else {
        CareStep::Wait
    }
}

impl ErrorCode {
    /// Whether the endpoint says that it is gone for good, which disables its subscription at once.
    pub fn means_gone(&self) -> bool {
        self.as_str() == "HTTP_410"
    }

    /// Whether a failure with this code says something about the endpoint: not where no request was sent.
    pub fn counts_against_endpoint(&self) -> bool {
        ![Self::LEASE_EXHAUSTED, Self::SUBSCRIPTION_DELETED, Self::INTERNAL].contains(self)
    }
}
