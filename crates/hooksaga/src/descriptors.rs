//! File descriptors: every connection takes one, and many systems give a process 1024 unless it asks for more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More connections than this are of no use to the listener: they only take memory.
const MOST_CONNECTIONS: u64 = 8192;

/// Fewer would serve nobody.
const FEWEST_CONNECTIONS: u64 = 16;

/// What the database, the log, the listeners and the runtime open.
const OTHERS: u64 = 160;

/// Of the limit, one part in this many is for the verifier's connections, within what follows.
const PART_FOR_CHECKS: u64 = 8;
const FEWEST_CHECKS: u64 = 16;
const MOST_CHECKS: u64 = 256;

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

/// How many verifications may be under way at a time.
pub(crate) fn checks() -> usize {
    usize::try_from(checks_within(getrlimit(Resource::Nofile).current)).unwrap_or(usize::MAX)
}

/// How many connections the listener may hold, beside `deliveries` and `checks` under way at a time. Says so if the limit
/// is too low for all of them.
pub(crate) fn connections_beside(deliveries: u32, checks: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let checks = u64::try_from(checks).unwrap_or(u64::MAX);
    let (connections, fits) = share(limit, u64::from(deliveries).saturating_add(checks));
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

/// The limit that [`raise_limit`] gives this process; `None` if there is none.
pub(crate) fn highest() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// Whether this many descriptors are enough for `deliveries` in flight and some connections.
pub(crate) fn suffices(limit: u64, deliveries: u32) -> bool {
    share(Some(limit), u64::from(deliveries) + checks_within(Some(limit))).1
}

fn checks_within(limit: Option<u64>) -> u64 {
    limit.map_or(MOST_CHECKS, |limit| (limit / PART_FOR_CHECKS).clamp(FEWEST_CHECKS, MOST_CHECKS))
}

/// How many connections of clients a limit has room for beside this many of the process's own, and whether these all fit.
fn share(limit: Option<u64>, own: u64) -> (u64, bool) {
    let Some(limit) = limit else { return (MOST_CONNECTIONS, true) };
    let left = limit.saturating_sub(OTHERS.saturating_add(own));
    // Where there is too little for both, clients get an eighth.
    let least = (limit / 8).max(FEWEST_CONNECTIONS);
    (left.clamp(least, MOST_CONNECTIONS.max(least)), left >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_verifications_and_the_database_come_first() {
        for (limit, checks, connections) in
            [(None, 256, 8192), (Some(20_000), 256, 8192), (Some(2048), 256, 1120), (Some(1024), 128, 224)]
        {
            assert_eq!(checks_within(limit), checks, "{limit:?}");
            assert_eq!(share(limit, 512 + checks), (connections, true), "{limit:?}");
        }
        assert_eq!(checks_within(Some(64)), 16);
    }

    #[test]
    fn clients_have_what_is_left_and_never_nothing() {
        assert_eq!(share(None, 512), (8192, true));
        assert_eq!(share(Some(20_000), 512), (8192, true));
        assert_eq!(share(Some(1024), 512), (352, true));
        assert_eq!(share(Some(1024), 0), (864, true), "a process that delivers nothing");
        assert_eq!(share(Some(1024), 1000), (128, false));
        assert_eq!(share(Some(64), 512), (16, false));
    }
}
