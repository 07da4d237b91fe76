//! Step 6: a finished job's result is applied to its saga.
//!
//! With its locks the transaction is one step. Without the queue lock it begins with a read of the queue
//! that others may make too; without the saga's lock the decision is older than the update.

use super::{Actor, Steps};
use crate::model::{
    guards::Guard,
    state::{Applier, Core, Ending, JobRef, State, time},
};
use hooksaga_saga::{Applied, ErrorCode, JobResult, Outcome, RetryPolicy, SagaStatus, apply_result, backoff};
use std::time::Duration;

/// Retries are due at once, so that only the rule of the strictly later next attempt keeps keys apart; unless the
/// endpoint asks for more.
const POLICY: RetryPolicy = RetryPolicy { base_delay: Duration::ZERO, max_delay: Duration::from_micros(1) };

impl Steps<'_> {
    pub(super) fn applying(&mut self, copy: u8) {
        match self.before.appliers[usize::from(copy)] {
            Applier::Idle => {
                self.read_old_snapshot(copy);
                self.take(copy);
            }
            Applier::SawUnfinished(job) => self.meet_unfinished(copy, job),
            Applier::Took(job) => self.decide(copy, job),
            Applier::Decided { job, core, promoted, changes } => {
                self.write_result(copy, job, core, promoted, changes);
            }
            Applier::OwesDelete(job) => {
                let mut after = self.remember(copy, Applier::Idle);
                after.job_mut(job).dequeue();
                let does = "takes the result off the queue";
                self.transaction(Actor::Applier(copy), does, self.about_job(job), after);
            }
            Applier::OwesLetter(saga) => {
                let mut after = self.remember(copy, Applier::Idle);
                after.saga_mut(saga).letter_queued = true;
                self.transaction(Actor::Applier(copy), "queues the letter", self.about_saga(saga), after);
            }
        }
    }

    fn take(&mut self, copy: u8) {
        for job in self.before.job_refs().filter(|job| self.before.job(*job).queued).collect::<Vec<_>>() {
            if self.model.has(Guard::ApplyLock) {
                let locks_it =
                    |other: &Applier| matches!(other, Applier::Decided { job: locked, .. } if *locked == job);
                if !self.before.appliers.iter().any(locks_it) {
                    self.decide(copy, job);
                }
            } else {
                let after = self.remember(copy, Applier::Took(job));
                self.quiet(Actor::Applier(copy), "reads the result queue", self.about_job(job), true, after);
            }
        }
    }

    /// Asks the state machine, with every reading of the clock, and every wish of the endpoint, that makes a
    /// difference.
    fn decide(&mut self, copy: u8, job: JobRef) {
        let row = self.before.job(job);
        let core = self.before.saga(job.saga).core;
        let later = self.model.endpoints_say_more.then_some(Some(row.attempt_at + 2));
        let mut decisions = Vec::new();
        for retry_at in [None].into_iter().chain(later) {
            for now in row.attempt_at - 1..=row.attempt_at + 1 {
                let decision = self.decision(core, job, now, retry_at);
                if !decisions.contains(&decision) {
                    decisions.push(decision);
                }
            }
        }
        for (core, promoted, changes) in decisions {
            if self.model.has(Guard::ApplyLocksSaga) {
                self.write_result(copy, job, core, promoted, changes);
            } else {
                let after = self.remember(copy, Applier::Decided { job, core, promoted, changes });
                self.quiet(Actor::Applier(copy), "decides on the result", self.about_job(job), true, after);
            }
        }
    }

    /// The saga as it shall be, whether it has to be moved first, and whether it changes at all.
    fn decision(&self, core: Core, job: JobRef, now: u8, retry_at: Option<u8>) -> (Core, bool, bool) {
        let row = self.before.job(job);
        let ending = row.carried.unwrap_or_else(|| row.ending());
        let outcome = match ending {
            Ending::Delivered => Outcome::Delivered,
            Ending::Failed => Outcome::Failed(ErrorCode::TIMEOUT),
            Ending::Gone => Outcome::Failed(ErrorCode::http(410)),
        };
        let checks_key = self.model.has(Guard::DecisionChecksKey);
        let attempt_at = time(if checks_key { row.attempt_at } else { core.next_attempt_at });
        let result = JobResult { attempt_at, outcome, retry_at: retry_at.map(time) };
        match apply_result(&core.to_saga(), &result, &POLICY, time(now)) {
            Applied::Changed { promoted: true, .. } if !self.model.has(Guard::ApplyPromotes) => {
                (core, false, false)
            }
            Applied::Changed { mut saga, promoted } => {
                if ending != Ending::Delivered && !self.model.has(Guard::StrictlyLater) {
                    saga.next_attempt_at = time(now).after(backoff(saga.attempt_count, &POLICY));
                }
                (Core::of(&saga), promoted, true)
            }
            Applied::Already => (core, false, false),
        }
    }

    /// The update where InProgress and next_attempt_at is the job's attempt_at, the letter queue, and the
    /// delete.
    fn write_result(&mut self, copy: u8, job: JobRef, core: Core, promoted: bool, changes: bool) {
        let attempt_at = self.before.job(job).attempt_at;
        let mut after = self.remember(copy, Applier::Idle);
        let row = after.saga_mut(job.saga);
        let key_fits = row.core.next_attempt_at == attempt_at || !self.model.has(Guard::ApplyChecksKey);
        let waiting = matches!(row.core.status, SagaStatus::Pending | SagaStatus::PendingRetry);
        let in_progress = row.core.status == SagaStatus::InProgress || (promoted && waiting);
        let status_fits = in_progress || !self.model.has(Guard::ApplyChecksStatus);
        let changed = changes && key_fits && status_fits;
        if changed {
            row.core = core;
        }
        let dead = core.status == SagaStatus::DeadLettered && changes;
        let owes_letter = dead && (changed || !self.model.has(Guard::LettersFromChangedRows));
        let letter_now = self.model.has(Guard::LetterQueuedInOneCommit);
        row.letter_queued |= owes_letter && letter_now;
        after.job_mut(job).applied += u8::from(changed);
        let delete_now = self.model.has(Guard::ApplyDeletesInOneCommit);
        if delete_now {
            after.job_mut(job).dequeue();
        }
        let memory = if owes_letter && !letter_now {
            Applier::OwesLetter(job.saga)
        } else if delete_now {
            Applier::Idle
        } else {
            Applier::OwesDelete(job)
        };
        after.appliers[usize::from(copy)] = memory;
        // Unheard of, the whole transaction is tried again, from the queue on: nothing is remembered.
        self.quiet(Actor::Applier(copy), "applies the result", self.about_job(job), true, after);
    }

    /// A snapshot that was taken before the queue lock may show a job unfinished that is queued by now.
    fn read_old_snapshot(&mut self, copy: u8) {
        if self.model.has(Guard::ApplyReadsAfterLock) || self.model.results_in_queue {
            return;
        }
        let active = |job: &JobRef| self.before.job(*job).status.is_active();
        for job in self.before.job_refs().filter(active).collect::<Vec<_>>() {
            let after = self.remember(copy, Applier::SawUnfinished(job));
            self.quiet(Actor::Applier(copy), "takes a snapshot", self.about_job(job), false, after);
        }
    }

    /// The queue row is there, the job in the snapshot is not finished.
    fn meet_unfinished(&mut self, copy: u8, job: JobRef) {
        if self.before.job(job).status.is_active() {
            return;
        }
        let mut after = self.remember(copy, Applier::Idle);
        if !self.model.has(Guard::ApplyLeavesUnfinished) {
            after.job_mut(job).dequeue();
        }
        self.quiet(Actor::Applier(copy), "meets an unfinished job", self.about_job(job), true, after);
    }

    fn remember(&self, copy: u8, memory: Applier) -> State {
        let mut state = self.before;
        state.appliers[usize::from(copy)] = memory;
        state
    }
}
