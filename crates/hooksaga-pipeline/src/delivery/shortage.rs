//! Says that file descriptors are short: once, and every half minute while they are.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// When it was said last.
#[derive(Debug, Default)]
pub(super) struct Shortage(Mutex<Option<Instant>>);

impl Shortage {
    const REPEAT: Duration = Duration::from_secs(30);

    /// Every request that finds no descriptor calls this; few of the calls leave a line.
    pub(super) fn report(&self, now: Instant) {
        if self.is_news(now) {
            tracing::error!(
                "no file descriptor is left for connections, so deliveries wait: raise the limit of open files \
                 (ulimit -n, LimitNOFILE in systemd), or lower worker.concurrency"
            );
        }
    }

    fn is_news(&self, now: Instant) -> bool {
        // A time is whole at any moment, whatever panicked beside it.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.is_some_and(|last| now.saturating_duration_since(last) < Self::REPEAT);
        if !known {
            *last = Some(now);
        }
        !known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_news_once_and_again_after_half_a_minute() {
        let (shortage, start) = (Shortage::default(), Instant::now());
        let news =
            [0, 1, 29, 30, 31, 59, 60].map(|second| shortage.is_news(start + Duration::from_secs(second)));
        assert_eq!(news, [true, false, false, true, false, false, true]);
    }
}
