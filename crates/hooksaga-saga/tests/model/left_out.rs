//! The protocol with guards left out: the check is seen to fail, and which guards carry it alone.
//!
//! Each test leaves out a SMALLEST set: with all of the set missing there is a counterexample, with any
//! one of it put back there is none. A set of one is a guard that nothing else backs up; in a larger set
//! each is the others' backup, and the protocol keeps them all.

use super::{
    guards::{Guard, Guards, Model},
    invariants::{
        APPLIED_TWICE, FINAL_CHANGED, FINISHED_JOB_CHANGED, LEASE_ENDED_BY_ANOTHER, LETTER_OF_LIVING,
        SAME_GENERATION, STUCK, TEST_ELSEWHERE, TWO_ACTIVE_JOBS, TWO_LETTERS, UNFINISHED_QUEUED, Violation,
    },
    search::explore,
};

const MODEL: Model = Model::SMALL;
const STEPS: Model = Model { subscriptions: 2, limit: 1, ..MODEL };
const TESTING: Model = Model { testing: true, ..STEPS };
const PARKING: Model = Model { parking: true, limit: 1, ..MODEL };
const DELETING: Model = Model { deleting: true, ..PARKING };

/// Leaving out all of `set` shows `violation`; leaving out all but one of it shows none.
fn breaks(model: &Model, set: &[Guard], violation: Violation) {
    let without = |set: &[Guard]| Model { guards: model.guards.without(set), ..*model };
    match explore(&without(set)) {
        Ok(explored) => panic!("{} states without {set:?}, and no violation", explored.states.len()),
        Err(found) => assert_eq!(found.violation, violation, "{found:?}"),
    }
    for back in set.iter().filter(|_| set.len() > 1) {
        let rest: Vec<Guard> = set.iter().copied().filter(|guard| guard != back).collect();
        if let Err(found) = explore(&without(&rest)) {
            panic!("{back:?} is there, and yet: {found:?}");
        }
    }
}

macro_rules! left_out {
    ($($(#[$doc:meta])* $name:ident: $model:expr, [$($guard:ident),+] => $violation:ident;)+) => {
        $($(#[$doc])* #[test] fn $name() { breaks(&$model, &[$(Guard::$guard),+], $violation); })+
        /// Each set, and the run that shows that it is needed.
        pub(super) const SETS: &[(Model, &[Guard])] = &[$(($model, &[$(Guard::$guard),+])),+];
    };
}

left_out! {
    // Sets of one: nothing else backs them up.

    /// A crash between the event and its queue row: nobody ever routes it.
    ingest_in_two_commits: MODEL, [IngestQueuesInOneCommit] => STUCK;
    /// A crash after the delete: the event is nowhere.
    routing_deletes_first: MODEL, [RouteDeletesInOneCommit] => STUCK;
    /// A crash after the progress was written: one subscription is skipped.
    routing_writes_its_progress_first: STEPS, [RouteProgressInOneCommit] => STUCK;
    /// Two operators requeue the same letter.
    requeue_without_a_key: Model { generations: 2, ..MODEL }, [SagaKey] => SAME_GENERATION;
    /// The router takes a test event for one of the subscriptions' own.
    a_test_event_is_routed: TESTING, [TestTypeMatchesNothing] => TEST_ELSEWHERE;
    /// A test event is asked for twice, since the first response was lost.
    test_event_without_a_key: TESTING, [SagaKey] => SAME_GENERATION;
    /// A late scheduler inserts the job again after its result was applied; the next attempt's job then
    /// finds an active one in its place.
    job_without_a_key: MODEL, [JobKey] => STUCK;
    /// A crash after the move: InProgress, and no job will ever come.
    saga_before_its_job: MODEL, [JobsFirst] => STUCK;
    /// A crash of the database forgets the job; its scheduler, which was told that it is there, moves the saga.
    move_after_a_crash_of_the_database: Model::POSTGRES, [MoveLooksForItsJob] => STUCK;
    /// The same on SQLite, after a commit that failed.
    move_after_a_commit_that_failed: Model::SQLITE_SHARED, [MoveLooksForItsJob] => STUCK;
    /// Parked in the moment in which its subscription resumed.
    nobody_looks_at_what_is_parked: PARKING, [UnparkLooksAgain] => STUCK;
    /// Open deliveries of a deleted subscription, which never resumes.
    a_deleted_subscription_is_forgotten: DELETING, [DeletedIsServed] => STUCK;
    /// A late scheduler reopens a completed saga.
    move_whatever_the_status: MODEL, [MoveChecksStatus] => FINAL_CHANGED;
    /// A late scheduler moves a saga that waits for its retry, whose job does not exist.
    move_whatever_the_key: MODEL, [MoveChecksKey] => STUCK;
    /// The job of the old key exists; its result fits no saga any more.
    pausing_moves_the_next_attempt: MODEL, [PauseLeavesSagas] => STUCK;
    /// An old worker's result lands under a new lease.
    report_whatever_the_token: MODEL, [ReportChecksToken] => LEASE_ENDED_BY_ANOTHER;
    /// A crash between the result and its queue row: nobody ever applies it.
    report_in_two_commits: MODEL, [ReportQueuesInOneCommit] => STUCK;
    /// An old worker gives back what another holds.
    hand_back_whatever_the_token: MODEL, [HandBackChecksToken] => LEASE_ENDED_BY_ANOTHER;
    /// A finished job becomes active again.
    cleaner_whatever_the_status: MODEL, [CleanerChecksStatus] => UNFINISHED_QUEUED;
    /// The worker was faster than the move: its result is dropped.
    apply_without_promotion: MODEL, [ApplyPromotes] => STUCK;
    /// The clock stood still: the retry's key is taken by the job that failed.
    retry_at_the_same_time: MODEL, [StrictlyLater] => STUCK;
    /// A crash after the saga's death: no letter.
    death_and_letter_in_two_commits: MODEL, [LetterQueuedInOneCommit] => STUCK;
    /// A crash after the delete: no letter.
    burying_deletes_first: MODEL, [BuryDeletesInOneCommit] => STUCK;

    // Pairs: each is the other's backup.

    /// The subscription became active, then the event came; the router's list was older than both. (On PostgreSQL, whose
    /// lock is younger than the snapshot, the list's age alone decides.)
    list_read_before_the_lock: MODEL, [RouteReadsListAfterLock, RouteListNotOlderThanQueue] => STUCK;
    postgres_list_older_than_the_queue: Model::POSTGRES, [RouteListNotOlderThanQueue] => STUCK;

    /// Routing alone is safe with either: two routers with one event. (A requeue has only the key.)
    routing_lock_and_saga_key: MODEL, [RouteLock, SagaKey] => SAME_GENERATION;
    /// The same in steps: a router without the lock sets the progress back, and the key makes that harmless.
    routing_lock_and_saga_key_in_steps: STEPS, [RouteLock, SagaKey] => SAME_GENERATION;
    /// A report that is sent again, its acknowledgement lost, overwrites the result.
    report_status_and_cleared_token: MODEL, [ReportChecksStatus, TokenCleared] => FINISHED_JOB_CHANGED;
    /// An old snapshot shows the job unfinished, and its queue row is thrown away.
    old_snapshot_and_deleted_row: MODEL, [ApplyReadsAfterLock, ApplyLeavesUnfinished] => STUCK;
    /// Two buriers with one letter.
    bury_lock_and_letter_key: MODEL, [BuryLock, LetterKey] => TWO_LETTERS;

    // Threes: applying once is kept by the queue (lock, and delete in the same commit), by the state
    // machine's comparison of keys on a locked saga, and by the update's WHERE.

    /// Two appliers with one result, and nobody looks whose attempt it was.
    apply_twice_without_keys: MODEL, [ApplyLock, DecisionChecksKey, ApplyChecksKey] => APPLIED_TWICE;
    /// A crash before the delete, and nobody looks whose attempt it was.
    apply_again_without_keys: MODEL,
        [ApplyDeletesInOneCommit, DecisionChecksKey, ApplyChecksKey] => APPLIED_TWICE;
    /// Two appliers decide on the same reading of the saga: then the update's status has to stop one.
    apply_unlocked_without_status: MODEL,
        [ApplyLock, ApplyLocksSaga, ApplyChecksStatus] => APPLIED_TWICE;
    /// … or its key: the saga may be InProgress again by then, for the next attempt.
    apply_unlocked_without_key: MODEL, [ApplyLock, ApplyLocksSaga, ApplyChecksKey] => APPLIED_TWICE;
    /// On PostgreSQL, which does not lock the saga, the queue and the update's WHERE are the two that are left.
    postgres_apply_without_status: Model::POSTGRES, [ApplyLock, ApplyChecksStatus] => APPLIED_TWICE;
    postgres_apply_without_key: Model::POSTGRES, [ApplyLock, ApplyChecksKey] => APPLIED_TWICE;
    /// A letter from memory, for a saga that is still retrying: the update had refused the decision.
    letter_from_memory: MODEL,
        [ApplyLock, DecisionChecksKey, LettersFromChangedRows] => LETTER_OF_LIVING;
    /// The same after a crash before the delete.
    letter_from_memory_again: MODEL,
        [ApplyDeletesInOneCommit, DecisionChecksKey, LettersFromChangedRows] => LETTER_OF_LIVING;
}

/// Without the key of the active job, pausing that moves the next attempt makes two active jobs, and so
/// does a job without a key: the key turns both into a saga that is stuck, no better.
#[test]
fn two_active_jobs_without_their_key() {
    for guard in [Guard::PauseLeavesSagas, Guard::JobKey] {
        let model = Model { guards: Guards::ALL.without(&[guard, Guard::ActiveJobKey]), ..MODEL };
        assert_eq!(explore(&model).unwrap_err().violation, TWO_ACTIVE_JOBS, "{guard:?}");
    }
}

/// No guard is a switch that no test turns off. The key of the active job is the only one whose absence
/// changes nothing (see `whole`).
#[test]
fn every_guard_is_left_out_somewhere() {
    let untried = |guard: &&Guard| !SETS.iter().any(|(_, set)| set.contains(guard));
    let untried: Vec<&Guard> = Guard::ALL.iter().filter(untried).collect();
    assert_eq!(untried, [&Guard::ActiveJobKey]);
}

/// A counterexample tells its story.
#[test]
fn a_counterexample_is_readable() {
    let model = Model { guards: Guards::ALL.without(&[Guard::JobsFirst]), ..MODEL };
    let story = format!("{:?}", explore(&model).unwrap_err());
    let told = [
        "all guards but [JobsFirst]",
        "outside ingests the event",
        "routes the event",
        "reads a due saga: saga g0",
        "moves the saga to InProgress (3b): job g0@1",
        "g0 InProgress next@1 attempts 0 letters 0 jobs []",
        "crashes",
        "nothing more",
    ];
    let mut rest = story.as_str();
    for line in told {
        let at =
            rest.find(line).unwrap_or_else(|| panic!("{line:?} is missing, or comes too early, in {story}"));
        rest = &rest[at..];
    }
}
