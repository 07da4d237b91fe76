use super::*;
use crate::{DeliveryLog, Metrics, Signals};
use async_trait::async_trait;
use hooksaga_saga::{ErrorCode, FurthestAttempt, JobId, RetryPolicy, SagaId, Timestamp};
use hooksaga_store::{
    Allotted, ApplyBatch, Decide, JobsCreated, OrchestratorStore, Scheduled, Stage, StoreError, StrandedStep,
    Trace, WaitingPage, WorkerLoad,
};
use std::{collections::BTreeMap, sync::Arc};

/// A store that counts what is asked of it.
#[derive(Default)]
struct Scripted {
    /// Due sagas by subscription.
    due: Mutex<BTreeMap<SubscriptionId, u32>>,
    /// Where looks began.
    looks: Mutex<Vec<Option<SubscriptionId>>>,
    /// What was allotted.
    allotted: Mutex<Vec<Vec<Allotted>>>,
    /// Subscriptions that a page of a look holds at most; 0: as many as asked for.
    page: Mutex<usize>,
    away: Mutex<bool>,
    /// Endpoints that were failing before.
    failing: Mutex<Vec<(SubscriptionId, ErrorCode)>>,
    /// When passes said that their moves are made.
    moves: Mutex<Vec<Move>>,
    /// How long until a move that was left is to be made.
    until_move: Mutex<Option<Duration>>,
}

#[async_trait]
impl OrchestratorStore for Scripted {
    async fn waiting(&self, after: Option<SubscriptionId>, limit: u32) -> StoreResult<WaitingPage> {
        self.looks.lock().unwrap().push(after);
        let page = match *self.page.lock().unwrap() {
            0 => limit as usize,
            page => page,
        };
        let due = self.due.lock().unwrap();
        let subscriptions: Vec<_> =
            due.keys().copied().filter(|id| after.is_none_or(|after| *id > after)).take(page).collect();
        let resume_after = subscriptions.last().copied().filter(|_| subscriptions.len() == page);
        Ok(WaitingPage { subscriptions, resume_after })
    }

    async fn create_jobs(&self, allotted: &[Allotted], created: JobsCreated<'_>) -> StoreResult<Scheduled> {
        if *self.away.lock().unwrap() {
            return Err(StoreError::Unavailable("away".to_owned()));
        }
        self.allotted.lock().unwrap().push(allotted.to_vec());
        let mut due = self.due.lock().unwrap();
        let mut sagas = Vec::new();
        for Allotted { subscription_id, jobs } in allotted {
            let left = due.entry(*subscription_id).or_default();
            let taken = (*jobs).min(*left);
            *left -= taken;
            sagas.extend((0..taken).map(|_| ScheduledSaga {
                saga_id: SagaId(1),
                subscription_id: *subscription_id,
                attempt_at: Timestamp::from_micros(0),
                trace: Trace::default(),
                job_id: Some(JobId(1)),
            }));
        }
        due.retain(|_, left| *left > 0);
        self.moves.lock().unwrap().push(created());
        Ok(Scheduled { now: Timestamp::from_micros(0), sagas, limited: Vec::new() })
    }

    fn until_move(&self) -> Option<Duration> {
        *self.until_move.lock().unwrap()
    }

    async fn move_rest(&self) -> StoreResult<()> {
        if *self.away.lock().unwrap() {
            return Err(StoreError::Unavailable("away".to_owned()));
        }
        *self.until_move.lock().unwrap() = None;
        Ok(())
    }

    async fn schedule_stranded(
        &self,
        _: Option<SubscriptionId>,
        _: FurthestAttempt,
    ) -> StoreResult<StrandedStep> {
        Ok(StrandedStep { sagas: 0, resume_after: None })
    }

    async fn load(&self) -> StoreResult<WorkerLoad> {
        Ok(WorkerLoad { workers: 1, slots: 512, ..WorkerLoad::default() })
    }

    async fn failing(&self, limit: u32) -> StoreResult<Vec<(SubscriptionId, ErrorCode)>> {
        let failing = self.failing.lock().unwrap();
        Ok(failing.iter().take(limit as usize).cloned().collect())
    }

    async fn apply(&self, _: u32, _: &Decide) -> StoreResult<ApplyBatch> {
        Ok(ApplyBatch { now: Timestamp::from_micros(0), results: Vec::new() })
    }
}

impl Scripted {
    fn taken<T>(list: &Mutex<Vec<T>>) -> Vec<T> {
        std::mem::take(&mut *list.lock().unwrap())
    }
}

const A: SubscriptionId = SubscriptionId(1);
const B: SubscriptionId = SubscriptionId(2);

/// An orchestrator that has just looked everywhere, its store, and its signals.
async fn orchestrator() -> (Orchestrator, Arc<Scripted>, Signals) {
    let (store, signals) = (Arc::new(Scripted::default()), Signals::new(Stage::ALL));
    let (metrics, log) = (Metrics::new(), DeliveryLog::default());
    let orchestrator =
        Orchestrator::new(store.clone(), RetryPolicy::default(), signals.clone(), metrics, log);
    orchestrator.schedule_once().await.unwrap();
    assert_eq!(Scripted::taken(&store.looks), [None], "the first pass");
    (orchestrator, store, signals)
}

#[tokio::test]
async fn a_pass_works_where_something_has_come_up_and_looks_nowhere_else() {
    let (orchestrator, store, signals) = orchestrator().await;
    store.due.lock().unwrap().extend([(A, 2), (B, 1)]);
    signals.wake_schedule([A]);
    assert!(orchestrator.schedule_once().await.unwrap().did_work());
    assert_eq!(Scripted::taken(&store.looks), []);
    let allotted = Scripted::taken(&store.allotted);
    assert_eq!(allotted.concat().iter().map(|one| one.subscription_id).collect::<Vec<_>>(), [A]);
    assert!(!orchestrator.schedule_once().await.unwrap().did_work(), "all of A was taken");
    assert_eq!(Scripted::taken(&store.allotted), Vec::<Vec<Allotted>>::new());
}

#[tokio::test]
async fn a_wake_up_without_a_name_leads_to_a_look() {
    let (orchestrator, store, signals) = orchestrator().await;
    store.due.lock().unwrap().insert(B, 1);
    signals.wake(Stage::Schedule);
    // What was scanned a moment ago is scanned again, as soon as the last scan was short enough.
    for _ in 0..100 {
        orchestrator.schedule_once().await.unwrap();
        if store.due.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(store.due.lock().unwrap().len(), 0);
    assert_eq!(Scripted::taken(&store.looks), [None]);
}

#[tokio::test]
async fn a_look_goes_page_by_page_and_every_page_is_worked_on() {
    let (orchestrator, store, _) = orchestrator().await;
    *store.page.lock().unwrap() = 2;
    store.due.lock().unwrap().extend((1..=5).map(|id| (SubscriptionId(id), 1)));
    orchestrator.look.state().began = Instant::now().checked_sub(FullScan::EVERY);
    let mut passes = 0;
    while orchestrator.schedule_once().await.unwrap() == Progress::Worked {
        passes += 1;
        assert!(passes < 10);
    }
    assert!(store.due.lock().unwrap().is_empty());
    assert_eq!(Scripted::taken(&store.looks)[0], None, "from the beginning, and on from there");
}

#[tokio::test]
async fn a_retry_is_worked_on_when_it_falls_due_without_a_look() {
    let (orchestrator, store, _) = orchestrator().await;
    store.due.lock().unwrap().insert(A, 1);
    orchestrator.due.add([(A, Duration::from_millis(3))].into_iter(), Instant::now());
    let Progress::Idle { until: Some(until) } = orchestrator.schedule_once().await.unwrap() else {
        panic!("it is not due yet");
    };
    tokio::time::sleep(until).await;
    assert!(orchestrator.schedule_once().await.unwrap().did_work());
    assert_eq!((store.due.lock().unwrap().len(), Scripted::taken(&store.looks)), (0, vec![]));
}

#[tokio::test]
async fn what_a_failed_pass_was_told_is_not_forgotten() {
    let (orchestrator, store, signals) = orchestrator().await;
    store.due.lock().unwrap().insert(A, 1);
    *store.away.lock().unwrap() = true;
    signals.wake_schedule([A]);
    assert!(orchestrator.schedule_once().await.is_err());
    *store.away.lock().unwrap() = false;
    assert!(orchestrator.schedule_once().await.unwrap().did_work());
    assert!(store.due.lock().unwrap().is_empty());
}

#[tokio::test]
async fn moves_are_left_for_later_unless_other_copies_would_find_them_due() {
    let (orchestrator, store, signals) = orchestrator().await;
    let pass = async |copies| {
        signals.set_copies(copies);
        store.due.lock().unwrap().insert(A, 1);
        signals.wake_schedule([A]);
        orchestrator.schedule_repeatedly().await.unwrap();
        Scripted::taken(&store.moves)
    };
    assert_eq!((pass(1).await, pass(2).await), (vec![Move::Later], vec![Move::Now]));
}

#[tokio::test]
async fn a_pass_makes_the_moves_that_were_left_when_it_is_time() {
    let (orchestrator, store, _) = orchestrator().await;
    let (soon, set) = (Duration::from_millis(3), |until| *store.until_move.lock().unwrap() = until);
    set(Some(soon));
    assert_eq!(orchestrator.schedule_once().await.unwrap(), Progress::Idle { until: Some(soon) });
    assert_eq!(store.until_move(), Some(soon), "not before");
    set(Some(Duration::ZERO));
    *store.away.lock().unwrap() = true;
    assert!(orchestrator.schedule_once().await.is_err());
    assert!(orchestrator.look.state().wanted, "what was not moved is looked for");
    *store.away.lock().unwrap() = false;
    orchestrator.schedule_once().await.unwrap();
    assert_eq!(store.until_move(), None);
}

#[tokio::test]
async fn a_backlog_is_given_no_more_than_its_share() {
    let (orchestrator, store, signals) = orchestrator().await;
    store.due.lock().unwrap().insert(A, 5000);
    signals.wake_schedule([A]);
    for _ in 0..20 {
        orchestrator.schedule_once().await.unwrap();
    }
    let jobs: u32 = Scripted::taken(&store.allotted).concat().iter().map(|one| one.jobs).sum();
    assert!((1..=16).contains(&jobs), "an endpoint that never answered was given {jobs} jobs");
}

#[test]
fn an_outage_puts_no_look_off() {
    let (look, start) = (FullScan::default(), Instant::now());
    let second = Duration::from_secs(1);
    assert_eq!(look.next_page(start), Some(None));
    look.failed();
    assert_eq!(look.next_page(start + 60 * second), Some(None), "a look begins anew");
    look.read(None, Duration::from_secs(30));
    look.want();
    let soon = start + 60 * second + FullScan::LONGEST * FullScan::COST;
    assert_eq!(look.next_page(soon), Some(None), "one slow statement does not put the next off for minutes");
}

#[tokio::test]
async fn the_first_pass_knows_which_endpoints_were_failing_before() {
    let (store, signals) = (Arc::new(Scripted::default()), Signals::new(Stage::ALL));
    let (metrics, log) = (Metrics::new(), DeliveryLog::default());
    store.due.lock().unwrap().extend([(A, 50), (B, 50)]);
    store.failing.lock().unwrap().push((A, ErrorCode::TIMEOUT));
    let orchestrator = Orchestrator::new(store.clone(), RetryPolicy::default(), signals, metrics, log);
    orchestrator.schedule_once().await.unwrap();
    let jobs = |id| {
        let allotted = store.allotted.lock().unwrap().concat();
        allotted.iter().filter(|one| one.subscription_id == id).map(|one| one.jobs).sum::<u32>()
    };
    assert_eq!(jobs(A), 1, "one that hung is tried with one");
    assert!(jobs(B) > 1);
}
