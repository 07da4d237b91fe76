//! How far scheduling has come in each subscription.
//!
//! What was scheduled leaves dead entries in `idx_saga_waiting` until the next vacuum: after a minute of load a pass that
//! begins at a subscription's first entry scans all of them. So it begins a little before the last saga that this
//! process scheduled there, by the time at which that one was due.
//!
//! That is a hint; correctness does not depend on it. A saga can be due earlier: its router took long to commit, another
//! process created its job and died, somebody resumed its subscription. So once a second a pass of each subscription
//! begins at the first entry, and so does a second scan, at once, where the short one found nothing.

use crate::time::{SqlTime, micros};
use hooksaga_saga::{SubscriptionId, Timestamp};
use hooksaga_store::{Allotted, ScheduledSaga};
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Where the next pass begins, per subscription.
#[derive(Default)]
pub(super) struct Reached(Mutex<HashMap<SubscriptionId, LastScheduled>>);

struct LastScheduled {
    /// When the last saga that was scheduled was due.
    at: Timestamp,
    /// When a pass last began at the first entry.
    whole: Instant,
}

/// What a pass asks for, as columns in the order of subscription ids.
pub(super) struct Wanted {
    pub(super) ids: Vec<i64>,
    pub(super) jobs: Vec<i64>,
    pub(super) since: Vec<SqlTime>,
    /// Those that do not begin at the first entry.
    short: Vec<Allotted>,
}

/// Before everything.
const BEGINNING: Timestamp = Timestamp::from_micros(i64::MIN);

impl Wanted {
    fn new(mut places: Vec<(Allotted, Timestamp)>) -> Self {
        places.sort_unstable_by_key(|(allotted, _)| allotted.subscription_id);
        Self {
            ids: places.iter().map(|(allotted, _)| allotted.subscription_id.0).collect(),
            jobs: places.iter().map(|(allotted, _)| allotted.jobs.into()).collect(),
            since: places.iter().map(|(_, since)| SqlTime(*since)).collect(),
            short: places
                .iter()
                .filter(|(_, since)| *since != BEGINNING)
                .map(|(allotted, _)| *allotted)
                .collect(),
        }
    }

    /// Another look, from the first entry, where the short one found nothing.
    pub(super) fn again(&self, found: &HashSet<SubscriptionId>) -> Option<Self> {
        let again = self.short.iter().filter(|allotted| !found.contains(&allotted.subscription_id));
        let again: Vec<_> = again.map(|allotted| (*allotted, BEGINNING)).collect();
        (!again.is_empty()).then(|| Self::new(again))
    }
}

impl Reached {
    /// Sagas are due from when their router began, and are seen when it commits.
    const MARGIN: Duration = Duration::from_millis(250);
    const WHOLE_EVERY: Duration = Duration::from_secs(1);
    /// More are not kept: then all are forgotten, which costs each one longer scan.
    const MOST: usize = 10_000;

    fn places(&self) -> MutexGuard<'_, HashMap<SubscriptionId, LastScheduled>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a pass begins in each of these.
    pub(super) fn begin(&self, allotted: &[Allotted], now: Instant) -> Wanted {
        let places = self.places();
        let since = |id: &SubscriptionId| {
            let place = places.get(id)?;
            let is_recent = now.saturating_duration_since(place.whole) < Self::WHOLE_EVERY;
            is_recent.then(|| Timestamp::from_micros(place.at.as_micros() - micros(Self::MARGIN)))
        };
        let wanted = allotted.iter().filter(|allotted| allotted.jobs > 0);
        Wanted::new(
            wanted
                .map(|allotted| (*allotted, since(&allotted.subscription_id).unwrap_or(BEGINNING)))
                .collect(),
        )
    }

    /// These sagas are scheduled, and moved or left out; `wanted` says where the pass began.
    pub(super) fn remember(&self, wanted: &Wanted, sagas: &[ScheduledSaga], now: Instant) {
        let short: HashSet<SubscriptionId> =
            wanted.short.iter().map(|allotted| allotted.subscription_id).collect();
        let mut places = self.places();
        if places.len() > Self::MOST {
            places.clear();
        }
        for saga in sagas {
            // A pass takes each one's oldest first, so the last counts.
            let whole = match places.get(&saga.subscription_id) {
                Some(place) if short.contains(&saga.subscription_id) => place.whole,
                _ => now,
            };
            places.insert(saga.subscription_id, LastScheduled { at: saga.attempt_at, whole });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::SagaId;
    use hooksaga_store::Trace;

    const ONE: Allotted = Allotted { subscription_id: SubscriptionId(1), jobs: 4 };
    const TWO: Allotted = Allotted { subscription_id: SubscriptionId(2), jobs: 4 };

    fn scheduled(of: Allotted, at: i64) -> ScheduledSaga {
        ScheduledSaga {
            saga_id: SagaId(at),
            subscription_id: of.subscription_id,
            attempt_at: Timestamp::from_micros(at),
            trace: Trace::default(),
            job_id: None,
        }
    }

    fn since(wanted: &Wanted) -> Vec<i64> {
        wanted.since.iter().map(|time| time.0.as_micros()).collect()
    }

    #[test]
    fn a_pass_begins_a_little_before_where_the_last_one_came_to_and_once_a_second_at_the_first_entry() {
        let reached = Reached::default();
        let start = Instant::now();
        let wanted = reached.begin(&[TWO, ONE], start);
        assert_eq!((wanted.ids.clone(), since(&wanted)), (vec![1, 2], vec![i64::MIN; 2]));
        reached.remember(&wanted, &[scheduled(ONE, 5_000_000), scheduled(ONE, 6_000_000)], start);
        let soon = start + Duration::from_millis(900);
        let wanted = reached.begin(&[ONE, TWO], soon);
        assert_eq!(since(&wanted), [5_750_000, i64::MIN]);
        reached.remember(&wanted, &[scheduled(ONE, 7_000_000), scheduled(TWO, 1)], soon);
        assert_eq!(since(&reached.begin(&[ONE], soon)), [6_750_000]);
        let later = start + Duration::from_secs(1);
        assert_eq!(since(&reached.begin(&[ONE, TWO], later)), [i64::MIN, 1 - 250_000]);
    }

    #[test]
    fn a_short_look_that_finds_nothing_is_followed_by_a_whole_one() {
        let reached = Reached::default();
        let now = Instant::now();
        let wanted = reached.begin(&[ONE, TWO], now);
        assert!(wanted.again(&HashSet::new()).is_none(), "it was a whole one");
        reached.remember(&wanted, &[scheduled(ONE, 5_000_000), scheduled(TWO, 5_000_000)], now);
        let wanted = reached.begin(&[ONE, TWO], now);
        assert!(wanted.again(&HashSet::from([SubscriptionId(1), SubscriptionId(2)])).is_none());
        let again = wanted.again(&HashSet::from([SubscriptionId(1)])).map(|again| (since(&again), again.ids));
        assert_eq!(again, Some((vec![i64::MIN], vec![2])));
    }

    #[test]
    fn memory_is_bounded_and_nobody_without_an_allotment_is_asked_for() {
        let reached = Reached::default();
        let now = Instant::now();
        let wanted = reached.begin(&[Allotted { jobs: 0, ..ONE }], now);
        assert!(wanted.ids.is_empty());
        for n in 0..25_000 {
            let allotted = Allotted { subscription_id: SubscriptionId(n), jobs: 1 };
            reached.remember(&wanted, &[scheduled(allotted, 1)], now);
        }
        assert!(reached.places().len() <= Reached::MOST + 1);
    }
}
