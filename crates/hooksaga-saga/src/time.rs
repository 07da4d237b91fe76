//! Points in time as every back end stores them: UTC, to the microsecond.

use std::time::Duration;

/// Microseconds since 1970-01-01T00:00:00Z.
///
/// A `Timestamp` that feeds a decision always comes from the database, never from this process's clock.
/// Arithmetic saturates: no configured delay, however absurd, can overflow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The latest time that every back end can store: 9999-12-31T23:59:59.999999Z.
    pub const MAX: Self = Self(253_402_300_799_999_999);

    /// The time this many microseconds after the Unix epoch, at most [`Timestamp::MAX`].
    pub const fn from_micros(micros: i64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This time plus `delay`, at most [`Timestamp::MAX`].
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        let delay = i128::try_from(delay.as_micros()).unwrap_or(i128::MAX);
        // Never too small for an i64: only what is too late does not fit.
        i64::try_from(delay.saturating_add(self.0.into())).map_or(Self::MAX, Self::from_micros)
    }

    /// This time minus `delay`, at least the Unix epoch.
    #[must_use]
    pub fn before(self, delay: Duration) -> Self {
        let delay = i64::try_from(delay.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.0.saturating_sub(delay).max(0))
    }

    /// How long it is from `earlier` until this time; zero when `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.max(earlier).0.abs_diff(earlier.0))
    }
}
