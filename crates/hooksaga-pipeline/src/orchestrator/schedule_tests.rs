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
