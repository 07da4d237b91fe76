//! What the database's clock says, as exactly as another process can know it.

use hooksaga_saga::Timestamp;
use std::time::{Duration, Instant};

/// The database's clock, and between which moments of this process's own it was read.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    pub time: Timestamp,
    pub asked: Instant,
    pub answered: Instant,
}

impl ClockReading {
    /// A reading by a call that was sent at `asked` and has just ended.
    pub fn of_call(time: Timestamp, asked: Instant) -> Self {
        Self { time, asked, answered: Instant::now() }
    }

    /// The middle of the call, at which the clock most likely said this.
    pub fn read_at(&self) -> Instant {
        self.asked + self.give_or_take()
    }

    /// The time is exact to this: half of the call.
    pub fn give_or_take(&self) -> Duration {
        (self.answered - self.asked) / 2
    }
}
