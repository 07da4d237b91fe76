//! A whole pipeline on a fresh database and a loopback receiver, driven pass by pass.

pub(crate) mod backend;
pub(crate) mod capture;

use backend::{Backend, Database};
use hooksaga_pipeline::{
    Cleaner, DeadLetters, DeliveryClient, DeliveryLog, EgressPolicy, Ingest, IngestLimits, Metrics,
    NewSecrets, Orchestrator, Progress, Router, SecretKey, Signals, SigningSecret, Verifier, Worker,
    WorkerOptions,
};
use hooksaga_saga::{CallbackUrl, RequestHeaders, RetryPolicy, SagaStatus, SubscriptionId, Tenant};
use hooksaga_store::{
    Appended, ClaimLimits, CreateOutcome, Delivery, DeliveryDetail, DeliveryFilter, LeaseRef, LeaseToken,
    NewEvent, NewSubscription, PageRequest, Stage, StoreResult, Stores, SubscriptionPatch, TenantScope,
    UpdateOutcome, WorkerBeat,
};
use hooksaga_testkit::receiver::Receiver;
use std::{sync::Arc, time::Duration};

pub(crate) const DEFAULT_LIMIT: u32 = 5;

pub(crate) const ALL: TenantScope = TenantScope::All;

pub(crate) const PAGE: PageRequest = PageRequest { limit: 500, before: None };

/// Retries without a wait worth mentioning.
pub(crate) const POLICY: RetryPolicy =
    RetryPolicy { base_delay: Duration::from_millis(1), max_delay: Duration::from_millis(4) };

pub(crate) const WORKER: WorkerOptions = WorkerOptions {
    concurrency: 64,
    http_timeout: Duration::from_secs(5),
    lease_duration: Duration::from_secs(60),
};

/// A database, a receiver, and the keys between them.
pub(crate) struct World {
    pub(crate) stores: Stores,
    pub(crate) receiver: Receiver,
    pub(crate) key: Arc<SecretKey>,
    pub(crate) database: Database,
}

impl World {
    /// On the embedded database.
    pub(crate) async fn new() -> Self {
        Self::on(Backend::Sqlite).await
    }

    pub(crate) async fn on(backend: Backend) -> Self {
        capture::install();
        let database = Database::new(backend).await;
        let world = Self {
            stores: database.stores.clone(),
            receiver: Receiver::start().await,
            key: Arc::new(SecretKey::generate()),
            database,
        };
        world.beat().await;
        world
    }

    /// A worker of 512 slots says that it is alive.
    pub(crate) async fn beat(&self) {
        let beat = WorkerBeat { worker_id: 1, slots: 512, version: String::from("test") };
        self.stores.worker.heartbeat(&beat).await.unwrap();
    }

    /// Removes its database.
    pub(crate) async fn end(self) {
        let Self { stores, database, .. } = self;
        drop(stores);
        database.remove().await;
    }

    /// A verified subscription to `event_type` at `path` of the receiver.
    pub(crate) async fn subscribe(&self, event_type: &str, path: &str) -> SubscriptionId {
        self.subscribe_with(event_type, path, None).await
    }

    pub(crate) async fn subscribe_with(
        &self,
        event_type: &str,
        path: &str,
        max_retry_limit: Option<u32>,
    ) -> SubscriptionId {
        self.subscribe_as(Tenant::default(), event_type, path, max_retry_limit).await
    }

    pub(crate) async fn subscribe_as(
        &self,
        tenant: Tenant,
        event_type: &str,
        path: &str,
        max_retry_limit: Option<u32>,
    ) -> SubscriptionId {
        let new = NewSubscription {
            tenant,
            topics: event_type.parse().unwrap(),
            callback_url: self.url(path),
            description: None,
            active: true,
            max_retry_limit,
            rate_limit: None,
            headers: None,
        };
        let secrets = NewSecrets::new(&self.key, &SigningSecret::generate(), RequestHeaders::default());
        let created = self.stores.admin.create(&new, &secrets).await.unwrap();
        let CreateOutcome::Created(subscription) = created else { panic!("{created:?}") };
        self.verify().await;
        subscription.id
    }

    /// A URL of the receiver, as a subscription has it.
    pub(crate) fn url(&self, path: &str) -> CallbackUrl {
        CallbackUrl::parse(&self.receiver.url(path), true).unwrap()
    }

    /// Lets every subscription that waits for it prove itself.
    pub(crate) async fn verify(&self) {
        let (stores, signals) = (&self.stores, Signals::new(Stage::ALL));
        let verifier =
            Verifier::new(stores.verifier.clone(), client(), self.key.clone(), signals, Metrics::new());
        verifier.run_once().await.unwrap();
    }

    pub(crate) async fn patch(&self, id: SubscriptionId, patch: SubscriptionPatch) {
        let outcome = self.stores.admin.update(&ALL, id, &patch).await.unwrap();
        assert!(matches!(outcome, UpdateOutcome::Updated(_)), "{outcome:?}");
    }

    pub(crate) async fn set_active(&self, id: SubscriptionId, active: bool) {
        self.patch(id, SubscriptionPatch { active: Some(active), ..SubscriptionPatch::default() }).await;
    }

    pub(crate) async fn append(&self, event_type: &str, count: usize) -> Vec<Appended> {
        let events: Vec<_> = (0..count).map(|number| event(event_type, number)).collect();
        self.stores.ingest.append(&events).await.unwrap()
    }

    /// Every delivery, oldest first.
    pub(crate) async fn deliveries(&self) -> Vec<Delivery> {
        let mut page =
            self.stores.reader.deliveries(PAGE.of(&ALL, &DeliveryFilter::default())).await.unwrap();
        assert_eq!(page.next, None, "the test's deliveries fit on one page");
        page.items.reverse();
        page.items
    }

    /// The one delivery there is.
    pub(crate) async fn delivery(&self) -> DeliveryDetail {
        let deliveries = self.deliveries().await;
        let [delivery] = deliveries.as_slice() else { panic!("not one delivery: {deliveries:?}") };
        self.stores.reader.delivery(&ALL, delivery.saga_id).await.unwrap().unwrap()
    }

    pub(crate) async fn statuses(&self) -> Vec<SagaStatus> {
        self.deliveries().await.iter().map(|delivery| delivery.status).collect()
    }

    /// A worker that claims a job and is never heard of again; its lease is over at once.
    pub(crate) async fn claim_and_die(&self) -> LeaseRef {
        let token = LeaseToken(hooksaga_pipeline::random_i64());
        let batch = self
            .stores
            .worker
            .claim(&claim_limits(1), token.lasting(Duration::from_micros(1)))
            .await
            .unwrap();
        let [lease] = batch.jobs.as_slice() else { panic!("not one job: {batch:?}") };
        lease.as_ref()
    }
}

pub(crate) fn claim_limits(jobs: u32) -> ClaimLimits {
    ClaimLimits { jobs, payload_bytes: u64::MAX, skip: Vec::new() }
}

/// One of each component.
pub(crate) struct Pipeline {
    pub(crate) router: Router,
    pub(crate) orchestrator: Orchestrator,
    pub(crate) worker: Worker,
    pub(crate) cleaner: Cleaner,
    pub(crate) dead_letters: DeadLetters,
    pub(crate) signals: Signals,
    pub(crate) metrics: Arc<Metrics>,
}

impl Pipeline {
    pub(crate) fn new(world: &World) -> Self {
        Self::over(&world.stores, &world.key, WORKER)
    }

    /// With another policy of retries.
    pub(crate) fn with_policy(world: &World, policy: RetryPolicy) -> Self {
        let pipeline = Self::new(world);
        let (signals, metrics) = (pipeline.signals.clone(), pipeline.metrics.clone());
        let store = world.stores.orchestrator.clone();
        let orchestrator = Orchestrator::new(store, policy, signals, metrics, DeliveryLog::All);
        Self { orchestrator, ..pipeline }
    }

    /// Over these stores, which need not be the world's own.
    pub(crate) fn over(stores: &Stores, key: &Arc<SecretKey>, config: WorkerOptions) -> Self {
        let (signals, metrics, log) = (Signals::new(Stage::ALL), Metrics::new(), DeliveryLog::All);
        let parts = || (signals.clone(), metrics.clone());
        let (s, m) = parts();
        let router = Router::new(stores.router.clone(), DEFAULT_LIMIT, s, m, log);
        let (s, m) = parts();
        let orchestrator = Orchestrator::new(stores.orchestrator.clone(), POLICY, s, m, log);
        let (s, m) = parts();
        let worker = Worker::new(stores.worker.clone(), client(), key.clone(), config, s, m, log);
        let (s, m) = parts();
        let cleaner =
            Cleaner::new(stores.cleaner.clone(), Duration::from_secs(5), Duration::from_secs(60), s, m, log);
        let (s, m) = parts();
        let dead_letters = DeadLetters::new(stores.dead_letters.clone(), s, m, log);
        Self { router, orchestrator, worker, cleaner, dead_letters, signals, metrics }
    }

    /// Routes and schedules what waits: every delivery that may start has its job.
    pub(crate) async fn prepare(&self) {
        self.router.run_once().await.unwrap();
        self.orchestrator.schedule_once().await.unwrap();
    }

    /// Passes of every component until nothing is left that can be done now or within milliseconds.
    pub(crate) async fn settle(&self) {
        // Whatever a test did outside the pipeline: somebody would have said so.
        self.signals.wake(Stage::Schedule);
        for _ in 0..1000 {
            match self.round().await.unwrap() {
                Progress::Worked | Progress::Drained { .. } => {}
                // The wait for a retry's time, by the database's clock.
                Progress::Idle { until: Some(until) } => tokio::time::sleep(until).await,
                Progress::Idle { until: None } => return,
            }
        }
        panic!("the pipeline does not come to rest");
    }

    /// One pass of every component, in the order of a delivery's life.
    pub(crate) async fn round(&self) -> StoreResult<Progress> {
        let routed = self.router.run_once().await?;
        let scheduled = self.orchestrator.schedule_once().await?;
        self.worker.unpark_once().await?;
        let sent = self.worker.run_once().await?;
        let applied = self.orchestrator.apply_once().await?;
        let buried = self.dead_letters.run_once().await?;
        let cleaned = self.cleaner.run_once().await?;
        let worked = [routed, scheduled, sent, applied, buried, cleaned].into_iter().any(Progress::did_work);
        Ok(if worked { Progress::Worked } else { scheduled })
    }
}

/// A client that may call loopback.
pub(crate) fn client() -> DeliveryClient {
    DeliveryClient::new(loopback(), None).unwrap()
}

/// http, and loopback.
pub(crate) fn loopback() -> EgressPolicy {
    let allow_networks = ["127.0.0.0/8", "::1/128"].map(|network| network.parse().unwrap()).to_vec();
    EgressPolicy { allow_http: true, allow_networks, ..EgressPolicy::default() }
}

/// Ingestion over these stores; its task ends with the handle.
pub(crate) fn ingest(stores: &Stores) -> Ingest {
    let (signals, metrics) = (Signals::new(Stage::ALL), Metrics::new());
    let (ingest, task) =
        Ingest::start(stores.ingest.clone(), signals, metrics, IngestLimits::default(), DeliveryLog::All);
    tokio::spawn(task.run());
    ingest
}

pub(crate) fn event(event_type: &str, number: usize) -> NewEvent {
    NewEvent {
        tenant: Tenant::default(),
        event_type: event_type.parse().unwrap(),
        payload: format!(r#"{{ "number":  {number} }}"#).into(),
        external_id: None,
        correlation_id: format!("trace-{number}").parse().unwrap(),
    }
}
