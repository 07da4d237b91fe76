//! `worker.*` and `cleaner.*`: deliveries under way, and the leases they are held by.

use super::{ConfigError, duration::show_duration, settings::Settings};
use hooksaga_pipeline::LEASE_MARGIN;
use std::time::Duration;

const LONGEST: Duration = Duration::from_secs(24 * 3600);
const SHORTEST: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub(crate) struct WorkerConfig {
    /// Deliveries under way at a time.
    pub(crate) concurrency: u32,
    pub(crate) http_timeout: Duration,
    pub(crate) lease_duration: Duration,
}

impl WorkerConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let concurrency = settings.number("worker.concurrency", 1, 65_536)?.unwrap_or(512);
        let timeout = settings.duration("worker.http_timeout", SHORTEST, LONGEST)?;
        let lease = settings.duration("worker.lease_duration", SHORTEST, LONGEST)?;
        let worker = Self {
            concurrency: u32::try_from(concurrency).expect("at most 65536"),
            http_timeout: timeout.unwrap_or(Duration::from_secs(15)),
            lease_duration: lease.unwrap_or(Duration::from_secs(60)),
        };
        if worker.http_timeout + LEASE_MARGIN > worker.lease_duration {
            let [timeout, lease, margin] =
                [worker.http_timeout, worker.lease_duration, LEASE_MARGIN].map(show_duration);
            // Name the key that somebody set, so that the complaint points at it.
            let key = if settings.is_set("worker.lease_duration") {
                "worker.lease_duration"
            } else {
                "worker.http_timeout"
            };
            return Err(settings.complain(
                key,
                &format!(
                    "worker.http_timeout ({timeout}) plus {margin} must fit into worker.lease_duration ({lease}): \
                     shorten the timeout or lengthen the lease"
                ),
            ));
        }
        Ok(worker)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct CleanerConfig {
    /// How often expired leases are looked for.
    pub(crate) interval: Duration,
}

impl CleanerConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let interval = settings.duration("cleaner.interval", Duration::from_millis(10), LONGEST)?;
        Ok(Self { interval: interval.unwrap_or(Duration::from_secs(5)) })
    }
}
