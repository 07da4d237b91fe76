//! Counts of what ended, per minute and subscription, and their sums: totals of minutes, and counts per hour.
//!
//! The janitor sums up minutes that nobody adds to any more. Readers use the sums up to
//! where they end, and the minutes after that. How far the sums go changes the cost of a query, never its result.

use hooksaga_saga::Timestamp;
use std::{ops::Range, time::Duration};

/// How long counts per minute stay, and counts per hour at least. Hours are summed up as soon as they are over.
pub const MINUTES_KEPT: Duration = Duration::from_secs(48 * 3600);

/// The age at which nobody adds to a minute any more: what writes counts takes seconds at most.
pub const MINUTES_SETTLED: Duration = Duration::from_secs(5 * 60);

/// How long totals of minutes stay: a little longer than statistics show them.
pub const TOTALS_KEPT: Duration = Duration::from_secs(4 * 3600);

/// How many of a tenant's subscriptions, the first ones, are examined for their counts.
pub const SUBSCRIPTIONS_LOOKED_AT: u32 = 5000;

pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const SHOWN_MINUTES: Duration = Duration::from_secs(3 * 3600);

/// How far the janitor has come with the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountProgress {
    /// Of minutes before this there are totals.
    pub minutes_below: Timestamp,
    /// Hours before this are whole.
    pub hours_below: Timestamp,
    /// Of the hour that begins there, subscriptions up to this one are done.
    pub after_subscription_id: i64,
}

impl CountProgress {
    /// The minutes of which totals are to be made next.
    pub fn minutes(&self, now: Timestamp) -> Range<Timestamp> {
        let to = floor(now.before(MINUTES_SETTLED), MINUTE);
        self.minutes_below.max(floor(now.before(TOTALS_KEPT), MINUTE))..to
    }

    /// The hours to be summed up next, once their minutes are settled.
    pub fn hours(&self) -> Range<Timestamp> {
        self.hours_below..floor(self.minutes_below, HOUR)
    }

    /// The same, if there are any.
    pub fn open_minutes(&self, now: Timestamp) -> Option<Range<Timestamp>> {
        Some(self.minutes(now)).filter(|open| !open.is_empty())
    }

    /// The same, if there are any.
    pub fn open_hours(&self) -> Option<Range<Timestamp>> {
        Some(self.hours()).filter(|open| !open.is_empty())
    }

    /// Goes on to the hour of the next minute in `open` that has counts, or to the end. Returns the hour.
    pub fn go_on_to(&mut self, minute: Option<Timestamp>, open: &Range<Timestamp>) -> Option<Timestamp> {
        let hour = minute.map_or(open.end, |minute| floor(minute, HOUR));
        // What was done of an hour counts for no other.
        let after = if hour == self.hours_below { self.after_subscription_id } else { 0 };
        (self.hours_below, self.after_subscription_id) = (hour, after);
        (hour < open.end).then_some(hour)
    }

    /// The subscriptions of the hour that are summed up next, from the first that has counts: from which id to which.
    /// Nothing if there is none: then it goes on behind the hour.
    pub fn take(&mut self, first: Option<i64>, limit: u32) -> Option<(i64, i64)> {
        let Some(first) = first else {
            (self.hours_below, self.after_subscription_id) = (self.hours_below.after(HOUR), 0);
            return None;
        };
        let last = first.saturating_add(i64::from(limit.max(1)) - 1);
        self.after_subscription_id = last;
        Some((first, last))
    }

    /// Minutes before this may go.
    pub fn minutes_kept_from(&self, now: Timestamp) -> Timestamp {
        self.hours_below.min(now.before(MINUTES_KEPT))
    }
}

/// From which rows the last three hours are read, minute by minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedMinutes {
    pub totals: Range<Timestamp>,
    pub minutes: Range<Timestamp>,
}

impl CountedMinutes {
    pub fn new(now: Timestamp, minutes_below: Timestamp) -> Self {
        let first = floor(now.before(SHOWN_MINUTES), MINUTE).after(MINUTE);
        let end = floor(now, MINUTE).after(MINUTE);
        let between = minutes_below.clamp(first, end);
        Self { totals: first..between, minutes: between..end }
    }
}

/// From which rows the last 24 hours are read: whole hours, and the minutes before and after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedDay {
    pub minutes_before: Range<Timestamp>,
    pub hours: Range<Timestamp>,
    pub minutes_after: Range<Timestamp>,
}

impl CountedDay {
    pub fn new(now: Timestamp, hours_below: Timestamp) -> Self {
        let since = now.before(DAY);
        let first_hour = floor(since, HOUR).after(HOUR);
        let end = floor(now, MINUTE).after(MINUTE);
        let hours_end = floor(hours_below, HOUR).clamp(first_hour, floor(now, HOUR));
        Self {
            minutes_before: floor(since, MINUTE).after(MINUTE)..first_hour,
            hours: first_hour..hours_end,
            minutes_after: hours_end..end,
        }
    }

    /// The minutes before and after the hours.
    pub fn minutes(&self) -> impl Iterator<Item = Timestamp> {
        each(&self.minutes_before, MINUTE).chain(each(&self.minutes_after, MINUTE))
    }
}

/// The beginnings of the minutes or hours in a range that begins with one.
pub fn each(range: &Range<Timestamp>, step: Duration) -> impl Iterator<Item = Timestamp> + use<> {
    let end = range.end;
    std::iter::successors(Some(range.start), move |at| Some(at.after(step))).take_while(move |at| *at < end)
}

/// The beginning of the minute or hour.
pub fn floor(at: Timestamp, step: Duration) -> Timestamp {
    let step = i64::try_from(step.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(at.as_micros() - at.as_micros().rem_euclid(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time of a day that is not the first, in hours, minutes and seconds.
    fn at(hour: i64, minute: i64, second: i64) -> Timestamp {
        Timestamp::from_micros((((10 * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000)
    }

    #[test]
    fn a_day_is_read_from_whole_hours_and_the_minutes_around_them() {
        let now = at(12, 30, 15);
        let day = CountedDay::new(now, at(11, 0, 0));
        assert_eq!(day.minutes_before, at(-12, 31, 0)..at(-11, 0, 0));
        assert_eq!(day.hours, at(-11, 0, 0)..at(11, 0, 0));
        assert_eq!(day.minutes_after, at(11, 0, 0)..at(12, 31, 0));
        assert_eq!(each(&day.hours, HOUR).count(), 22);
        assert_eq!(day.minutes().count(), 29 + 91);
    }

    #[test]
    fn however_far_the_sums_go_every_minute_is_read_once() {
        for now in [at(12, 30, 15), at(12, 0, 0), at(12, 59, 59), at(0, 0, 30)] {
            for below in [Timestamp::from_micros(0), at(-11, 0, 0), at(3, 0, 0), at(11, 0, 0), at(99, 0, 0)] {
                let day = CountedDay::new(now, below);
                let of_hours =
                    each(&day.hours, HOUR).flat_map(|hour| each(&(hour..hour.after(HOUR)), MINUTE));
                let mut seen: Vec<Timestamp> = day.minutes().chain(of_hours).collect();
                seen.sort_unstable();
                let first = floor(now.before(DAY), MINUTE).after(MINUTE);
                let expected: Vec<Timestamp> =
                    each(&(first..now.after(Duration::from_micros(1))), MINUTE).collect();
                assert_eq!(seen, expected, "{now:?} {below:?}");

                let shown = CountedMinutes::new(now, below);
                assert_eq!(shown.totals.end, shown.minutes.start);
                assert_eq!(each(&(shown.totals.start..shown.minutes.end), MINUTE).count(), 180);
            }
        }
    }

    #[test]
    fn sums_follow_what_is_settled() {
        let start = Timestamp::from_micros(0);
        let mut progress =
            CountProgress { minutes_below: start, hours_below: start, after_subscription_id: 0 };
        let now = at(12, 7, 30);
        assert_eq!(progress.minutes(now), at(8, 7, 0)..at(12, 2, 0));
        assert!(progress.hours().is_empty(), "no minute is settled");
        assert_eq!(progress.minutes_kept_from(now), start, "nothing goes before its hour is whole");
        progress.minutes_below = at(12, 2, 0);
        assert!(progress.minutes(now).is_empty());
        assert_eq!(progress.hours(), start..at(12, 0, 0));
        let (open, next) = (progress.open_hours().unwrap(), Some(at(9, 30, 0)));
        assert_eq!(progress.go_on_to(next, &open), Some(at(9, 0, 0)));
        assert_eq!(progress.take(Some(5), 10), Some((5, 14)));
        assert_eq!(progress.go_on_to(next, &open), Some(at(9, 0, 0)));
        assert_eq!(progress.after_subscription_id, 14, "it goes on where it was");
        assert_eq!(progress.take(None, 10), None);
        assert_eq!((progress.hours_below, progress.after_subscription_id), (at(10, 0, 0), 0));
        assert_eq!(progress.go_on_to(None, &open), None);
        assert_eq!(progress.hours_below, at(12, 0, 0));
        assert_eq!(progress.minutes_kept_from(now), now.before(MINUTES_KEPT));
    }
}
