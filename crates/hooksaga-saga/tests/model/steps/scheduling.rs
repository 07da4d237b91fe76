//! Step 3: a due saga gets its job (3a) and moves to InProgress (3b), in two transactions. The read of 3a
//! is a step of its own: it takes no locks, so its rows may be old by the time of the insert.

use super::{Actor, Steps};
use crate::model::{
    guards::Guard,
    state::{Core, Deferred, JobRef, JobRow, Scheduler, State, Token, time},
};
use hooksaga_saga::{JobStatus, RetryPolicy, Saga, SagaEvent, SagaStatus, may_create_job, step};

impl Steps<'_> {
    pub(super) fn scheduling(&mut self, copy: u8) {
        let jobs_first = self.model.has(Guard::JobsFirst);
        match self.before.schedulers[usize::from(copy)] {
            Scheduler::Idle => self.read_due(copy),
            Scheduler::Read { saga, .. } | Scheduler::HalfWay { saga, .. }
                if self.before.sagas[usize::from(saga)].is_none() =>
            {
                let mut after = self.before;
                after.schedulers[usize::from(copy)] = Scheduler::Idle;
                self.quiet(Actor::Scheduler(copy), "finds no such saga", super::About::Nothing, true, after);
            }
            Scheduler::Read { saga, attempt_at } => {
                let mut after = self.before;
                after.schedulers[usize::from(copy)] = Scheduler::HalfWay { saga, attempt_at, session: true };
                self.write_half(copy, after, saga, attempt_at, jobs_first);
            }
            Scheduler::HalfWay { saga, attempt_at, session } => {
                let mut after = self.before;
                after.schedulers[usize::from(copy)] = Scheduler::Idle;
                let looks = !session && jobs_first && self.model.has(Guard::MoveLooksForItsJob);
                let is_there = self.before.saga(saga).job_rows().any(|job| job.attempt_at == attempt_at);
                if looks && (self.model.gives_up_moves || !is_there) {
                    let about = super::About::Job(self.before.saga(saga).generation, attempt_at);
                    self.quiet(
                        Actor::Scheduler(copy),
                        "leaves the move to the next pass",
                        about,
                        true,
                        after,
                    );
                } else {
                    self.write_half(copy, after, saga, attempt_at, !jobs_first);
                }
            }
        }
    }

    /// A due saga of an active subscription. One that has its job already is read too: its move may have
    /// been lost, and the insert will find the job.
    fn read_due(&mut self, copy: u8) {
        let deleted = self.before.deleted && self.model.has(Guard::DeletedIsServed);
        if !self.before.active && !deleted {
            return;
        }
        for saga in self.before.saga_ids() {
            let row = self.before.saga(saga);
            let attempt_at = row.core.next_attempt_at;
            if may_create_job(&row.core.to_saga(), false, time(attempt_at)) {
                let mut after = self.before;
                after.schedulers[usize::from(copy)] = Scheduler::Read { saga, attempt_at };
                self.quiet(Actor::Scheduler(copy), "reads a due saga", self.about_saga(saga), true, after);
            }
        }
    }

    fn write_half(&mut self, copy: u8, mut after: State, saga: u8, attempt_at: u8, job: bool) {
        let does = if job {
            let inserted = self.insert_job(&mut after, saga, attempt_at);
            if let (Some(job), true) = (inserted, self.model.deferred_commits) {
                after.defer(Deferred::Inserted(JobRef { saga, job }));
            }
            "inserts the job (3a)"
        } else {
            let from = after.saga(saga).core.status;
            self.move_to_in_progress(&mut after, saga, attempt_at);
            if self.model.deferred_commits && after.saga(saga).core.status != from {
                after.defer(Deferred::Moved { saga, from });
            }
            "moves the saga to InProgress (3b)"
        };
        let about = super::About::Job(self.before.saga(saga).generation, attempt_at);
        self.transaction(Actor::Scheduler(copy), does, about, after);
    }

    /// 3a: on conflict nothing, with either unique key.
    fn insert_job(&self, after: &mut State, saga: u8, attempt_at: u8) -> Option<u8> {
        let row = after.saga_mut(saga);
        let key_taken = row.job_rows().any(|job| job.attempt_at == attempt_at);
        let conflict = (key_taken && self.model.has(Guard::JobKey))
            || (row.has_active_job() && self.model.has(Guard::ActiveJobKey));
        if conflict {
            return None;
        }
        let (place, free) = (0_u8..).zip(&mut row.jobs).find(|(_, job)| job.is_none())?;
        *free = Some(JobRow {
            attempt_at,
            status: JobStatus::Pending,
            token: Token::Null,
            parked: false,
            gone: false,
            queued: false,
            carried: None,
            applied: 0,
        });
        Some(place)
    }

    /// 3b: where status is Pending or PendingRetry and next_attempt_at is the job's attempt_at.
    fn move_to_in_progress(&self, after: &mut State, saga: u8, attempt_at: u8) {
        let core = &mut after.saga_mut(saga).core;
        let waiting = matches!(core.status, SagaStatus::Pending | SagaStatus::PendingRetry);
        let status_fits = waiting || !self.model.has(Guard::MoveChecksStatus);
        let key_fits = core.next_attempt_at == attempt_at || !self.model.has(Guard::MoveChecksKey);
        if status_fits && key_fits {
            *core = promote(*core, attempt_at);
        }
    }
}

/// The move as the state machine makes it. Where a guard is left out it would refuse: the update, which
/// does not ask it, is then made regardless.
pub(super) fn promote(core: Core, attempt_at: u8) -> Core {
    let saga = core.to_saga();
    let created = SagaEvent::JobCreated { attempt_at: time(attempt_at) };
    let moved = step(&saga, &created, &RetryPolicy::default(), saga.next_attempt_at);
    Core::of(&moved.unwrap_or(Saga { status: SagaStatus::InProgress, ..saga }))
}
