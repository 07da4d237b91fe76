//! The protocol as it is: no violation, and everything finishes.

use super::{
    guards::{Guard, Guards, Model},
    search::explore,
    state::{FIRST_KEY, JobRow, SagaRow, Scheduler, State, Token, Worker},
};
use hooksaga_saga::{JobStatus, SagaStatus};

const MODEL: Model = Model { generations: 2, ..Model::SMALL };

/// Each back end's form, with exactly the guards that it has.
pub(super) const BACK_ENDS: [(&str, Model); 4] = [
    ("SQLite", Model::SQLITE),
    ("SQLite, shared commits", Model::SQLITE_SHARED),
    ("MySQL", Model::MYSQL),
    ("PostgreSQL", Model::POSTGRES),
];

#[expect(clippy::print_stdout, reason = "the size of the run is a result of it")]
fn holds(name: &str, model: &Model) -> Vec<State> {
    let explored = explore(model).unwrap_or_else(|counterexample| panic!("{counterexample:?}"));
    println!("{name}: {} states, {} steps, no violation", explored.states.len(), explored.steps);
    explored.states
}

/// The largest run. Its size is asserted, so that a change of the protocol does not pass unnoticed:
/// docs/STATE_MACHINE.md quotes it.
#[test]
fn three_generations_of_three_attempts() {
    let model = Model { generations: 3, limit: 3, ..MODEL };
    assert_eq!(holds("three generations of three attempts", &model).len(), 761_671);
}

/// AG-1: what was delivered is sent again, and a dead saga before its letter is written.
#[test]
fn whatever_has_ended_is_sent_again() {
    for (name, model) in [("SQLite, MySQL", Model::SMALL), ("PostgreSQL", Model::POSTGRES)] {
        let model = Model { generations: 2, limit: 1, resending: true, ..model };
        let states = holds(&format!("{name}: resending"), &model);
        let sent_again_after = |fits: &dyn Fn(&SagaRow) -> bool| {
            states.iter().any(|state| {
                let of =
                    |generation| state.sagas.iter().flatten().find(move |saga| saga.generation == generation);
                of(1).is_some() && of(0).is_some_and(fits)
            })
        };
        assert!(sent_again_after(&|saga| saga.core.status == SagaStatus::Completed));
        assert!(sent_again_after(&|saga| saga.letters == 0 && saga.core.status == SagaStatus::DeadLettered));
    }
}

/// SQLite and MySQL: results are read from the jobs, sagas are locked before the decision, every commit is durable.
/// Final failures and later attempts included.
#[test]
fn on_sqlite_and_mysql() {
    let model = Model { endpoints_say_more: true, ..Model::SQLITE };
    says_more(&holds("SQLite, MySQL: endpoints say more", &model));
}

/// SQLite while nobody else waits for the writer: routing, scheduling and moving are answered before their commit, which
/// may fail, or never come.
#[test]
fn on_sqlite_when_steps_share_a_commit() {
    let model = Model { endpoints_say_more: true, ..Model::SQLITE_SHARED };
    says_more(&holds("SQLite, shared commits: endpoints say more", &model));
}

/// PostgreSQL: results are in the queue rows, sagas are not locked before the update, commits are deferred.
#[test]
fn on_postgres() {
    let model = Model { generations: 2, ..Model::POSTGRES };
    let states = holds("PostgreSQL: two generations of two attempts", &model);
    let may_be_lost = |state: &State| state.deferred.iter().flatten().count() == 3;
    assert!(states.iter().any(may_be_lost), "a crash may forget the saga, its job and its move");
}

#[test]
fn on_postgres_endpoints_say_more() {
    let model = Model { endpoints_say_more: true, ..Model::POSTGRES };
    says_more(&holds("PostgreSQL: endpoints say more", &model));
}

/// FB-5 and CA-11: jobs of a paused subscription are parked, and the subscription is deleted in any state.
#[test]
fn parked_and_deleted() {
    for (name, base) in BACK_ENDS {
        let model = Model { parking: true, deleting: true, limit: 1, ..base };
        let states = holds(&format!("{name}: parking, deletion"), &model);
        let parked_in = |deleted: bool| {
            let parked = |saga: &SagaRow| saga.job_rows().any(|job| job.parked);
            states.iter().any(|state| state.deleted == deleted && state.sagas.iter().flatten().any(parked))
        };
        assert!(parked_in(false) && parked_in(true), "{name}");
        let ended = |saga: &SagaRow| saga.letters == 1 && saga.job_rows().any(|job| job.gone);
        assert!(
            states.iter().any(|state| state.deleted && state.sagas.iter().flatten().any(ended)),
            "{name}"
        );
    }
}

/// A final failure and an attempt that an endpoint has put off do come about.
fn says_more(states: &[State]) {
    let any =
        |fits: &dyn Fn(&SagaRow) -> bool| states.iter().any(|state| state.sagas.iter().flatten().any(fits));
    assert!(
        any(&|saga| saga.core.status == SagaStatus::DeadLettered && saga.core.attempts < saga.core.limit)
    );
    assert!(any(&|saga| saga.core.attempts == 1 && saga.core.next_attempt_at == FIRST_KEY + 2));
}

/// TN-5: an event is routed to one subscription after another, with durable progress.
#[test]
fn routing_in_steps() {
    let model = Model { subscriptions: 2, limit: 1, ..Model::SMALL };
    let states = holds("two subscriptions, one attempt", &model);
    let half_way = |state: &State| state.unrouted == Some(1) && state.sagas[0].is_some();
    assert!(states.iter().any(half_way), "routed to one subscription of two");
}

#[test]
fn routing_in_steps_on_postgres() {
    let model = Model { subscriptions: 2, limit: 1, ..Model::POSTGRES };
    holds("PostgreSQL: two subscriptions, one attempt", &model);
}

/// AG-3: a test event goes to one subscription of two, once, however often it is asked for; or nowhere.
#[test]
fn a_test_event_goes_to_one_subscription() {
    for (name, base) in BACK_ENDS {
        let states = holds(
            &format!("{name}: a test event, two subscriptions"),
            &Model { testing: true, subscriptions: 2, limit: 1, ..base },
        );
        let delivered = |saga: &SagaRow| saga.core.status == SagaStatus::Completed;
        let routed = |state: &&State| state.ingested && state.unrouted.is_none();
        assert!(states.iter().filter(routed).any(|state| state.sagas[0].as_ref().is_some_and(delivered)));
        assert!(states.iter().filter(routed).any(|state| state.sagas[0].is_none()), "its operator is gone");
        let before_the_router = |state: &State| state.unrouted.is_some() && state.sagas[0].is_some();
        assert!(states.iter().any(before_the_router), "{name}");
    }
}

/// Whether everything is to be explored, however long that takes.
pub(super) fn is_large() -> bool {
    std::env::var("HOOKSAGA_MODEL").is_ok_and(|text| text == "large")
}

/// `make torture` says `HOOKSAGA_MODEL=large`: every back end with everything at once, as far as memory goes.
#[test]
fn large() {
    if !is_large() {
        return;
    }
    for (name, base) in BACK_ENDS {
        let model = Model { generations: 3, limit: 3, ..base };
        holds(&format!("{name}: three generations of three attempts"), &model);
        let model = Model { generations: 2, endpoints_say_more: true, parking: true, deleting: true, ..base };
        holds(&format!("{name}: two generations, endpoints say more, parking, deletion"), &model);
    }
}

/// "At most one active job" hangs on the protocol, not on the unique key that says it once more: without
/// that key not one state more is reached.
#[test]
fn the_active_job_key_is_never_needed() {
    let bare = Model { guards: Guards::ALL.without(&[Guard::ActiveJobKey]), ..MODEL };
    let with = holds("two generations of two attempts", &MODEL);
    assert_eq!(with.len(), holds("the same without the key of the active job", &bare).len());
}

/// A check that explores nothing finds nothing: what it is meant to look at does come about.
#[test]
fn the_search_reaches_what_matters() {
    let states = holds("two generations of two attempts", &MODEL);
    let reached = |what: &str, holds: &dyn Fn(&State) -> bool| assert!(states.iter().any(holds), "{what}");
    let any_saga = |state: &State, status, attempts, letters| {
        let fits = |saga: &SagaRow| {
            (saga.core.status, saga.core.attempts, saga.letters) == (status, attempts, letters)
        };
        state.sagas.iter().flatten().any(fits)
    };
    reached("delivered at once", &|state| any_saga(state, SagaStatus::Completed, 1, 0));
    reached("delivered by the retry", &|state| any_saga(state, SagaStatus::Completed, 2, 0));
    reached("dead, not yet buried", &|state| any_saga(state, SagaStatus::DeadLettered, 2, 0));
    reached("both generations dead and buried", &|state| {
        state.sagas.iter().flatten().filter(|saga| saga.letters == 1).count() == 2
    });
    reached("a result before the move to InProgress", &|state| {
        let early =
            |saga: &SagaRow| saga.core.status == SagaStatus::Pending && saga.job_rows().any(|job| job.queued);
        state.sagas.iter().flatten().any(early)
    });
    reached(
        "a worker that believes to hold what another holds",
        &|state| matches!(state.workers, [Worker::Holds(a), Worker::Holds(b)] if a == b),
    );
    reached("a lease that nobody holds", &|state| {
        let orphan = |job: &JobRow| job.status == JobStatus::Leased && job.token == Token::Lost;
        state.sagas.iter().flatten().any(|saga| saga.job_rows().any(orphan))
    });
    reached("a scheduler that comes back to a finished saga", &|state| {
        let late = |scheduler: &Scheduler| match scheduler {
            Scheduler::HalfWay { saga, .. } => state.saga(*saga).core.status.is_final(),
            Scheduler::Idle | Scheduler::Read { .. } => false,
        };
        state.schedulers.iter().any(late)
    });
    reached("a paused subscription with an active job", &|state| {
        !state.active && state.sagas.iter().flatten().any(SagaRow::has_active_job)
    });
}
