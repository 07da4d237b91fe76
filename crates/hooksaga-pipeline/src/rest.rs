//! Rests between batches under load, so that what arrives meanwhile makes one larger batch: a batch costs nearly the
//! same for one row as for fifty. Whoever works on few rows never rests, and whoever has large batches already has
//! nothing to gain.

use std::{ops::Range, time::Duration};
use tokio::time::Instant;

/// The number of rows at which a batch is one under load, and would be better if it were larger.
const BUSY: Range<usize> = 8..256;

/// Rests after a batch of `rows` rows that began at `began`, for as long as it took.
pub(crate) async fn rest_after(rows: usize, began: Instant) {
    let now = Instant::now();
    let until = end_of_rest(rows, began, now);
    if until > now {
        tokio::time::sleep_until(until).await;
    }
}

/// How long after the begin of a batch of a few rows the next one waits for company, where nobody waits for its rows.
pub(crate) const FEW_EVERY: Duration = Duration::from_millis(10);

/// Whether a batch is of a few rows.
pub(crate) fn is_few(rows: usize) -> bool {
    rows < BUSY.start
}

/// The end of the rest. A quick batch is followed by none: the timer's millisecond would be longer.
pub(crate) fn end_of_rest(rows: usize, began: Instant, ended: Instant) -> Instant {
    const QUICK: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(20);
    let took = ended.saturating_duration_since(began);
    if !BUSY.contains(&rows) || took < QUICK { ended } else { ended + took.min(LONGEST) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_followed_by_a_rest_as_long_as_itself_within_bounds() {
        let began = Instant::now();
        let rest = |rows, micros| {
            let ended = began + Duration::from_micros(micros);
            end_of_rest(rows, began, ended) - ended
        };
        assert_eq!([rest(50, 0), rest(50, 999), rest(7, 9000), rest(256, 9000)], [Duration::ZERO; 4]);
        assert_eq!(rest(8, 1500), Duration::from_micros(1500));
        assert_eq!(rest(255, 500_000), Duration::from_millis(20));
    }
}
