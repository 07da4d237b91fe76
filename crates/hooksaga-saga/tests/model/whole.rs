//! The protocol as it is: no violation, and everything finishes.

use super::{
    guards::{Guard, Guards, Model},
    search::explore,
    state::{JobRow, SagaRow, Scheduler, State, Token, Worker},
};
use hooksaga_saga::{JobStatus, SagaStatus};

const MODEL: Model = Model { guards: Guards::ALL, generations: 2, limit: 2, pausing: true };

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
