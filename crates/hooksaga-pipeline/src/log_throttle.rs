//! Log lines that many requests or passes would repeat: one per interval is logged, with the number of those left out.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// When a line was logged last, and how many were left out since.
#[derive(Debug)]
pub struct LogThrottle {
    every: Duration,
    state: Mutex<Option<(Instant, u64)>>,
}

impl LogThrottle {
    pub const fn new(every: Duration) -> Self {
        Self { every, state: Mutex::new(None) }
    }

    /// Whether a line is due now: how many were left out before it.
    pub fn is_due(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            Some((at, left_out)) if now.saturating_duration_since(*at) < self.every => {
                *left_out += 1;
                None
            }
            state => {
                let left_out = state.map_or(0, |(_, left_out)| left_out);
                *state = Some((now, 0));
                Some(left_out)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_interval_counts_those_that_were_left_out() {
        let throttle = LogThrottle::new(Duration::from_secs(10));
        let began = Instant::now();
        let after = |seconds| throttle.is_due(began + Duration::from_secs(seconds));
        assert_eq!(
            [after(0), after(1), after(9), after(10), after(19), after(40)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }
}
