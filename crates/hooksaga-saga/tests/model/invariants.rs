//! What must hold in every state, what must hold across every step, and when everything is finished.

use super::{
    guards::Model,
    state::{SagaRow, State, Token},
    steps::{Actor, Step},
};
use hooksaga_saga::{JobStatus, SagaStatus};

/// Why a state, or the step that led to it, must not be.
pub(super) type Violation = &'static str;

/// Checks a step and the state that it led to.
pub(super) fn check(model: &Model, before: &State, step: &Step, after: &State) -> Result<(), Violation> {
    if model.testing && after.sagas.iter().flatten().any(|saga| saga.subscription != 0) {
        return Err(TEST_ELSEWHERE);
    }
    after.sagas.iter().flatten().try_for_each(check_saga)?;
    check_generations(after)?;
    if step.actor == Actor::Database {
        // It forgets: sagas and jobs go back to what they were.
        return Ok(());
    }
    for saga in before.saga_ids() {
        check_change(before.saga(saga), after.saga(saga), step)?;
    }
    before.job_refs().try_for_each(|job| {
        let (old, new) = (before.job(job), after.job(job));
        let ended = old.status == JobStatus::Leased && new.status != JobStatus::Leased;
        match (step.actor, old.token) {
            _ if !old.status.is_active() && new.status != old.status => Err(FINISHED_JOB_CHANGED),
            (Actor::Cleaner, _) => Ok(()),
            (Actor::Worker(worker), Token::Of(holder)) if worker == holder => Ok(()),
            _ if ended => Err(LEASE_ENDED_BY_ANOTHER),
            _ => Ok(()),
        }
    })
}

/// All is delivered or buried, and no queue holds anything.
pub(super) fn finished(model: &Model, state: &State) -> bool {
    let routed = state.routed_to_all(model.subscriptions);
    let done = |saga: &SagaRow| {
        saga.core.status.is_final()
            && saga.letters == u8::from(saga.core.status == SagaStatus::DeadLettered)
            && !saga.letter_queued
            && !saga.job_rows().any(|job| job.queued || job.status.is_active())
    };
    state.unrouted.is_none() && (routed || !state.must_route) && state.sagas.iter().flatten().all(done)
}

pub(super) const TWO_ACTIVE_JOBS: Violation = "a saga has two active jobs";
pub(super) const APPLIED_TWICE: Violation = "a result was applied twice";
pub(super) const MISCOUNTED: Violation = "attempt_count is not the number of applied results";
pub(super) const BEYOND_LIMIT: Violation = "a saga waits for a retry beyond its limit";
pub(super) const ALIVE_AFTER_GONE: Violation = "a saga goes on after a final failure";
pub(super) const TWO_LETTERS: Violation = "a saga has two dead letters";
pub(super) const LETTER_OF_LIVING: Violation = "a dead letter, or its queue row, for a saga that is not dead";
pub(super) const UNFINISHED_QUEUED: Violation = "a job that is not finished is queued as a result";
pub(super) const SAME_GENERATION: Violation = "two sagas of one generation";
pub(super) const TEST_ELSEWHERE: Violation = "a test event goes to another subscription";
pub(super) const FINAL_CHANGED: Violation = "a final saga changed";
pub(super) const ILLEGAL_TRANSITION: Violation = "a saga made an illegal transition";
pub(super) const FINISHED_JOB_CHANGED: Violation = "a finished job changed";
pub(super) const LEASE_ENDED_BY_ANOTHER: Violation = "a lease was ended by a worker that does not hold it";
pub(super) const STUCK: Violation = "stuck: without faults nothing more happens, and it is not finished";
pub(super) const ENDLESS: Violation = "endless: without faults it can go round for ever";

fn check_saga(saga: &SagaRow) -> Result<(), Violation> {
    let holds = [
        (saga.job_rows().filter(|job| job.status.is_active()).count() <= 1, TWO_ACTIVE_JOBS),
        (saga.job_rows().all(|job| job.applied <= 1), APPLIED_TWICE),
        (saga.job_rows().map(|job| job.applied).sum::<u8>() == saga.core.attempts, MISCOUNTED),
        (saga.core.status != SagaStatus::PendingRetry || saga.core.attempts < saga.core.limit, BEYOND_LIMIT),
        (
            saga.core.status == SagaStatus::DeadLettered
                || !saga.job_rows().any(|job| job.gone && job.applied > 0),
            ALIVE_AFTER_GONE,
        ),
        (saga.letters <= 1, TWO_LETTERS),
        (
            saga.core.status == SagaStatus::DeadLettered || (saga.letters == 0 && !saga.letter_queued),
            LETTER_OF_LIVING,
        ),
        (!saga.job_rows().any(|job| job.queued && job.status.is_active()), UNFINISHED_QUEUED),
    ];
    holds.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, violation)| Err(*violation))
}

fn check_generations(state: &State) -> Result<(), Violation> {
    let mut seen = [[false; 8]; 2];
    for saga in state.sagas.iter().flatten() {
        let seen = &mut seen[usize::from(saga.subscription)][usize::from(saga.generation)];
        if std::mem::replace(seen, true) {
            return Err(SAME_GENERATION);
        }
    }
    Ok(())
}

/// The legal transitions, written down here once more. Applying may make two at once: the move that
/// scheduling had not come to, and the result's.
fn check_change(old: &SagaRow, new: &SagaRow, step: &Step) -> Result<(), Violation> {
    use SagaStatus::{Completed, DeadLettered, InProgress, Pending, PendingRetry};
    if old.core.status.is_final() && old.core != new.core {
        return Err(FINAL_CHANGED);
    }
    match (step.actor, old.core.status, new.core.status) {
        (Actor::Scheduler(_), Pending | PendingRetry, InProgress) => Ok(()),
        (Actor::Applier(_), Pending | PendingRetry | InProgress, Completed | PendingRetry | DeadLettered) => {
            Ok(())
        }
        (_, from, to) if from == to => Ok(()),
        _ => Err(ILLEGAL_TRANSITION),
    }
}
