//! Steps 4, 4' and 5, parking and the cleaner: what happens to a job between its insert and its result.

use super::{Actor, Step, Steps};
use crate::model::{
    guards::Guard,
    state::{Ending, JobRef, JobRow, State, Token, Worker},
};
use hooksaga_saga::JobStatus;

impl Steps<'_> {
    pub(super) fn working(&mut self, copy: u8) {
        match self.before.workers[usize::from(copy)] {
            Worker::Idle => self.claim(copy),
            Worker::Holds(job) => {
                self.report(copy, job, Ending::Delivered, "reports success");
                self.report(copy, job, Ending::Failed, "reports failure");
                if self.model.endpoints_say_more || self.before.deleted {
                    self.report(copy, job, Ending::Gone, "reports that the endpoint is gone");
                }
                self.hand_back(copy, job, false);
                if self.model.parking {
                    // Also while the subscription is active: it may have resumed since the worker looked.
                    self.hand_back(copy, job, true);
                }
            }
            Worker::OwesQueueRow(job) => {
                let mut after = self.before;
                after.forget_worker(copy);
                after.job_mut(job).enqueue(self.model.results_in_queue);
                self.transaction(Actor::Worker(copy), "queues the result", self.about_job(job), after);
            }
        }
    }

    /// 4 claim: a Pending job, under a fresh token. Unheard of, the lease belongs to nobody.
    fn claim(&mut self, copy: u8) {
        for job in self.before.job_refs() {
            if self.before.job(job).status != JobStatus::Pending || self.before.job(job).parked {
                continue;
            }
            let (actor, about) = (Actor::Worker(copy), self.about_job(job));
            let mut after = self.before;
            after.job_mut(job).status = JobStatus::Leased;
            after.job_mut(job).token = Token::Of(copy);
            after.workers[usize::from(copy)] = Worker::Holds(job);
            let does = "claims the job";
            self.quiet(actor, does, about, true, after);
            after.forget_worker(copy);
            self.push(Step { actor, does, about, acknowledged: false, calm: false }, after);
        }
    }

    /// 5 report: where status is Leased and the token is mine; changed ids into the queue. However late:
    /// the lease may have been reset and taken by another since.
    fn report(&mut self, copy: u8, job: JobRef, ending: Ending, does: &'static str) {
        let status = if ending == Ending::Delivered { JobStatus::Completed } else { JobStatus::Failed };
        let row = self.before.job(job);
        let status_fits = row.status == JobStatus::Leased || !self.model.has(Guard::ReportChecksStatus);
        let token_fits = row.token == Token::Of(copy) || !self.model.has(Guard::ReportChecksToken);
        let mut after = self.before;
        let mut memory = Worker::Idle;
        if status_fits && token_fits {
            self.leave_lease(after.job_mut(job), status);
            after.job_mut(job).gone = ending == Ending::Gone;
            if self.model.has(Guard::ReportQueuesInOneCommit) {
                after.job_mut(job).enqueue(self.model.results_in_queue);
            } else {
                memory = Worker::OwesQueueRow(job);
            }
        }
        after.workers[usize::from(copy)] = memory;
        self.settle(copy, does, job, true, after);
    }

    /// 4' hand back: of a job whose rate limit is used up, or at shutdown; and parking, of a job whose subscription is
    /// paused. Where the token is mine.
    fn hand_back(&mut self, copy: u8, job: JobRef, park: bool) {
        let row = self.before.job(job);
        let token_fits = row.token == Token::Of(copy) || !self.model.has(Guard::HandBackChecksToken);
        let mut after = self.before;
        if row.status == JobStatus::Leased && token_fits {
            self.leave_lease(after.job_mut(job), JobStatus::Pending);
            after.job_mut(job).parked = park;
        }
        after.workers[usize::from(copy)] = Worker::Idle;
        let does = if park { "parks the job" } else { "hands the job back" };
        self.settle(copy, does, job, false, after);
    }

    /// What is parked for a subscription that delivers may be claimed again. Any worker looks, every second.
    pub(super) fn unparking(&mut self) {
        let served = self.before.active || (self.before.deleted && self.model.has(Guard::DeletedIsServed));
        if !served || !self.model.has(Guard::UnparkLooksAgain) {
            return;
        }
        for job in self.before.job_refs() {
            if !self.before.job(job).parked {
                continue;
            }
            let mut after = self.before;
            after.job_mut(job).parked = false;
            self.quiet(Actor::Unparker, "frees the parked job", self.about_job(job), true, after);
        }
    }

    /// Cleaner: where status is Leased and the lease has run out. It may run out at any time; that of a
    /// worker which is gone surely does.
    pub(super) fn cleaning(&mut self) {
        for job in self.before.job_refs() {
            let row = *self.before.job(job);
            let any = !self.model.has(Guard::CleanerChecksStatus) && !row.status.is_active();
            let other_active = any && self.before.saga(job.saga).has_active_job();
            let refused = other_active && self.model.has(Guard::ActiveJobKey);
            if (row.status == JobStatus::Leased || any) && !refused {
                let mut after = self.before;
                self.leave_lease(after.job_mut(job), JobStatus::Pending);
                let calm = row.status == JobStatus::Leased && row.token == Token::Lost;
                self.quiet(Actor::Cleaner, "resets the lease", self.about_job(job), calm, after);
            }
        }
    }

    fn leave_lease(&self, job: &mut JobRow, status: JobStatus) {
        job.status = status;
        job.parked = false;
        if self.model.has(Guard::TokenCleared) {
            job.token = Token::Null;
        }
    }

    /// Ends a lease's transaction. A worker that goes on to something else will draw another token: its
    /// old one is nobody's. One that does not hear of the commit still believes to hold the lease.
    fn settle(&mut self, copy: u8, does: &'static str, job: JobRef, calm: bool, mut after: State) {
        let (actor, about) = (Actor::Worker(copy), self.about_job(job));
        let mut unheard = after;
        unheard.restore_memory(actor, &self.before);
        if after.workers[usize::from(copy)] == Worker::Idle {
            after.forget_worker(copy);
        }
        self.quiet(actor, does, about, calm, after);
        self.push(Step { actor, does, about, acknowledged: false, calm: false }, unheard);
    }
}
