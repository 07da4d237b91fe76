//! Sending again on a large scale, with one fault in it: a redrive of dead letters, one of old events for a new
//! subscription, and what that subscription missed before it was verified, in the smallest steps there are.

use super::{CONFIG, Fault, FaultPlan, PARALLEL, STRIDE, faulty, sampling};
use crate::support::{ALL, DEFAULT_LIMIT, PAGE, Pipeline, World, backend::Backend, capture::Capture};
use async_trait::async_trait;
use hooksaga_pipeline::{DeliveryLog, Metrics, NewSecrets, Redriver, Signals, SigningSecret};
use hooksaga_saga::{RedriveId, RequestHeaders, SagaStatus, SubscriptionId, Tenant, Timestamp};
use hooksaga_store::{
    CancelOutcome, CreateOutcome, DeadLetterFilter, Delivery, NewRedrive, NewSubscription, QueueGauges,
    RedriveStatus, RedriveStep, RedriveStore, RedriveWork, RunningLimits, Stage, StartOutcome, Starter,
    StepLimits, StoreError, StoreResult, Stores, TenantScope,
};
use hooksaga_testkit::receiver::Behaviour;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;

/// One saga a step: the smallest steps have the most places to fail at.
const STEP: StepLimits = StepLimits { examine: 2, create: 1, default_limit: DEFAULT_LIMIT };
/// Events from before the new subscription, each of which is a dead letter of the old one.
const OLD: usize = 3;

/// The letters are there, and the new subscription has just been verified.
async fn start(backend: Backend) -> (World, SubscriptionId) {
    let world = World::on(backend).await;
    world.subscribe_with("a", "/old", Some(1)).await;
    world.receiver.answer("/old", [Behaviour::Status(500)]);
    world.append("a", OLD).await;
    let pipeline = Pipeline::new(&world);
    pipeline.settle().await;
    world.receiver.answer("/old", [Behaviour::Status(200)]);

    let new = NewSubscription {
        tenant: Tenant::default(),
        topics: "a,b".parse().unwrap(),
        callback_url: world.url("/new"),
        description: None,
        active: true,
        max_retry_limit: None,
        rate_limit: None,
        headers: None,
    };
    let secrets = NewSecrets::new(&world.key, &SigningSecret::generate(), RequestHeaders::default());
    let created = world.stores.admin.create(&new, &secrets).await.unwrap();
    let CreateOutcome::Created(subscription) = created else { panic!("{created:?}") };
    world.append("b", 1).await;
    pipeline.router.run_once().await.unwrap();
    world.verify().await;
    (world, subscription.id)
}

/// Whoever starts a redrive asks again until somebody says that it runs. If that was only not heard, there are two.
async fn start_redrive(stores: &Stores, work: &RedriveWork) {
    let starter = Starter { key_id: None, name: "root".to_owned() };
    let limits = RunningLimits { in_all: 10, for_tenants: 10, of_a_tenant: 10 };
    loop {
        match stores.redrives.start(NewRedrive { scope: &ALL, work, starter: &starter }, limits).await {
            Ok(StartOutcome::Started(_)) => return,
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
    }
}

async fn tell(world: &World, stores: &Stores, new: SubscriptionId) {
    start_redrive(stores, &RedriveWork::DeadLetters(DeadLetterFilter::default())).await;
    let since = Timestamp::from_micros(0);
    start_redrive(stores, &RedriveWork::Events { subscription_id: new, since, until: None }).await;
    loop {
        // Each on its own, as in a server: an error in one does not keep the other from its step.
        let caught_up = stores.redrives.catch_up(STEP, Some(Duration::from_secs(3600))).await;
        let advanced = stores.redrives.advance(STEP).await;
        let running = stores.redrives.running().await;
        if let (Ok(None), Ok(None), Ok(0)) = (caught_up, advanced, running) {
            break;
        }
    }
    let pipeline = Pipeline::over(stores, &world.key, CONFIG);
    while !is_over(world).await {
        pipeline.signals.wake(Stage::Schedule);
        let _ = pipeline.orchestrator.schedule_once().await;
        let _ = pipeline.worker.run_once().await;
        let _ = pipeline.orchestrator.apply_once().await;
        let _ = pipeline.cleaner.run_once().await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn is_over(world: &World) -> bool {
    world.statuses().await.into_iter().all(SagaStatus::is_final)
        && world.stores.reader.gauges().await.unwrap() == QueueGauges::default()
}

async fn check_the_end(world: &World, new: SubscriptionId) {
    let deliveries = world.deliveries().await;
    let keys: BTreeSet<_> =
        deliveries.iter().map(|d| (d.subscription_id == new, d.generation, d.event_id)).collect();
    assert_eq!(keys.len(), deliveries.len(), "no saga is there twice: {deliveries:?}");
    let count = |of_new: bool, generation: u32, status: SagaStatus| {
        let fits = |d: &&Delivery| {
            (d.subscription_id == new, d.generation, d.status) == (of_new, generation, status)
        };
        deliveries.iter().filter(fits).count()
    };
    assert_eq!(count(false, 0, SagaStatus::DeadLettered), OLD);
    assert_eq!(count(false, 1, SagaStatus::Completed), OLD, "each letter was sent again: {deliveries:?}");
    assert_eq!(count(true, 0, SagaStatus::Completed), OLD + 1, "each event was sent: {deliveries:?}");
    assert_eq!(deliveries.len(), 3 * OLD + 1);

    let (mut of_letters, mut of_events) = (0, 0);
    for redrive in world.stores.reader.redrives(&ALL, PAGE).await.unwrap().items {
        assert_eq!(redrive.status, RedriveStatus::Done, "{redrive:?}");
        assert_eq!(redrive.examined, redrive.created + redrive.skipped, "{redrive:?}");
        match redrive.work {
            RedriveWork::DeadLetters(_) => of_letters += redrive.created,
            RedriveWork::Events { .. } => of_events += redrive.created,
        }
    }
    assert_eq!(of_letters, OLD as u64, "the counts are those of the sagas");
    assert!(
        (OLD as u64..=OLD as u64 + 1).contains(&of_events),
        "{of_events}: catching up may have been first"
    );
}

async fn tell_with(backend: Backend, n: usize, fault: Fault) -> bool {
    let (world, new) = start(backend).await;
    let plan = Arc::new(FaultPlan::new(n, fault));
    let stores = faulty(&world.stores, &plan);
    let told = async {
        tokio::select! {
            () = tell(&world, &stores, new) => {}
            () = plan.killed() => tell(&world, &world.stores, new).await,
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), told).await;
    assert!(in_time.is_ok(), "call {n} with {fault:?} never ended: {:?}", world.deliveries().await);
    check_the_end(&world, new).await;
    drop(stores);
    world.end().await;
    plan.happened()
}

/// Fails one call after another, in each way; on the servers every n-th, as in the other story.
async fn tell_with_every(backend: Backend) {
    let stride = sampling::stride(backend, 2 * STRIDE);
    for fault in [Fault::ErrorBefore, Fault::ErrorAfter, Fault::KillBefore, Fault::KillAfter] {
        let (mut running, mut next) = (JoinSet::new(), sampling::first(stride, fault));
        let (mut failed, mut more) = (0, true);
        // Only the redrives' own calls: the deliveries that follow have their own story.
        while more || !running.is_empty() {
            if more && running.len() < PARALLEL {
                running.spawn(tell_with(backend, next, fault));
                next += stride;
                more = next < CALLS;
                continue;
            }
            if let Some(happened) = running.join_next().await {
                failed += usize::from(happened.unwrap());
            }
        }
        // With any distance more than one: else a story that ends after its first call would do.
        assert!(
            failed >= 2 && failed * stride >= CALLS - 2 * stride,
            "only {failed} calls were made to fail"
        );
    }
}

/// Two starts, and this many steps: four events, three letters, their ends, catching up, and a look at how many run each
/// time.
const CALLS: usize = 24;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_each_is_sent_again_once_on_sqlite() {
    tell_with_every(Backend::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_each_is_sent_again_once_on_postgres() {
    tell_with_every(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_each_is_sent_again_once_on_mysql() {
    tell_with_every(Backend::MySql).await;
}

/// Lets nobody catch up, for a reason that stays; and takes no redrive on, if so wished.
struct NoCatchUp {
    inner: Arc<dyn RedriveStore>,
    no_redrive: bool,
    /// How many catch-ups and redrives were put off.
    put_off: [AtomicU32; 2],
}

impl NoCatchUp {
    fn new(inner: &Arc<dyn RedriveStore>, no_redrive: bool) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), no_redrive, put_off: Default::default() })
    }

    fn put_off(&self) -> [u32; 2] {
        [0, 1].map(|which| self.put_off[which].load(Ordering::Relaxed))
    }
}

#[async_trait]
impl RedriveStore for NoCatchUp {
    async fn start(&self, new: NewRedrive<'_>, limits: RunningLimits) -> StoreResult<StartOutcome> {
        self.inner.start(new, limits).await
    }

    async fn cancel(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<CancelOutcome> {
        self.inner.cancel(scope, id).await
    }

    async fn advance(&self, limits: StepLimits) -> StoreResult<Option<RedriveStep>> {
        if self.no_redrive {
            return Err(StoreError::Other("a letter that cannot be read".to_owned()));
        }
        self.inner.advance(limits).await
    }

    async fn catch_up(&self, _: StepLimits, _: Option<Duration>) -> StoreResult<Option<RedriveStep>> {
        Err(StoreError::Other("an event that cannot be read".to_owned()))
    }

    async fn put_off_catch_up(&self, wait: Duration) -> StoreResult<()> {
        self.put_off[0].fetch_add(1, Ordering::Relaxed);
        self.inner.put_off_catch_up(wait).await
    }

    async fn put_off_redrive(&self) -> StoreResult<()> {
        self.put_off[1].fetch_add(1, Ordering::Relaxed);
        self.inner.put_off_redrive().await
    }

    async fn running(&self) -> StoreResult<u64> {
        self.inner.running().await
    }
}

fn redriver(store: Arc<dyn RedriveStore>) -> Redriver {
    let (signals, metrics) = (Signals::new(Stage::ALL), Metrics::new());
    Redriver::new(store, DEFAULT_LIMIT, None, signals, metrics, DeliveryLog::All)
}

#[tokio::test]
async fn a_redrive_that_cannot_go_on_lets_others_go_first() {
    let (world, _) = start(Backend::Sqlite).await;
    let store = NoCatchUp::new(&world.stores.redrives, true);
    assert!(redriver(store.clone()).run_once().await.is_err());
    assert_eq!(store.put_off(), [1, 1]);
}

#[tokio::test]
async fn a_subscription_that_cannot_catch_up_holds_up_no_redrive() {
    let capture = Capture::start();
    let (world, new) = start(Backend::Sqlite).await;
    let work = RedriveWork::Events { subscription_id: new, since: Timestamp::from_micros(0), until: None };
    start_redrive(&world.stores, &work).await;
    let store = NoCatchUp::new(&world.stores.redrives, false);
    let redriver = redriver(store.clone());
    let mut passes = 0;
    while world.stores.redrives.running().await.unwrap() > 0 {
        redriver.run_once().await.unwrap();
        passes += 1;
    }
    assert_eq!(store.put_off(), [passes, 0], "each time it lets others go first");
    let of_new = world.deliveries().await.iter().filter(|delivery| delivery.subscription_id == new).count();
    assert_eq!(of_new, OLD + 1);
    let said =
        |line: &Value| line["fields"]["message"] == "a subscription cannot catch up; redrives continue";
    assert_eq!(capture.lines().iter().filter(|line| said(line)).count(), 1);
    assert!(redriver.run_once().await.is_err(), "without other work the error is the pass's");
}
