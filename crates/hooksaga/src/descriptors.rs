//! File descriptors: every connection takes one, and many systems give a process 1024 unless it asks for more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
