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
    /// 2: the list of subscriptions is not older than the sight of the queue row: one snapshot, or read later.
    RouteListNotOlderThanQueue,
    /// 2: the queue row is deleted in the commit that writes the last saga.
    RouteDeletesInOneCommit,
    /// 2: a saga and how far the event has come are one commit.
    RouteProgressInOneCommit,
    /// 2: the type of a test event matches no topic.
    TestTypeMatchesNothing,
    /// Unique (event, subscription, generation), on conflict nothing.
    SagaKey,
    /// Unique (saga, attempt_at), on conflict nothing.
    JobKey,
    /// Unique active job per saga, on conflict nothing.
    ActiveJobKey,
    /// 3: the job is inserted before the saga moves.
    JobsFirst,
    /// 3b: in another session than 3a's, which a crash of the database ends together with what it may forget, the job is
    /// looked for. (SQLite: after a commit that failed nothing is moved.)
    MoveLooksForItsJob,
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
    /// Parked jobs of subscriptions that deliver are looked for, again and again: no word of a resume is relied on.
    UnparkLooksAgain,
    /// A deleted subscription's sagas are scheduled, and its parked jobs come back, though it is not active.
    DeletedIsServed,
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

    pub(super) const fn without(mut self, mut left_out: &[Guard]) -> Self {
        while let [guard, rest @ ..] = left_out {
            self.0 &= !(1 << *guard as u64);
            left_out = rest;
        }
        self
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
    /// Sagas in a row: the routed one, and those that it was sent again as.
    pub generations: u8,
    /// Operators send again whatever has ended, not dead letters alone.
    pub resending: bool,
    /// The attempt limit of every saga.
    pub limit: u8,
    /// The subscription is paused and resumed; it starts paused.
    pub pausing: bool,
    /// Subscriptions that the event goes to: it is routed to one after another, each in a transaction.
    pub subscriptions: u8,
    /// A failure may be final, and an endpoint may ask for a later attempt.
    pub endpoints_say_more: bool,
    /// The queue rows of finished jobs carry the result, as on PostgreSQL.
    pub results_in_queue: bool,
    /// The commits of routing, scheduling and moving do not wait for the disk: a crash of the database may forget
    /// the last of them, although they were acknowledged.
    pub deferred_commits: bool,
    /// A scheduler whose session is gone gives its move up, as on SQLite, instead of making it in another.
    pub gives_up_moves: bool,
    /// Jobs of a paused subscription are parked.
    pub parking: bool,
    /// The subscription may be deleted.
    pub deleting: bool,
    /// The event is a test event of the first subscription: an operator inserts its saga.
    pub testing: bool,
}

impl Model {
    /// One saga after another, everything durable, results read from the jobs.
    pub(super) const SMALL: Self = Self {
        guards: Guards::ALL,
        generations: 1,
        limit: 2,
        pausing: true,
        subscriptions: 1,
        endpoints_say_more: false,
        resending: false,
        results_in_queue: false,
        deferred_commits: false,
        gives_up_moves: false,
        parking: false,
        deleting: false,
        testing: false,
    };

    /// SQLite: one writer, whose transactions are serial. Results are read from the jobs. Every commit durable.
    pub(super) const SQLITE: Self = Self::SMALL;

    /// SQLite while nobody else waits for the writer: routing, scheduling and moving are answered before their commit, which
    /// may fail, or never come. Whoever was told so compares the number of commits that failed.
    pub(super) const SQLITE_SHARED: Self =
        Self { deferred_commits: true, gives_up_moves: true, ..Self::SMALL };

    /// MySQL and MariaDB: queue rows and sagas are locked before they are read, results are read from the jobs, every
    /// commit is durable.
    pub(super) const MYSQL: Self = Self::SMALL;

    /// PostgreSQL's form: results in the queue rows, so that what guards reading the jobs does not apply; sagas not
    /// locked before the update; queue row and subscriptions in one snapshot, which is older than the lock; deferred
    /// commits.
    pub(super) const POSTGRES: Self = Self {
        guards: Guards::ALL.without(&[
            Guard::RouteReadsListAfterLock,
            Guard::ApplyLocksSaga,
            Guard::ApplyReadsAfterLock,
            Guard::ApplyLeavesUnfinished,
        ]),
        results_in_queue: true,
        deferred_commits: true,
        ..Self::SMALL
    };

    pub(super) fn has(&self, guard: Guard) -> bool {
        self.guards.has(guard)
    }
}
