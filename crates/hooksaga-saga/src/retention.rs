//! When finished history may be removed.

use crate::{SagaStatus, Timestamp};
use std::time::Duration;

/// How long finished history stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// An event whose deliveries have all been final for this long may go.
    pub finished: Duration,
    /// A dead letter stays for this long, with all that its requeue needs. `None`: for good.
    pub dead_letters: Option<Duration>,
}

impl Retention {
    /// Nothing goes that has been final for less, whatever is configured. The schema says the same.
    pub const SHORTEST: Duration = Duration::from_secs(60);

    /// What may go as of this moment.
    pub fn as_of(self, moment: Timestamp) -> Expiry {
        Expiry { retention: self, as_of: moment }
    }

    /// What changed after this moment is too young to go.
    pub fn settled_before(&self, now: Timestamp) -> Timestamp {
        now.before(self.finished.max(Self::SHORTEST))
    }

    /// For how long an event that was created at this moment could have been gone.
    pub fn overdue(&self, created_at: Timestamp, now: Timestamp) -> Duration {
        self.settled_before(now).since(created_at)
    }

    /// Dead letters that are younger than this stay; `None`: all of them do.
    fn letters_before(&self, now: Timestamp) -> Option<Timestamp> {
        self.dead_letters.map(|kept| now.before(kept.max(self.finished).max(Self::SHORTEST)))
    }
}

/// How much of its usual rest the janitor takes. It leaves the machine to others as long as it keeps up, and rests less only
/// while it falls behind: a large backlog that shrinks is no reason to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JanitorRest {
    quarters: u32,
}

impl JanitorRest {
    pub const FULL: Self = Self { quarters: 4 };
    /// It keeps up while nothing that may go is overdue for longer.
    pub const LATE: Duration = Duration::from_secs(120);

    /// What it takes from now on, by how long the oldest history that may go has been overdue: now, and some seconds earlier.
    #[must_use]
    pub fn next(self, earlier: Duration, overdue: Duration) -> Self {
        match overdue {
            _ if overdue <= Self::LATE => Self::FULL,
            _ if overdue > earlier => Self { quarters: self.quarters.saturating_sub(1).max(1) },
            _ => self,
        }
    }

    /// What is left of a rest.
    pub fn of(self, rest: Duration) -> Duration {
        rest * self.quarters / 4
    }
}

/// What decides whether an event may go: itself, and the sagas and dead letters that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRemains {
    pub created_at: Timestamp,
    /// It waits to be routed.
    pub is_queued: bool,
    /// Sagas that are not final.
    pub open_sagas: u32,
    /// Sagas that are DeadLettered.
    pub dead_sagas: u32,
    /// When a saga last changed; a final one never does again.
    pub last_change: Option<Timestamp>,
    pub letters: u32,
    pub last_letter: Option<Timestamp>,
}

/// What decides about one saga of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SagaRemains {
    pub status: SagaStatus,
    pub updated_at: Timestamp,
    /// When its dead letter was stored, if it has one.
    pub letter_at: Option<Timestamp>,
}

impl EventRemains {
    /// An event that waits in no queue, as far as these of its sagas say.
    pub fn of_sagas(created_at: Timestamp, sagas: impl IntoIterator<Item = SagaRemains>) -> Self {
        let mut event = Self {
            created_at,
            is_queued: false,
            open_sagas: 0,
            dead_sagas: 0,
            last_change: None,
            letters: 0,
            last_letter: None,
        };
        for saga in sagas {
            event.open_sagas += u32::from(!saga.status.is_final());
            event.dead_sagas += u32::from(saga.status == SagaStatus::DeadLettered);
            event.last_change = event.last_change.max(Some(saga.updated_at));
            event.letters += u32::from(saga.letter_at.is_some());
            event.last_letter = event.last_letter.max(saga.letter_at);
        }
        event
    }
}

/// How long finished history stays, and the moment as of which that is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    retention: Retention,
    as_of: Timestamp,
}

impl Expiry {
    /// As of this moment, if it is earlier.
    #[must_use]
    pub fn at_the_latest(self, now: Timestamp) -> Self {
        Self { as_of: self.as_of.min(now), ..self }
    }

    /// Whether an event [may go](may_go).
    pub fn may_go(&self, event: &EventRemains) -> bool {
        may_go(event, &self.retention, self.as_of)
    }
}

/// Whether an event may go, with all that belongs to it.
///
/// It stays while anything of it is open, waits to be routed or buried, or is too young. A dead letter keeps its whole
/// event: a requeue needs the event, and the sagas tell what was requeued before.
pub fn may_go(event: &EventRemains, retention: &Retention, now: Timestamp) -> bool {
    let settled = retention.settled_before(now);
    let is_settled = event.created_at <= settled && event.last_change.is_none_or(|at| at <= settled);
    let is_final = !event.is_queued && event.open_sagas == 0 && event.dead_sagas <= event.letters;
    let letters_may_go =
        event.last_letter.is_none_or(|at| retention.letters_before(now).is_some_and(|before| at <= before));
    is_final && is_settled && letters_may_go
}
