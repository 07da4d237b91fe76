//! When the retries that this process has seen fall due.
//!
//! It makes a retry start on time without polling. It is only a hint: a retry that is not in here (after a
//! restart, from another process, beyond the bound) is found by the scheduler's full scan.

use hooksaga_saga::SubscriptionId;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Times of this process's monotonic clock, rounded up so that many retries share one.
#[derive(Debug)]
pub(super) struct DueTimes {
    /// Times are kept as milliseconds since this.
    start: Instant,
    times: Mutex<Times>,
}

#[derive(Debug, Default)]
struct Times {
    subscriptions: BTreeMap<u64, BTreeSet<SubscriptionId>>,
    /// Entries in all.
    kept: usize,
}

impl DueTimes {
    /// More entries are not kept; the latest go.
    const MOST: usize = 50_000;

    pub(super) fn new() -> Self {
        Self { start: Instant::now(), times: Mutex::default() }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        // Nothing panics while it is held; if something did, the sets are still valid hints.
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    /// Remembers which subscriptions have something due after these delays from now.
    pub(super) fn add(&self, delays: impl Iterator<Item = (SubscriptionId, Duration)>, now: Instant) {
        let now = self.millis(now);
        let mut times = self.times();
        for (subscription, delay) in delays {
            let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            // A hundredth of the delay is no lateness that anyone notices; a tenth of a second at most.
            let step = (delay / 128).clamp(1, 100);
            let at = (now.saturating_add(delay) / step + 1).saturating_mul(step);
            if times.subscriptions.entry(at).or_default().insert(subscription) {
                times.kept += 1;
            }
        }
        while times.kept > Self::MOST {
            let latest = times.subscriptions.pop_last();
            times.kept -= latest.map_or(times.kept, |(_, subscriptions)| subscriptions.len());
        }
    }

    /// Takes the subscriptions whose times have come.
    pub(super) fn take_past(&self, now: Instant) -> BTreeSet<SubscriptionId> {
        let now = self.millis(now);
        let mut times = self.times();
        // Times are rounded up, so those of this millisecond have come.
        let later = times.subscriptions.split_off(&now.saturating_add(1));
        let past = std::mem::replace(&mut times.subscriptions, later);
        times.kept -= past.values().map(BTreeSet::len).sum::<usize>();
        past.into_values().flatten().collect()
    }

    /// How long until the next one.
    pub(super) fn until_next(&self, now: Instant) -> Option<Duration> {
        let next = Duration::from_millis(*self.times().subscriptions.first_key_value()?.0);
        Some(next.saturating_sub(now.saturating_duration_since(self.start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    const ONE: SubscriptionId = SubscriptionId(1);
    const TWO: SubscriptionId = SubscriptionId(2);

    #[test]
    fn the_next_time_is_never_early_and_hardly_late() {
        for delay in [0, 1, 7, 100, 999, 30_000, 3_600_000].map(Duration::from_millis) {
            let due = DueTimes::new();
            due.add([(ONE, delay)].into_iter(), due.start + ms(12_345));
            let wait = due.until_next(due.start + ms(12_345)).unwrap_or_default();
            assert!(wait >= delay && wait <= delay + ms(101), "{delay:?} became {wait:?}");
            assert!(wait <= delay + delay / 128 + ms(2), "{delay:?} became {wait:?}");
        }
    }

    #[test]
    fn what_has_come_is_taken_once_and_the_next_follows() {
        let due = DueTimes::new();
        let at = |n| due.start + ms(n);
        due.add([(ONE, ms(50)), (ONE, ms(10)), (TWO, ms(10)), (TWO, ms(20))].into_iter(), at(0));
        assert!(due.take_past(at(5)).is_empty());
        assert_eq!(due.until_next(at(5)), Some(ms(6)));
        assert_eq!(due.take_past(at(11)), BTreeSet::from([ONE, TWO]));
        assert_eq!(due.until_next(at(11)), Some(ms(10)));
        assert_eq!(due.take_past(at(60)), BTreeSet::from([ONE, TWO]));
        assert!(due.take_past(at(60)).is_empty());
        assert_eq!(due.until_next(at(60)), None);
        assert_eq!(due.times().kept, 0);
    }

    #[test]
    fn memory_is_bounded_and_the_earliest_stay() {
        let due = DueTimes::new();
        due.add((0..60_000).map(|n| (ONE, ms(100 * n))), due.start);
        due.add((0..100).map(|n| (SubscriptionId(n), ms(1))), due.start);
        assert!(due.times().kept <= DueTimes::MOST);
        assert_eq!(due.until_next(due.start), Some(ms(1)));
    }
}
