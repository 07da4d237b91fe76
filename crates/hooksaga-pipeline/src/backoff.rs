//! How long to wait after a failed call to the database before the next one.

use std::time::Duration;

/// Waits that double from 50 ms to 1 s.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) fn new() -> Self {
        Self(Self::FIRST)
    }

    /// The wait that is due now; the next one is longer.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(Self::LONGEST);
        wait
    }
}
