//! How many attempts of a rate-limited subscription may go on, and when.
//!
//! A token bucket, kept as one time: the moment at which it will be full again. It is asked twice. **Admission** decides
//! how many jobs are created now ([`RateLimit::pass`]), so that what waits stays in sagas. **Start** decides about jobs that
//! a worker has claimed ([`RateLimit::reserve`]): jobs that were admitted at the right pace can still have waited for a
//! worker, or have been parked, and must not start all at once. Each has a bucket of its own.
//!
//! A start is counted for the moment at which it will happen, not for that of the question: the answer comes with a commit,
//! and processes whose commits take different times would otherwise start in one second what was counted for two
//! ([`Lead`]).
//!
//! In any second no more than `rate` + a tenth of it, rounded up, may start. Let a bucket of capacity `c` count attempts at
//! moments `e`, in any order. It counts one only if the time at which it is full again is then at most `e + c`, and each moves
//! that time by 1/`rate`, from `e` on at least. So of the attempts counted for a second, the first one puts that time
//! behind the second's beginning, and the last one leaves it at most `c` behind the second's end: there are fewer
//! than (1 s + `c`) × `rate`. With half of the burst as the capacity, that keeps the limit even if each starts up to a
//! twentieth of a second after its moment.

use crate::{Lead, Timestamp};
use std::time::Duration;

const SECOND: i64 = 1_000_000;

/// Attempts that may be started per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit(u32);

/// What is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// How many may pass now.
    pub passed: u32,
    /// The bucket afterwards, to be stored.
    pub full_at: Timestamp,
}

/// What may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// How many may.
    pub jobs: u32,
    /// The last of them, so long after the lead; those before it at the pace of the limit, from the lead on.
    pub last: Duration,
    /// The bucket afterwards, to be stored.
    pub full_at: Timestamp,
    /// How long until it is worth while to ask for the next one.
    pub wait: Duration,
}

impl RateLimit {
    /// The highest limit there is.
    pub const MOST: u32 = 10_000;

    /// So many attempts per second, 1 to [`Self::MOST`].
    pub fn per_second(attempts: u32) -> Self {
        Self(attempts.clamp(1, Self::MOST))
    }

    /// How many more than the rate may start in one second: a tenth of it, rounded up.
    pub fn burst(self) -> u32 {
        self.0.div_ceil(10)
    }

    /// Lets as many of `wanted` pass as may. `full_at` is what the last passage left; `None` if there was none.
    pub fn pass(self, full_at: Option<Timestamp>, wanted: u32, now: Timestamp) -> Passage {
        let lacks = self.lacks(full_at, now);
        let passed = wanted.min(self.free(lacks));
        Passage { passed, full_at: now.after(micros(lacks + self.cost(passed))) }
    }

    /// The bucket to store after this many have passed; `None` if it stays as it is. One that a clock which was ahead has
    /// put further ahead than it is large is put right also where nothing passed: else it would hold everything until
    /// then.
    pub fn to_store(self, full_at: Option<Timestamp>, passed: u32, now: Timestamp) -> Option<Timestamp> {
        let after = self.pass(full_at, passed, now).full_at;
        (passed > 0 || full_at.is_some_and(|at| after < at)).then_some(after)
    }

    /// How long it takes until `more` may pass, or as many as ever may at once.
    pub fn wait(self, full_at: Option<Timestamp>, more: u32, now: Timestamp) -> Duration {
        let level = self.capacity() - self.lacks(full_at, now);
        micros(self.cost(more).min(self.capacity()) - level)
    }

    /// Counts as many of `wanted` as may start between the lead and twice the lead from now. `full_at` is what the last
    /// reservation left; `None` if there was none. Starts that others have reserved for later are not forgotten:
    /// only a time further ahead than anybody reserves was written by a clock that was ahead, and is an empty bucket.
    pub fn reserve(self, full_at: Option<Timestamp>, wanted: u32, now: Timestamp, lead: Lead) -> Reservation {
        let (first, latest) = (now.after(lead.shortest()), now.after(lead.longest()));
        let capacity = self.capacity();
        let furthest = now.after(Lead::MOST.longest() + micros(capacity));
        let full_at = full_at.map_or(now, |at| if at > furthest { now.after(micros(capacity)) } else { at });
        let begins = full_at.max(first);
        let jobs = wanted.min(self.free(micros_between(latest, begins)));
        let full_at = if jobs == 0 { full_at } else { begins.after(micros(self.cost(jobs))) };
        Reservation {
            jobs,
            last: micros(micros_between(first, full_at) - capacity),
            full_at,
            wait: micros(micros_between(latest, full_at) + self.cost(1) - capacity),
        }
    }

    /// After how many it is worth while to ask again: a quarter of the burst. One at a time would be a transaction each.
    pub fn batch(self) -> u32 {
        (self.burst() / 4).max(1)
    }

    /// How long this many attempts take at this rate.
    pub fn time_for(self, attempts: u32) -> Duration {
        micros(self.cost(attempts))
    }

    /// What the bucket lacks, as the time that it takes to fill. A stored time that is further ahead than the bucket is
    /// large was written by a clock that was ahead: it counts as an empty bucket.
    fn lacks(self, full_at: Option<Timestamp>, now: Timestamp) -> i64 {
        full_at.map_or(0, |at| micros_between(now, at)).clamp(0, self.capacity())
    }

    /// How many a bucket that lacks this much lets through; more if it has had time to spare.
    fn free(self, lacks: i64) -> u32 {
        u32::try_from((self.capacity() - lacks) * i64::from(self.0) / SECOND).unwrap_or(0)
    }

    /// How much the bucket holds, as the time that it takes to fill: one attempt and half of the burst.
    fn capacity(self) -> i64 {
        (2 + i64::from(self.burst())) * SECOND / (2 * i64::from(self.0))
    }

    /// What this many attempts take out of the bucket. Rounded up: never more than the rate.
    fn cost(self, attempts: u32) -> i64 {
        let rate = i64::from(self.0);
        (i64::from(attempts) * SECOND + rate - 1) / rate
    }
}

/// None where it is negative.
fn micros(number: i64) -> Duration {
    Duration::from_micros(u64::try_from(number).unwrap_or(0))
}

/// Negative where `until` is earlier.
fn micros_between(from: Timestamp, until: Timestamp) -> i64 {
    until.as_micros().saturating_sub(from.as_micros())
}
