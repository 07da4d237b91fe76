//! Every guard of the protocol as a switch, and the size of a run.

use std::fmt;

macro_rules! guards {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// One thing that the protocol does for safety's sake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Guard { $($(#[$doc])* $name),+ }

        impl Guard {
            pub(super) const ALL: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

guards! {
    /// 1: the event and its queue row are one commit.
    IngestQueuesInOneCommit,
    /// 2: the queue row is locked until the commit.
    RouteLock,
    /// 2: subscriptions are read after that lock.
    RouteReadsListAfterLock,
    /// 2: the queue row is deleted in the commit that writes the sagas.
    RouteDeletesInOneCommit,
    /// Unique (event, subscription, generation), on conflict nothing.
    SagaKey,
    /// Unique (saga, attempt_at), on conflict nothing.
    JobKey,
    /// Unique active job per saga, on conflict nothing.
    ActiveJobKey,
    /// 3: the job is inserted before the saga moves.
    JobsFirst,
    /// 3b: … WHERE status is Pending or PendingRetry.
    MoveChecksStatus,
    /// 3b: … AND next_attempt_at = the job's attempt_at.
    MoveChecksKey,
    /// Pausing leaves next_attempt_at as it is.
    PauseLeavesSagas,
    /// 5: … WHERE status is Leased.
    ReportChecksStatus,
    /// 5: … AND token = mine.
    ReportChecksToken,
    /// A job that is not Leased bears no token.
    TokenCleared,
    /// 5: the result and its queue row are one commit.
    ReportQueuesInOneCommit,
    /// 4': … WHERE token = mine.
    HandBackChecksToken,
    /// Cleaner: … WHERE status is Leased.
    CleanerChecksStatus,
    /// 6: the queue row is locked until the commit.
    ApplyLock,
    /// 6: the saga is locked from the read to the commit.
    ApplyLocksSaga,
    /// 6: jobs are read after the queue lock, not from an older snapshot.
    ApplyReadsAfterLock,
    /// 6: a queue row whose job is not seen finished is left.
    ApplyLeavesUnfinished,
    /// 6: a saga whose move has not happened yet is moved first.
    ApplyPromotes,
    /// 6: the state machine compares the job's attempt_at with the saga's next_attempt_at.
    DecisionChecksKey,
    /// 6: … WHERE status is InProgress.
    ApplyChecksStatus,
    /// 6: … AND next_attempt_at = the JOB's attempt_at.
    ApplyChecksKey,
    /// 6: a new next_attempt_at is later than the last, whatever the clock says.
    StrictlyLater,
    /// 6: letters are queued for rows that the update changed, not for what was decided.
    LettersFromChangedRows,
    /// 6: the saga's death and its letter's queue row are one commit.
    LetterQueuedInOneCommit,
    /// 6: the queue row is deleted in the commit that writes the saga.
    ApplyDeletesInOneCommit,
    /// 7: the queue row is locked until the commit.
    BuryLock,
    /// Unique letter per saga, on conflict nothing.
    LetterKey,
    /// 7: the queue row is deleted in the commit that writes the letter.
    BuryDeletesInOneCommit,
}

/// The guards that are in place.
#[derive(Clone, Copy)]
pub(super) struct Guards(u64);

impl Guards {
    pub(super) const ALL: Self = Self(u64::MAX);

    pub(super) fn without(self, left_out: &[Guard]) -> Self {
        Self(left_out.iter().fold(self.0, |set, guard| set & !(1 << *guard as u64)))
    }

    pub(super) fn has(self, guard: Guard) -> bool {
        self.0 & (1 << guard as u64) != 0
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left_out: Vec<_> = Guard::ALL.iter().filter(|guard| !self.has(**guard)).collect();
        write!(f, "all guards but {left_out:?}")
    }
}

/// What a run explores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub guards: Guards,
    /// Sagas in a row: the routed one and its requeues.
    pub generations: u8,
    /// The attempt limit of every saga.
    pub limit: u8,
    /// The subscription is paused and resumed; it starts paused.
    pub pausing: bool,
}

impl Model {
    pub(super) fn has(&self, guard: Guard) -> bool {
        self.guards.has(guard)
    }
}
