//! What a delivery costs: CPU time, commits and bytes, of the server and of its database.

use std::time::Duration;

/// What servers and their database have used so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pub(super) server: Duration,
    /// Nothing where it cannot be seen; zero where the database is a part of the server.
    pub(super) database: Option<Duration>,
    /// Bytes that the database has sent to disks, where that can be seen.
    pub(super) written: Option<u64>,
}

/// What the database has counted so far; what it does not count is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DatabaseCounters {
    pub(super) commits: Option<u64>,
    /// How often its log was flushed to the disk.
    pub(super) syncs: Option<u64>,
    /// Bytes that it has put into its log.
    pub(super) log: Option<u64>,
}

/// The same per delivery: times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    pub(super) server: f64,
    pub(super) database: Option<f64>,
    pub(super) commits: Option<f64>,
    pub(super) syncs: Option<f64>,
    pub(super) log: Option<f64>,
    pub(super) written: Option<f64>,
}

impl Cost {
    /// From two samples of the same servers, between which this many deliveries arrived.
    pub(super) fn between(
        before: (Used, DatabaseCounters),
        after: (Used, DatabaseCounters),
        deliveries: u64,
    ) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let each = |total: u64| total as f64 / deliveries.max(1) as f64;
        let grown = |before: Option<u64>, after: Option<u64>| {
            before.zip(after).map(|(before, after)| each(after.saturating_sub(before)))
        };
        let millis = |before: Duration, after: Duration| {
            let micros = after.saturating_sub(before).as_micros();
            each(u64::try_from(micros).unwrap_or(u64::MAX)) / 1e3
        };
        let ((used, counts), (used_after, counts_after)) = (before, after);
        Self {
            server: millis(used.server, used_after.server),
            database: used.database.zip(used_after.database).map(|(before, after)| millis(before, after)),
            commits: grown(counts.commits, counts_after.commits),
            // A server that flushes nothing was told so: that costs nothing and promises nothing.
            syncs: grown(counts.syncs, counts_after.syncs).filter(|flushes| *flushes > 0.0),
            log: grown(counts.log, counts_after.log),
            // Files in memory are never written to a disk: then there is nothing to tell.
            written: grown(used.written, used_after.written).filter(|bytes| *bytes > 0.0),
        }
    }

    /// CPU time of server and database, where both can be seen.
    pub(super) fn cpu(&self) -> Option<f64> {
        self.database.map(|database| self.server + database)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_per_delivery_and_missing_where_nobody_counts() {
        let used = |server, database: Option<u64>, written| Used {
            server: Duration::from_millis(server),
            database: database.map(Duration::from_millis),
            written,
        };
        let counts = |commits, log| DatabaseCounters { commits, syncs: Some(7), log };
        let before = (used(10, Some(100), Some(4096)), counts(Some(5), None));
        let after = (used(60, Some(200), Some(4096)), counts(Some(405), Some(9)));
        let cost = Cost::between(before, after, 100);
        let expected = Cost { server: 0.5, database: Some(1.0), commits: Some(4.0), ..Cost::default() };
        assert_eq!(cost, expected);
        assert_eq!(cost.cpu(), Some(1.5));
        let unseen = Cost::between((used(0, None, None), counts(None, None)), after, 0);
        assert_eq!((unseen.cpu(), unseen.written), (None, None));
    }
}
