//! When the retries that this process has seen fall due.
//!
//! So that a retry starts on time although nobody polls for it. Only a hint: what is not in here (after a
//! restart, from another process, beyond the bound) is found by the scheduler's poll.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Times of this process's monotonic clock, rounded up so that many retries share one.
#[derive(Debug)]
pub(super) struct DueTimes {
    /// Times are kept as milliseconds since this.
    start: Instant,
    times: Mutex<BTreeSet<u64>>,
}

impl DueTimes {
    /// More are not kept; the latest go.
    const MOST: usize = 50_000;

    pub(super) fn new() -> Self {
        Self { start: Instant::now(), times: Mutex::default() }
    }

    fn times(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // Nothing panics while it is held; a set of times is whole at any moment.
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    /// Remembers what falls due after these delays from now.
    pub(super) fn add(&self, delays: impl Iterator<Item = Duration>, now: Instant) {
        let now = self.millis(now);
        let mut times = self.times();
        for delay in delays {
            let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            // A hundredth of the delay is no lateness that anyone notices; a tenth of a second at most.
            let step = (delay / 128).clamp(1, 100);
            times.insert((now.saturating_add(delay) / step + 1).saturating_mul(step));
        }
        while times.len() > Self::MOST {
            times.pop_last();
        }
    }

    /// Forgets the times that have come; answers whether there were any.
    pub(super) fn forget_past(&self, now: Instant) -> bool {
        let now = self.millis(now);
        let mut times = self.times();
        let came = times.first().is_some_and(|first| *first <= now);
        // Times are rounded up, so those of this millisecond have come.
        *times = times.split_off(&now.saturating_add(1));
        came
    }

    /// How long until the next one.
    pub(super) fn until_next(&self, now: Instant) -> Option<Duration> {
        let next = Duration::from_millis(*self.times().first()?);
        Some(next.saturating_sub(now.saturating_duration_since(self.start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_next_time_is_never_early_and_hardly_late() {
        for delay in [0, 1, 7, 100, 999, 30_000, 3_600_000].map(Duration::from_millis) {
            let due = DueTimes::new();
            due.add([delay].into_iter(), due.start + ms(12_345));
            let wait = due.until_next(due.start + ms(12_345)).unwrap_or_default();
            assert!(wait >= delay && wait <= delay + ms(101), "{delay:?} became {wait:?}");
            assert!(wait <= delay + delay / 128 + ms(2), "{delay:?} became {wait:?}");
        }
    }

    #[test]
    fn what_has_come_is_forgotten_and_the_next_follows() {
        let due = DueTimes::new();
        let at = |n| due.start + ms(n);
        due.add([ms(50), ms(10), ms(20)].into_iter(), at(0));
        assert!(!due.forget_past(at(5)));
        assert_eq!(due.until_next(at(5)), Some(ms(6)));
        assert!(due.forget_past(at(11)));
        assert_eq!(due.until_next(at(11)), Some(ms(10)));
        assert!(due.forget_past(at(60)) && !due.forget_past(at(60)));
        assert_eq!(due.until_next(at(60)), None);
    }

    #[test]
    fn memory_is_bounded_and_the_earliest_stay() {
        let due = DueTimes::new();
        due.add((0..60_000).map(|n| ms(100 * n)), due.start);
        assert_eq!(due.times().len(), DueTimes::MOST);
        assert_eq!(due.until_next(due.start), Some(ms(1)));
    }
}
