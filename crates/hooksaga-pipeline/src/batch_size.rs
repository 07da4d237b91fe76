//! How much a loop does in one call. After a call that hits a time limit of the database the next
//! one is half as large, down to a single row. Calls grow again while they succeed.

use hooksaga_store::{StoreError, StoreResult};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct BatchSize {
    most: u32,
    now: AtomicU32,
}

impl BatchSize {
    pub(crate) const fn new(most: u32) -> Self {
        Self { most, now: AtomicU32::new(most) }
    }

    /// The size of the next batch.
    pub(crate) fn get(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Learns from the result of a call of this size, and returns it.
    pub(crate) fn noting<T>(&self, result: StoreResult<T>) -> StoreResult<T> {
        let size = self.get();
        let next = match &result {
            Err(StoreError::TimedOut(_)) => (size / 2).max(1),
            Ok(_) => size.saturating_mul(2).min(self.most),
            Err(_) => size,
        };
        self.now.store(next, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_times_out_is_halved_and_grows_again() {
        let size = BatchSize::new(1000);
        let slow = || Err::<(), _>(StoreError::TimedOut(String::new()));
        let away = || Err::<(), _>(StoreError::Unavailable(String::new()));
        let mut seen = Vec::new();
        for result in [Ok(()), slow(), slow(), away(), Ok(()), Ok(()), Ok(())] {
            let _ = size.noting(result);
            seen.push(size.get());
        }
        assert_eq!(seen, [1000, 500, 250, 250, 500, 1000, 1000]);
        for _ in 0..20 {
            let _ = size.noting(slow());
        }
        assert_eq!(size.get(), 1, "a single row is always tried");
    }
}
