//! How many attempts of a rate-limited subscription may go on now.
//!
//! A token bucket, kept as one time: the moment at which it will be full again. It is asked twice. **Admission** decides
//! how many jobs are created, so that what waits stays in sagas. **Start** decides about jobs that a worker has claimed:
//! jobs that were admitted at the right pace can still have waited for a worker, or have been parked, and must not start
//! all at once. Each has a bucket of its own.
//!
//! In any second no more than `rate` + a tenth of it, rounded up, may start. Both buckets are smaller than that burst, which
//! leaves room for the time between a decision and its effect: an admission that is a twentieth of a second late loses
//! nothing, and starts that are shifted by a fortieth of a second still keep the limit.

use crate::Timestamp;
use std::time::Duration;

const SECOND: i64 = 1_000_000;

/// Attempts that may be started per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit(u32);

/// Where a limit is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Jobs are created.
    Admission,
    /// Claimed jobs are started.
    Start,
}

/// What a gate lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// How many may pass now.
    pub passed: u32,
    /// The bucket afterwards, to be stored.
    pub full_at: Timestamp,
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
    pub fn pass(self, gate: Gate, full_at: Option<Timestamp>, wanted: u32, now: Timestamp) -> Passage {
        let empty_for = self.empty_for(gate, full_at, now);
        let free = (self.capacity(gate) - empty_for) * i64::from(self.0) / SECOND;
        let passed = wanted.min(u32::try_from(free).unwrap_or(0));
        Passage { passed, full_at: now.after(micros(empty_for + self.cost(passed))) }
    }

    /// The bucket to store after this many have passed; `None` if it stays as it is. One that a clock which was ahead has
    /// put further ahead than it is large is put right also where nothing passed: else it would hold everything until
    /// then.
    pub fn to_store(
        self,
        gate: Gate,
        full_at: Option<Timestamp>,
        passed: u32,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let after = self.pass(gate, full_at, passed, now).full_at;
        (passed > 0 || full_at.is_some_and(|at| after < at)).then_some(after)
    }

    /// How long it takes until `more` may pass, or as many as ever may at once.
    pub fn wait(self, gate: Gate, full_at: Option<Timestamp>, more: u32, now: Timestamp) -> Duration {
        let level = self.capacity(gate) - self.empty_for(gate, full_at, now);
        micros(self.cost(more).min(self.capacity(gate)) - level)
    }

    /// Where one process puts a start that the gate has let through: it may start then, and the second time is what the
    /// process keeps, by its own clock. A decision whose commit takes long has its effect late; with those that come
    /// quickly after it, a second would have more than the limit. What comes in time is not held up: the bucket is the
    /// gate's, and fills slightly faster, so that a clock that is a little slower than the database's leaves nothing over.
    pub fn space(self, full_at: Option<Timestamp>, now: Timestamp) -> (Timestamp, Timestamp) {
        let cost = self.cost(1) * 199 / 200;
        let full_at = full_at.map_or(now, |at| at.max(now)).after(micros(cost));
        let room = self.capacity(Gate::Start);
        (full_at.before(micros(room)).max(now), full_at)
    }

    /// After how many it is worth while to ask again: a quarter of the burst. One at a time would be a transaction each.
    pub fn batch(self) -> u32 {
        (self.burst() / 4).max(1)
    }

    /// The time between two attempts at this rate.
    pub fn interval(self) -> Duration {
        micros(self.cost(1))
    }

    /// What the bucket lacks, as the time that it takes to fill. A stored time that is further ahead than the bucket is
    /// large was written by a clock that was ahead: it counts as an empty bucket.
    fn empty_for(self, gate: Gate, full_at: Option<Timestamp>, now: Timestamp) -> i64 {
        let lacks = full_at.map_or(0, |at| at.as_micros().saturating_sub(now.as_micros()));
        lacks.clamp(0, self.capacity(gate))
    }

    /// How much the bucket holds, as the time that it takes to fill: one attempt and a part of the burst.
    fn capacity(self, gate: Gate) -> i64 {
        let quarters = match gate {
            Gate::Admission => 2,
            Gate::Start => 3,
        };
        (4 + quarters * i64::from(self.burst())) * SECOND / (4 * i64::from(self.0))
    }

    /// What this many attempts take out of the bucket. Rounded up: never more than the rate.
    fn cost(self, attempts: u32) -> i64 {
        let rate = i64::from(self.0);
        (i64::from(attempts) * SECOND + rate - 1) / rate
    }
}

fn micros(number: i64) -> Duration {
    Duration::from_micros(u64::try_from(number).unwrap_or(0))
}
