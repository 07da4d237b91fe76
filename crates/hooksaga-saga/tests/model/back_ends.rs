//! Each back end with exactly the guards that it has, and each of them left out.
//!
//! `left_out` shows every smallest set on one form of the protocol; here each form is asked: which of its guards does
//! nothing else back up, and does every set break it, too.

use super::{
    guards::{Guard, Model},
    left_out::SETS,
    search::explore,
    whole::{self, BACK_ENDS},
};

/// The run of a back end in which this guard has something to do.
fn where_needed(base: Model, guard: Guard) -> Model {
    match guard {
        Guard::SagaKey => Model { generations: 2, limit: 1, ..base },
        Guard::RouteProgressInOneCommit => Model { subscriptions: 2, limit: 1, ..base },
        Guard::TestTypeMatchesNothing => Model { testing: true, subscriptions: 2, limit: 1, ..base },
        Guard::UnparkLooksAgain => Model { parking: true, limit: 1, ..base },
        Guard::DeletedIsServed => Model { parking: true, deleting: true, limit: 1, ..base },
        _ => base,
    }
}

/// Whether leaving this guard alone out breaks the back end.
fn breaks_alone(base: Model, guard: Guard) -> bool {
    let model = where_needed(base, guard);
    explore(&Model { guards: model.guards.without(&[guard]), ..model }).is_err()
}

/// What nothing backs up on any back end.
const EVERYWHERE: &[Guard] = {
    use Guard::*;
    &[
        IngestQueuesInOneCommit,
        RouteDeletesInOneCommit,
        RouteProgressInOneCommit,
        TestTypeMatchesNothing,
        SagaKey,
        JobKey,
        JobsFirst,
        MoveChecksStatus,
        MoveChecksKey,
        PauseLeavesSagas,
        ReportChecksToken,
        ReportQueuesInOneCommit,
        HandBackChecksToken,
        UnparkLooksAgain,
        DeletedIsServed,
        CleanerChecksStatus,
        ApplyPromotes,
        StrictlyLater,
        LetterQueuedInOneCommit,
        BuryDeletesInOneCommit,
    ]
};

/// These break it alone, and no others. (That the others do not means to explore everything for each of them: where commits
/// are deferred, `make torture` does.)
fn check(base: Model, more: &[Guard]) {
    for guard in Guard::ALL.iter().copied().filter(|guard| base.has(*guard)) {
        let expected = EVERYWHERE.contains(&guard) || more.contains(&guard);
        if expected || !base.deferred_commits || whole::is_large() {
            assert_eq!(breaks_alone(base, guard), expected, "{guard:?}");
        }
    }
}

#[test]
fn on_sqlite() {
    check(Model::SQLITE, &[]);
}

#[test]
fn on_sqlite_with_shared_commits() {
    check(Model::SQLITE_SHARED, &[Guard::MoveLooksForItsJob]);
}

#[test]
fn on_mysql() {
    check(Model::MYSQL, &[]);
}

/// The list's age has no lock behind it; and a crash of the database forgets.
#[test]
fn on_postgres() {
    check(Model::POSTGRES, &[Guard::RouteListNotOlderThanQueue, Guard::MoveLooksForItsJob]);
}

/// What breaks one form breaks every form that has no other guard against it.
#[test]
fn every_set_breaks_every_back_end() {
    for (name, base) in BACK_ENDS {
        for (shown_on, set) in SETS {
            let has_another = Guard::ALL
                .iter()
                .any(|guard| base.has(*guard) && !shown_on.has(*guard) && !set.contains(guard));
            let cannot_happen = shown_on.deferred_commits && !base.deferred_commits;
            if has_another || cannot_happen || !set.iter().any(|guard| base.has(*guard)) {
                continue;
            }
            let model = Model {
                guards: base.guards.without(set),
                results_in_queue: base.results_in_queue,
                deferred_commits: base.deferred_commits,
                gives_up_moves: base.gives_up_moves,
                ..*shown_on
            };
            assert!(explore(&model).is_err(), "{name} without {set:?}");
        }
    }
}
