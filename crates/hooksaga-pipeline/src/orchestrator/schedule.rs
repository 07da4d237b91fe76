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
                correlation_id = %saga.correlation_id,
                saga_id = saga.saga_id.0,
                job_id = saga.job_id.map(|id| id.0),
                subscription_id = saga.subscription_id.0,
                "scheduled"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeliveryLog, Metrics, Signals};
    use async_trait::async_trait;
    use hooksaga_saga::{JobId, RetryPolicy, SagaId, Timestamp};
    use hooksaga_store::{Admission, ApplyBatch, Decide, OrchestratorStore, Scheduled, StoreError};
    use std::{
        collections::HashMap,
        sync::{Arc, Mutex},
    };

    /// Remembers where it was told to look, and answers with so many sagas; fails if there is no number left.
    #[derive(Default)]
    struct Looks {
        told: Mutex<Vec<Option<BTreeSet<SubscriptionId>>>>,
        sagas: Mutex<Vec<usize>>,
    }

    #[async_trait]
    impl OrchestratorStore for Looks {
        async fn schedule(&self, admission: &Admission) -> StoreResult<Scheduled> {
            self.told.lock().unwrap().push(admission.only.clone());
            let Some(sagas) = self.sagas.lock().unwrap().pop() else {
                return Err(StoreError::Unavailable("away".to_owned()));
            };
            let at = Timestamp::from_micros(0);
            let saga = ScheduledSaga {
                saga_id: SagaId(1),
                subscription_id: SubscriptionId(99),
                attempt_at: at,
                correlation_id: String::new(),
                job_id: Some(JobId(1)),
            };
            Ok(Scheduled { now: at, sagas: vec![saga; sagas] })
        }

        async fn open_jobs(&self) -> StoreResult<HashMap<SubscriptionId, u32>> {
            Ok(HashMap::new())
        }

        async fn mark_in_progress(&self, sagas: &[(SagaId, Timestamp)]) -> StoreResult<u64> {
            Ok(sagas.len() as u64)
        }

        async fn apply(&self, _: u32, _: &Decide) -> StoreResult<ApplyBatch> {
            Ok(ApplyBatch { now: Timestamp::from_micros(0), results: Vec::new() })
        }
    }

    fn ids(ids: &[i64]) -> BTreeSet<SubscriptionId> {
        ids.iter().copied().map(SubscriptionId).collect()
    }

    /// An orchestrator that has just looked everywhere, its store, and its signals.
    async fn orchestrator() -> (Orchestrator, Arc<Looks>, Signals) {
        let (store, signals) = (Arc::new(Looks::default()), Signals::new(Stage::ALL));
        let (metrics, log) = (Metrics::new(), DeliveryLog::default());
        let orchestrator =
            Orchestrator::new(store.clone(), RetryPolicy::default(), signals.clone(), metrics, log);
        pass(&orchestrator, &store, 0).await;
        assert_eq!(told(&store), [None], "the first pass");
        (orchestrator, store, signals)
    }

    async fn pass(orchestrator: &Orchestrator, store: &Looks, sagas: usize) {
        store.sagas.lock().unwrap().push(sagas);
        orchestrator.schedule_once().await.unwrap();
    }

    /// Where the store was told to look since this was asked last.
    fn told(store: &Looks) -> Vec<Option<BTreeSet<SubscriptionId>>> {
        std::mem::take(&mut store.told.lock().unwrap())
    }

    #[tokio::test]
    async fn a_pass_looks_where_something_has_come_up() {
        let (orchestrator, store, signals) = orchestrator().await;
        signals.wake_schedule(ids(&[1, 2]));
        pass(&orchestrator, &store, 0).await;
        pass(&orchestrator, &store, 0).await;
        signals.wake_schedule(ids(&[1]));
        signals.wake(Stage::Schedule);
        pass(&orchestrator, &store, 0).await;
        signals.wake_schedule((0..65).map(SubscriptionId));
        pass(&orchestrator, &store, 0).await;
        assert_eq!(told(&store), [Some(ids(&[1, 2])), None, None, None], "told; a poll; anywhere; too many");
    }

    #[tokio::test]
    async fn a_pass_looks_everywhere_once_a_second_and_when_a_retry_falls_due() {
        let (orchestrator, store, signals) = orchestrator().await;
        *orchestrator.looked_everywhere.lock().unwrap() = Instant::now().checked_sub(EVERYWHERE);
        signals.wake_schedule(ids(&[1]));
        pass(&orchestrator, &store, 0).await;
        orchestrator.due.add([Duration::ZERO].into_iter(), Instant::now());
        tokio::time::sleep(Duration::from_millis(5)).await;
        signals.wake_schedule(ids(&[1]));
        pass(&orchestrator, &store, 0).await;
        signals.wake_schedule(ids(&[1]));
        pass(&orchestrator, &store, 0).await;
        assert_eq!(told(&store), [None, None, Some(ids(&[1]))]);
    }

    #[tokio::test]
    async fn a_pass_that_is_cut_short_or_fails_is_gone_on_with() {
        let (orchestrator, store, signals) = orchestrator().await;
        let full = BATCH as usize;
        signals.wake_schedule(ids(&[1]));
        pass(&orchestrator, &store, full).await;
        signals.wake_schedule(ids(&[2]));
        pass(&orchestrator, &store, 0).await;
        assert_eq!(told(&store), [Some(ids(&[1])), Some(ids(&[1, 2]))]);

        signals.wake(Stage::Schedule);
        pass(&orchestrator, &store, full).await;
        signals.wake_schedule(ids(&[2]));
        pass(&orchestrator, &store, 0).await;
        assert_eq!(told(&store), [None, None]);

        signals.wake_schedule(ids(&[1]));
        assert!(orchestrator.schedule_once().await.is_err());
        signals.wake_schedule(ids(&[2]));
        pass(&orchestrator, &store, 0).await;
        assert_eq!(told(&store), [Some(ids(&[1])), None]);
    }

    #[tokio::test]
    async fn nobody_is_asked_where_there_is_no_room() {
        let (orchestrator, store, signals) = orchestrator().await;
        let floor = orchestrator.windows.admission(1, None).default_room as usize;
        signals.wake_schedule(ids(&[99]));
        pass(&orchestrator, &store, floor).await;
        signals.wake_schedule(ids(&[99]));
        orchestrator.schedule_once().await.unwrap();
        assert_eq!(told(&store), [Some(ids(&[99]))]);
    }
}
