//! How long attempts took: counted in a few ranges, from which a percentile can be calculated.
//!
//! A counter per range is all that is stored, in the row that counts a minute's results anyway: nothing is written for an
//! attempt that would not have been written, and nobody ever reads the attempts themselves.

use crate::Outcome;
use std::time::Duration;

/// The upper ends of the ranges in milliseconds, each inclusive; the last range has none.
const ENDS: [u32; Latencies::RANGES - 1] = [10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000];

/// How many attempts took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Attempts by range.
    pub ranges: [u64; Self::RANGES],
    /// The slowest of them, in milliseconds.
    pub slowest_ms: u32,
}

impl Latencies {
    pub const RANGES: usize = 12;

    /// How long an attempt took, in milliseconds; `None` if no request was sent.
    pub fn measured(outcome: &Outcome, took: Duration) -> Option<u32> {
        match outcome {
            Outcome::Failed(code) if !code.counts_against_endpoint() => None,
            _ => Some(u32::try_from(took.as_millis()).unwrap_or(u32::MAX)),
        }
    }

    /// The range that an attempt belongs to.
    pub fn range_of(took_ms: u32) -> usize {
        ENDS.partition_point(|end| *end < took_ms)
    }

    /// The longest that belongs to a range, in milliseconds; the last one has no end.
    pub fn end_of(range: usize) -> Option<u32> {
        ENDS.get(range).copied()
    }

    /// Counts an attempt.
    pub fn add(&mut self, took_ms: u32) {
        let count = &mut self.ranges[Self::range_of(took_ms)];
        *count = count.saturating_add(1);
        self.slowest_ms = self.slowest_ms.max(took_ms);
    }

    /// The number of milliseconds within which 95 of 100 attempts ended; `None` if there was none. An estimate: it lies
    /// in the range of the true value, as far into it as attempts spread evenly over the range would put it, and no
    /// attempt was slower than the slowest.
    pub fn p95_ms(&self) -> Option<u32> {
        let all = self.ranges.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
        let rank = all - all / 20;
        let mut before = 0_u64;
        for (range, count) in self.ranges.iter().enumerate() {
            let within = rank.saturating_sub(before);
            if within > 0 && within <= *count {
                let begin = range.checked_sub(1).map_or(0, |previous| ENDS[previous]);
                let end = ENDS.get(range).copied().unwrap_or(u32::MAX).min(self.slowest_ms).max(begin);
                let share = (u128::from(end - begin) * u128::from(within)).div_ceil(u128::from(*count));
                return Some(begin.saturating_add(u32::try_from(share).unwrap_or(u32::MAX)));
            }
            before = before.saturating_add(*count);
        }
        None
    }
}
