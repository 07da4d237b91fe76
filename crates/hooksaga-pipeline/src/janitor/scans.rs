//! How far the scans of old events have come.

use super::{large_events::Large, pace::Pace, unremovable::PendingRemovals};
use hooksaga_saga::{EventId, Retention};
use hooksaga_store::{EventPlace, OldEvents, Removed};
use std::time::Duration;
use tokio::time::Instant;

/// How far the scans of the old events have come.
#[derive(Debug, Default)]
pub(super) struct Scans {
    /// Everything up to here was looked at once.
    pub(super) front: Option<EventPlace>,
    /// The scan of what was left; `None` while it rests.
    pub(super) again: Option<SecondScan>,
    /// It does not begin before.
    pub(super) rest_until: Option<Instant>,
    /// Events with very many deliveries, which go some at a time. They are archived.
    pub(super) large: Vec<Large>,
    pub(super) pending: PendingRemovals,
    /// What was removed since the last log line.
    pub(super) removed: Removed,
    /// How long this step has rested, but for its part of a large event.
    pub(super) rested: Duration,
    /// How long that part took, with its rest.
    pub(super) large_took: Duration,
    pub(super) pace: Pace,
}

impl Scans {
    /// A large event whose next part may be removed.
    pub(super) fn due(&self, now: Instant) -> Option<Large> {
        self.large.iter().rev().find(|large| large.not_before.is_none_or(|at| at <= now)).copied()
    }

    pub(super) fn is_large(&self, id: EventId) -> bool {
        self.large.iter().any(|large| large.id == id)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SecondScan {
    pub(super) after: Option<EventPlace>,
    pub(super) began: Instant,
}

/// What a step of a scan came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scanned {
    /// The last event of it; the scan resumes behind that.
    pub(super) last: Option<EventPlace>,
    /// There were no more.
    pub(super) is_end: bool,
    /// How long what may go of it could have been gone. Nothing is overdue where the scan comes to its end.
    pub(super) overdue: Duration,
}

impl Scanned {
    pub(super) fn of(found: &OldEvents, retention: &Retention) -> Self {
        let oldest = found.last.filter(|_| !found.is_end && !found.may_go.is_empty());
        let overdue =
            oldest.map_or(Duration::ZERO, |(created_at, _)| retention.overdue(created_at, found.as_of));
        Self { last: found.last, is_end: found.is_end, overdue }
    }
}
