//! Rests between batches under load, so that what arrives meanwhile makes one larger batch: a batch costs nearly the
//! same for one row as for fifty. A loop that handles few rows never rests, and one whose batches are already large
//! would gain nothing.
//!
//! Several copies on one database share its queues. If each rested as a single copy does, three copies would make three
//! times as many batches of a third of the size. So each rests longer: together they make as many batches as one copy
//! would.

use std::{ops::Range, time::Duration};
use tokio::time::Instant;

/// The number of rows at which a batch is one under load, and would be better if it were larger.
const BUSY: Range<usize> = 8..256;
/// With several copies a batch under load may be as small as this.
const LEAST_BUSY: usize = 2;
/// The longest rest of a process that is alone.
const LONGEST: Duration = Duration::from_millis(20);
/// More copies than these do not rest any longer.
const MOST_COPIES: u32 = 8;

/// Rests after a batch of `rows` rows that began at `began`: for as long as it took, longer beside other copies.
pub(crate) async fn rest_after(rows: usize, began: Instant, copies: u32) {
    let now = Instant::now();
    let until = end_of_rest(rows, began, now, copies);
    if until > now {
        tokio::time::sleep_until(until).await;
    }
}

/// How long results gather where nobody waits for what they say: two commits, their own and the orchestrator's, are then
/// shared, and no delivery is later for it. A process that is killed sends again what it had not written by then.
pub(crate) const GATHER: Duration = Duration::from_millis(20);

/// Whether a batch would be better if it were larger.
pub(crate) fn is_small(rows: usize) -> bool {
    rows < BUSY.end
}

/// The end of the rest. One that would be short is left out: the timer's millisecond would be longer.
pub(crate) fn end_of_rest(rows: usize, began: Instant, ended: Instant, copies: u32) -> Instant {
    const QUICK: Duration = Duration::from_millis(1);
    let copies = copies.clamp(1, MOST_COPIES);
    let least = (BUSY.start / copies as usize).max(LEAST_BUSY);
    // Alone, it works half of the time. One of n works a 2n-th of it, and all of them together half of the time.
    let rest = ended.saturating_duration_since(began) * (2 * copies - 1);
    if rows < least || rows >= BUSY.end || rest < QUICK {
        return ended;
    }
    ended + rest.min(LONGEST * copies)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(rows: usize, micros: u64, copies: u32) -> Duration {
        let began = Instant::now();
        let ended = began + Duration::from_micros(micros);
        end_of_rest(rows, began, ended, copies) - ended
    }

    #[test]
    fn a_batch_is_followed_by_a_rest_as_long_as_itself_within_bounds() {
        let none = [rest(50, 0, 1), rest(50, 999, 1), rest(7, 9000, 1), rest(256, 9000, 1)];
        assert_eq!(none, [Duration::ZERO; 4]);
        assert_eq!(rest(8, 1500, 1), Duration::from_micros(1500));
        assert_eq!(rest(255, 500_000, 1), Duration::from_millis(20));
    }

    #[test]
    fn copies_together_work_for_as_much_of_the_time_as_one_alone() {
        for copies in 1..=MOST_COPIES {
            let took = Duration::from_millis(2);
            let cycle = took + rest(100, 2000, copies);
            assert!(cycle == took * 2 * copies || cycle == took + LONGEST * copies, "{copies}: {cycle:?}");
        }
        assert_eq!(rest(4, 1000, 2), Duration::from_millis(3), "their batches may be smaller");
        assert_eq!([rest(3, 1000, 2), rest(1, 1000, 8)], [Duration::ZERO; 2]);
        assert_eq!(rest(100, 1000, 1000), rest(100, 1000, MOST_COPIES), "a rest has an end");
    }
}
