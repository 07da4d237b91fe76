//! Logs something that many requests notice at the same time once, and then every half minute while it lasts.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// When it was said last.
#[derive(Debug, Default)]
pub(super) struct Rarely(Mutex<Option<Instant>>);

impl Rarely {
    const REPEAT: Duration = Duration::from_secs(30);

    /// Whether it is to be said now.
    pub(super) fn is_news(&self, now: Instant) -> bool {
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
        let (said, start) = (Rarely::default(), Instant::now());
        let news = [0, 1, 29, 30, 31, 59, 60].map(|second| said.is_news(start + Duration::from_secs(second)));
        assert_eq!(news, [true, false, false, true, false, false, true]);
    }
}
