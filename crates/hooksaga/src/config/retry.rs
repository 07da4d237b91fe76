//! `retry.*`: how failed deliveries are spaced, and when they are given up.

use super::{ConfigError, settings::Settings};
use hooksaga_saga::RetryPolicy;
use std::time::Duration;

/// Longer waits than a year are typing errors.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
const SHORTEST: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub(crate) struct RetryConfig {
    pub(crate) policy: RetryPolicy,
    /// Attempts in all, the first included, unless the subscription says otherwise.
    pub(crate) max_retry_limit: u32,
}

impl RetryConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let default = RetryPolicy::default();
        let delay = |key| settings.duration(key, SHORTEST, LONGEST);
        let limit = settings.number("retry.max_retry_limit", 1, 100)?.unwrap_or(5);
        Ok(Self {
            policy: RetryPolicy {
                base_delay: delay("retry.base_delay")?.unwrap_or(default.base_delay),
                max_delay: delay("retry.max_delay")?.unwrap_or(default.max_delay),
            },
            max_retry_limit: u32::try_from(limit).expect("checked to be at most 100"),
        })
    }
}
