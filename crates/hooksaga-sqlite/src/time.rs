//! The database's clock. An embedded database has none but the process's: SQLite's own functions read the
//! same clock, only to the millisecond.

use hooksaga_saga::Timestamp;
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The time now, to the microsecond. Within a process it never goes backwards and never stands still,
/// whatever happens to the system's clock.
#[expect(clippy::disallowed_methods, reason = "here the process's clock is the database's")]
pub(crate) fn now() -> Timestamp {
    static LATEST: Mutex<Option<Reading>> = Mutex::new(None);

    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let reading = Reading::after(*latest, wall, Instant::now());
    *latest = Some(reading);
    reading.time()
}

/// One look at the clock.
#[derive(Clone, Copy, Debug)]
struct Reading {
    since_epoch: Duration,
    at: Instant,
}

impl Reading {
    /// What the clock shows, given the last reading. A clock that was set back is not followed: that would
    /// put leases and retries which were just written into the future. Nor does time wait until the clock
    /// has caught up, which would hold them up for as long as it was set back: it goes on from the last
    /// reading.
    fn after(last: Option<Self>, wall: Duration, at: Instant) -> Self {
        let since_epoch = match last {
            Some(last) if wall < last.since_epoch => {
                last.since_epoch.saturating_add(at.saturating_duration_since(last.at))
            }
            _ => wall,
        };
        Self { since_epoch, at }
    }

    fn time(self) -> Timestamp {
        Timestamp::from_micros(i64::try_from(self.since_epoch.as_micros()).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_goes_backwards() {
        let times: Vec<_> = (0..1000).map(|_| now()).collect();
        assert!(times.is_sorted());
        assert!(times[0].as_micros() > 1_700_000_000_000_000, "microseconds since 1970");
    }

    #[test]
    fn a_clock_that_is_set_back_goes_on_from_where_it_was() {
        let start = Instant::now();
        let seconds = Duration::from_secs;
        let mut last = None;
        // What the system's clock shows each second, and what follows from it.
        for (elapsed, (wall, expected)) in
            (0..).zip([(100, 100), (101, 101), (41, 102), (42, 103), (200, 200)])
        {
            let reading = Reading::after(last, seconds(wall), start + seconds(elapsed));
            assert_eq!(reading.time(), Timestamp::from_micros(expected * 1_000_000), "{wall} s");
            last = Some(reading);
        }
    }
}
