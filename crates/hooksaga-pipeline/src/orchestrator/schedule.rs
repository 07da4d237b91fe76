//! Gives due sagas their jobs.

use super::Orchestrator;
use crate::{DELIVERY_LOG_TARGET, Progress};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{ScheduledSaga, Stage, StoreResult};
use std::{
    collections::BTreeSet,
    sync::PoisonError,
    time::{Duration, Instant},
};

pub(super) const NAME: &str = "schedule";
/// Jobs per pass.
const BATCH: u32 = 1000;
/// At most so many subscriptions are looked at one by one.
const MOST: usize = 64;
/// How often a pass looks everywhere, whatever was said.
const EVERYWHERE: Duration = Duration::from_secs(1);

impl Orchestrator {
    /// One pass: jobs for due sagas, then those sagas to InProgress. A crash in between leaves due sagas
    /// whose jobs exist; the next pass moves them.
    pub async fn schedule_once(&self) -> StoreResult<Progress> {
        let done = self.schedule_pass().await;
        if done.is_err() {
            // What the pass was told of is still to be done.
            self.signals.wake(Stage::Schedule);
        }
        done
    }

    async fn schedule_pass(&self) -> StoreResult<Progress> {
        let started = Instant::now();
        // Before the pass, so that what falls due or is announced while it runs is not forgotten.
        let only = self.look_at(started);
        if self.windows.begin_count(started) {
            self.count_open_jobs(started).await;
        }
        let admission = self.windows.admission(BATCH, only);
        let has_room = |only: &BTreeSet<_>| only.iter().any(|id| admission.room_of(*id) > 0);
        let sagas = if admission.only.as_ref().is_none_or(has_room) {
            self.store.schedule(&admission).await?.sagas
        } else {
            Vec::new()
        };
        self.signals.wake_schedule(self.windows.created(&admission, &sagas));
        if sagas.len() >= BATCH as usize {
            // Cut short: there is more where this came from.
            match admission.only {
                Some(only) => self.signals.wake_schedule(only),
                None => self.signals.wake(Stage::Schedule),
            }
        }
        if !sagas.is_empty() {
            // The jobs are there: workers need not wait for the sagas to be moved.
            self.signals.wake(Stage::Worker);
            let mut keys: Vec<_> = sagas.iter().map(|saga| (saga.saga_id, saga.attempt_at)).collect();
            keys.sort_unstable_by_key(|(saga_id, _)| *saga_id);
            self.store.mark_in_progress(&keys).await?;
            self.metrics.pass(NAME, started.elapsed());
            self.account_scheduled(&sagas);
        }
        Ok(Progress::of_batch(sagas.len(), BATCH).or_after(self.due.until_next(Instant::now())))
    }

    /// Where this pass looks: where something is said to have come up; everywhere if that is not known, if a retry has
    /// fallen due, and every second, for what nobody has said anything about.
    fn look_at(&self, now: Instant) -> Option<BTreeSet<SubscriptionId>> {
        let due = self.due.forget_past(now);
        let only = self.signals.take_to_schedule().filter(|only| !due && only.len() <= MOST);
        let mut everywhere = self.looked_everywhere.lock().unwrap_or_else(PoisonError::into_inner);
        if only.is_none() || everywhere.is_none_or(|at| now.saturating_duration_since(at) >= EVERYWHERE) {
            *everywhere = Some(now);
            return None;
        }
        only
    }

    /// Learns how many jobs are open. If that fails, this process goes on with what it knows.
    async fn count_open_jobs(&self, began: Instant) {
        let jobs = self.store.open_jobs().await;
        if let Err(error) = &jobs {
            self.metrics.store_error(NAME, error.is_transient());
            tracing::warn!(%error, "open jobs were not counted; windows may be too wide or too narrow");
        }
        self.windows.counted(jobs.ok().as_ref(), began);
    }

    fn account_scheduled(&self, sagas: &[ScheduledSaga]) {
        let created = sagas.iter().filter(|saga| saga.job_id.is_some()).count();
        self.metrics.scheduled(created as u64);
        if !self.log.wants(false) {
            return;
        }
        for saga in sagas {
            tracing::info!(
                target: DELIVERY_LOG_TARGET,
                stage = NAME,
                delivery_status = "InProgress",
                correlation_id = saga.correlation_id.as_str(),
                saga_id = saga.saga_id.0,
                job_id = saga.job_id.map(|id| id.0),
                subscription_id = saga.subscription_id.0,
                "scheduled"
            );
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
