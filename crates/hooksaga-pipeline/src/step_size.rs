//! How large the steps of background work are, and how long to rest between them, so that live traffic hardly notices it.

use hooksaga_store::StoreError;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// The size of the next step. It shrinks when a step took long and grows when it was quick, so background work
/// takes less of a database that is busy with live traffic.
#[derive(Debug)]
pub(crate) struct StepSize(AtomicU32);

impl StepSize {
    const LEAST: u32 = 10;
    /// On SQLite everybody else waits while a step is written.
    pub(crate) const MOST: u32 = 200;
    /// A step that takes less may grow.
    const QUICK: Duration = Duration::from_millis(10);
    /// A step that takes more shrinks.
    const SLOW: Duration = Duration::from_millis(40);

    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(50))
    }

    /// Rows that the next step may write.
    pub(crate) fn rows(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes note of a step, and says how long to rest after it: twice as long as it took, so that two thirds of the
    /// time are everybody else's.
    pub(crate) fn rest_after(&self, took: Duration) -> Duration {
        let size = self.rows();
        let next = match took {
            _ if took > Self::SLOW => size / 2,
            _ if took < Self::QUICK => size * 2,
            _ => size,
        };
        self.0.store(next.clamp(Self::LEAST, Self::MOST), Ordering::Relaxed);
        (took * 2).clamp(Duration::from_millis(2), Duration::from_secs(1))
    }

    /// Takes note of a step that failed. It may have been too large, unless the error would be the same for any size: one
    /// piece of work that can never be done must not make everybody else's steps smaller.
    pub(crate) fn failed(&self, error: &StoreError) {
        if error.is_transient() {
            self.0.store((self.rows() / 2).max(Self::LEAST), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_while_they_are_quick_and_shrink_when_they_are_slow_or_fail() {
        let step_size = StepSize::new();
        let ms = Duration::from_millis;
        for _ in 0..5 {
            assert_eq!(step_size.rest_after(ms(5)), ms(10));
        }
        assert_eq!(step_size.rows(), StepSize::MOST);
        assert_eq!(step_size.rest_after(ms(20)), ms(40));
        assert_eq!(step_size.rows(), StepSize::MOST, "neither quick nor slow");
        assert_eq!(step_size.rest_after(ms(900)), ms(1000), "a rest has an end");
        assert_eq!(step_size.rows(), StepSize::MOST / 2);
        for error in [StoreError::Other(String::new()), StoreError::Refused(String::new())] {
            step_size.failed(&error);
        }
        assert_eq!(step_size.rows(), StepSize::MOST / 2, "a smaller step would fail as well");
        (0..9).for_each(|_| step_size.failed(&StoreError::TimedOut(String::new())));
        assert_eq!(step_size.rows(), StepSize::LEAST);
        assert_eq!(step_size.rest_after(Duration::ZERO), ms(2), "there is always a rest");
    }
}
