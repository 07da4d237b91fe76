//! The database's clock. An embedded database has none but the process's: SQLite's own functions read the
//! same clock, only to the millisecond.

use hooksaga_saga::Timestamp;
use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// The time now, to the microsecond. It never goes backwards within a process, whatever happens to the
/// system's clock.
#[expect(clippy::disallowed_methods, reason = "here the process's clock is the database's")]
pub(crate) fn now() -> Timestamp {
    static LATEST: AtomicI64 = AtomicI64::new(i64::MIN);

    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX);
    let latest = LATEST.fetch_max(micros, Ordering::Relaxed).max(micros);
    Timestamp::from_micros(latest)
}

#[cfg(test)]
mod tests {
    #[test]
    fn never_goes_backwards() {
        let times: Vec<_> = (0..1000).map(|_| super::now()).collect();
        assert!(times.is_sorted());
        assert!(times[0].as_micros() > 1_700_000_000_000_000, "microseconds since 1970");
    }
}
