//! File descriptors: every connection takes one, and many systems give a process 1024 unless it asks for more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More connections than this are of no use to the listener: they only take memory.
const MOST_CONNECTIONS: u64 = 8192;

/// Fewer would serve nobody.
const FEWEST_CONNECTIONS: u64 = 16;

/// What the database, the log, the listeners and the runtime open.
const OTHERS: u64 = 160;

/// Asks for as many as whoever started this process lets it have (its hard limit).
///
/// Without them deliveries fail through no fault of their endpoint.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, limit = limit.current, "cannot raise the limit of open files");
    }
}

/// How many connections the listener may hold, beside `deliveries` under way at a time. Says so if the limit is too
/// low for both.
pub(crate) fn connections_beside(deliveries: u32) -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let (connections, fits) = share(limit, u64::from(deliveries));
    if !fits {
        tracing::warn!(
            limit,
            connections,
            "the limit of open files is low for worker.concurrency = {deliveries}: raise it (ulimit -n, LimitNOFILE) \
             to at least {}, or deliveries may fail",
            deliveries.saturating_add(1024)
        );
    }
    usize::try_from(connections).unwrap_or(usize::MAX)
}

/// The limit that [`raise_limit`] gives this process; nothing if there is none.
pub(crate) fn highest() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// Whether this many descriptors are enough for `deliveries` in flight and some connections.
pub(crate) fn suffices(limit: u64, deliveries: u32) -> bool {
    share(Some(limit), deliveries.into()).1
}

/// The connections that a limit has room for, and whether deliveries have all of theirs.
fn share(limit: Option<u64>, deliveries: u64) -> (u64, bool) {
    let Some(limit) = limit else { return (MOST_CONNECTIONS, true) };
    let left = limit.saturating_sub(OTHERS + deliveries);
    // Where there is too little for both, clients get an eighth.
    let least = (limit / 8).max(FEWEST_CONNECTIONS);
    (left.clamp(least, MOST_CONNECTIONS.max(least)), left >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_and_the_database_come_first() {
        assert_eq!(share(None, 512), (8192, true));
        assert_eq!(share(Some(20_000), 512), (8192, true));
        assert_eq!(share(Some(1024), 512), (352, true));
        assert_eq!(share(Some(1024), 0), (864, true), "a process that delivers nothing");
        assert_eq!(share(Some(1024), 1000), (128, false));
        assert_eq!(share(Some(64), 512), (16, false));
    }
}
