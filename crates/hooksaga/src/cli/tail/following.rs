//! What `tail` remembers of deliveries between two looks.

use crate::cli::{deliveries::live::Seen, remote::ApiDelivery};
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// A delivery may become visible this long after one with a higher id.
const OVERLAP: Duration = Duration::from_secs(5);
/// More open deliveries are not followed.
pub(super) const MOST_OPEN: usize = 2000;
/// How often an older delivery is polled that may change at any moment.
const SOON: Duration = Duration::from_secs(1);
/// The longest time between two polls of an older delivery that waits.
const AT_LAST: Duration = Duration::from_secs(30);

struct Known {
    seen: Seen,
    /// When something may have happened to it.
    look_at: Instant,
}

/// The deliveries that are open, and those that were seen a moment ago.
#[derive(Default)]
pub(super) struct Following {
    known: BTreeMap<i64, Known>,
    newest: i64,
    /// The newest id at a time, oldest first.
    marks: VecDeque<(Instant, i64)>,
}

impl Following {
    /// Begins with what exists already.
    pub(super) fn begin<'a>(&mut self, present: impl Iterator<Item = &'a ApiDelivery>, now: Instant) {
        for delivery in present {
            self.newest = self.newest.max(delivery.saga_id);
            self.known.insert(delivery.saga_id, Known { seen: Seen::of(delivery), look_at: now });
        }
        self.marks.push_back((now, self.newest));
    }

    /// A look has to reach down to this id: everything newer may be new.
    pub(super) fn down_to(&mut self, now: Instant) -> i64 {
        while self.marks.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= OVERLAP) {
            self.marks.pop_front();
        }
        let down_to = self.marks.front().map_or(0, |(_, newest)| *newest);
        self.marks.push_back((now, self.newest));
        down_to
    }

    /// Takes note of a delivery as it is now; whether there is something to tell. `next`: how long until its next attempt.
    pub(super) fn is_news(&mut self, delivery: &ApiDelivery, next: Duration, now: Instant) -> bool {
        self.newest = self.newest.max(delivery.saga_id);
        let seen = Seen::of(delivery);
        let wait = match (delivery.held, delivery.status.as_str()) {
            (true, _) => AT_LAST,
            (false, "PendingRetry") => next.clamp(SOON, AT_LAST),
            (false, _) => SOON,
        };
        let before = self.known.insert(delivery.saga_id, Known { seen, look_at: now + wait });
        seen.is_news_after(before.map_or(Seen::NEW, |before| before.seen))
    }

    /// Open deliveries that a look at the newest does not show, and whose time has come. Half of them are the oldest,
    /// which are sent first; the others are those that were not examined for longest, so that an endpoint that takes
    /// nothing hides nobody.
    pub(super) fn older_to_look_at(&self, down_to: i64, now: Instant, most: usize) -> Vec<i64> {
        let older =
            self.known.range(..=down_to).filter(|(_, known)| !known.seen.ended && known.look_at <= now);
        let mut older: Vec<(Instant, i64)> = older.map(|(id, known)| (known.look_at, *id)).collect();
        let mut others = older.split_off(older.len().min(most / 2));
        others.sort_unstable();
        others.truncate(most - older.len());
        older.into_iter().chain(others).map(|(_, id)| id).collect()
    }

    pub(super) fn forget(&mut self, saga_id: i64) {
        self.known.remove(&saga_id);
    }

    /// Forgets what is over and will not be read again. Whether open ones had to be left out, too.
    pub(super) fn prune(&mut self, down_to: i64) -> bool {
        self.known.retain(|id, known| *id > down_to || !known.seen.ended);
        let older = self.known.range(..=down_to).count();
        for _ in MOST_OPEN..older {
            self.known.pop_first();
        }
        older > MOST_OPEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::deliveries::tests::delivery;

    const NO_TIME: Duration = Duration::ZERO;

    #[test]
    fn what_was_there_before_is_told_only_when_something_happens_to_it() {
        let (mut following, now) = (Following::default(), Instant::now());
        let present = [delivery(7, "Completed", 1), delivery(5, "PendingRetry", 1)];
        following.begin(present.iter(), now);
        assert_eq!(following.down_to(now), 7);
        assert!(
            !following.is_news(&present[0], NO_TIME, now) && !following.is_news(&present[1], NO_TIME, now)
        );
        assert!(following.is_news(&delivery(5, "Completed", 2), NO_TIME, now));
        assert!(!following.is_news(&delivery(5, "Completed", 2), NO_TIME, now), "once");
    }

    #[test]
    fn a_look_reaches_down_far_enough_for_late_ones_and_no_further() {
        let (mut following, begun) = (Following::default(), Instant::now());
        following.begin([delivery(10, "Completed", 1)].iter(), begun);
        assert_eq!(following.down_to(begun), 10);
        following.is_news(&delivery(20, "Completed", 1), NO_TIME, begun);
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(following.down_to(at(1)), 10);
        following.is_news(&delivery(30, "Completed", 1), NO_TIME, at(2));
        assert_eq!(following.down_to(at(3)), 10, "20 is not old enough: one below it may still come");
        assert!(following.is_news(&delivery(15, "Completed", 1), NO_TIME, at(3)));
        assert_eq!(following.down_to(at(7)), 20);
        assert_eq!(following.down_to(at(9)), 30);
    }

    #[test]
    fn older_open_ones_are_looked_at_when_their_time_has_come() {
        let (mut following, now) = (Following::default(), Instant::now());
        following.is_news(&delivery(1, "PendingRetry", 1), Duration::from_secs(20), now);
        following.is_news(&delivery(2, "InProgress", 0), NO_TIME, now);
        following.is_news(&delivery(3, "Completed", 1), NO_TIME, now);
        following.is_news(&delivery(9, "InProgress", 0), NO_TIME, now);
        let due = |seconds, most| following.older_to_look_at(5, now + Duration::from_secs(seconds), most);
        assert!(due(0, 50).is_empty());
        assert_eq!(due(1, 50), [2], "9 is among the newest, 3 has ended, 1 waits");
        assert_eq!(due(20, 50), [1, 2]);
        assert_eq!(due(20, 1), [2]);
    }

    #[test]
    fn of_many_the_oldest_and_those_not_looked_at_for_longest_are_looked_at() {
        let (mut following, now) = (Following::default(), Instant::now());
        for id in 1..=100 {
            // The highest ids were looked at first.
            let seen_at = now + Duration::from_millis(100 - id);
            following.is_news(&delivery(id.cast_signed(), "Pending", 0), NO_TIME, seen_at);
        }
        let due = following.older_to_look_at(100, now + Duration::from_secs(5), 6);
        assert_eq!(due, [1, 2, 3, 100, 99, 98]);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut following, now) = (Following::default(), Instant::now());
        for id in 1..=5000 {
            let status = if id % 2 == 0 { "Completed" } else { "PendingRetry" };
            following.is_news(&delivery(id, status, 1), NO_TIME, now);
        }
        assert!(following.prune(4500));
        assert_eq!(following.known.range(..=4500).count(), MOST_OPEN);
        assert_eq!(following.known.range(4501..).count(), 500, "the newest are kept whatever they are");
        assert!(!following.prune(4500));
    }
}
