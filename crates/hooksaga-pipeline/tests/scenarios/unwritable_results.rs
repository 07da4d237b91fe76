//! Results that cannot be written while jobs can be claimed, and batches that take too long.

use super::tampered::Tampered;
use crate::support::{Pipeline, WORKER, World};
use async_trait::async_trait;
use hooksaga_pipeline::{Shutdown, WorkerOptions};
use hooksaga_saga::EventId;
use hooksaga_store::{
    Examined, ListedLimits, RouteBatch, RouteLimits, RouterStore, SmallLimits, StoreError, StoreResult,
    Stores,
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const CONFIG: WorkerOptions = WorkerOptions {
    http_timeout: Duration::from_millis(200),
    lease_duration: Duration::from_millis(750),
    ..WORKER
};

/// Runs a worker whose results are refused like this, with a cleaner beside it, until they can be written again. Returns how
/// many requests each of the two times made.
async fn requests_while_unwritable(error: fn() -> StoreError) -> (usize, usize) {
    requests_while_unwritable_after(Duration::ZERO, error).await
}

/// The same where each refusal takes this long.
async fn requests_while_unwritable_after(silence: Duration, error: fn() -> StoreError) -> (usize, usize) {
    const JOBS: usize = 40;
    let world = World::new().await;
    world.subscribe("t", "/in").await;
    world.append("t", JOBS).await;
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    let refusal = move || is_broken.load(Ordering::SeqCst).then(error);
    let worker = Tampered::refusing_after(silence, world.stores.worker.clone(), refusal);
    let stores = Stores { worker, ..world.stores.clone() };
    let pipeline = Pipeline::over(&stores, &world.key, CONFIG);
    pipeline.prepare().await;
    let shutdown = Shutdown::new();
    let cleaning = async {
        while !shutdown.is_triggered() {
            pipeline.cleaner.run_once().await.unwrap();
            pipeline.orchestrator.apply_once().await.unwrap();
            pipeline.orchestrator.schedule_once().await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let watching = async {
        // Time for each job to be sent five times over.
        tokio::time::sleep(Duration::from_secs(4)).await;
        let before = world.receiver.deliveries("/in").len();
        broken.store(false, Ordering::SeqCst);
        while world.statuses().await.iter().any(|status| !status.is_final()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let after = world.receiver.deliveries("/in").len() - before;
        shutdown.trigger();
        (before, after)
    };
    let all = async { tokio::join!(pipeline.worker.run(&shutdown), cleaning, watching).2 };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("it recovers by itself")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_results_are_refused_stops_sending() {
    let (before, _) = requests_while_unwritable(|| StoreError::Denied("no right to write".to_owned())).await;
    // Each job once, and then single probes after one, two and four seconds.
    assert!((1..=40 + 3).contains(&before), "{before} requests");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_results_cannot_be_written_stops_sending() {
    let (before, _) = requests_while_unwritable(|| StoreError::Unwritable("no space left".to_owned())).await;
    assert!((1..=40 + 3).contains(&before), "{before} requests");
}

/// Each try takes a part of the lease's time, and batches are halved meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_results_take_too_long_stops_sending() {
    let (before, _) = requests_while_unwritable(|| StoreError::TimedOut("lock timeout".to_owned())).await;
    assert!((1..=40 + 3).contains(&before), "{before} requests");
}

/// The connection that results are written on is dead: jobs are claimed on another. What was claimed in the first second may
/// be sent again, since its lease ends before.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_results_are_not_answered_stops_sending() {
    let away = || StoreError::Unavailable("no response".to_owned());
    let (before, _) = requests_while_unwritable_after(Duration::from_secs(6), away).await;
    assert!((1..=40 * 2).contains(&before), "{before} requests");
}

/// Takes too long for more than this many sagas at once.
struct Slow {
    inner: Arc<dyn RouterStore>,
    most: u32,
    asked: Mutex<Vec<u32>>,
}

#[async_trait]
impl RouterStore for Slow {
    async fn route(&self, limits: RouteLimits, default_limit: u32) -> StoreResult<RouteBatch> {
        self.asked.lock().unwrap().push(limits.sagas);
        if limits.sagas > self.most {
            return Err(StoreError::TimedOut("canceling statement due to statement timeout".to_owned()));
        }
        self.inner.route(limits, default_limit).await
    }

    async fn queued(&self, after: EventId, limit: u32) -> StoreResult<Vec<EventId>> {
        self.inner.queued(after, limit).await
    }

    async fn route_small(&self, events: &[EventId], limits: SmallLimits) -> StoreResult<Examined> {
        self.inner.route_small(events, limits).await
    }

    async fn route_listed(&self, events: &[EventId], limits: ListedLimits) -> StoreResult<RouteBatch> {
        self.inner.route_listed(events, limits).await
    }
}

#[tokio::test]
async fn routing_that_takes_too_long_is_halved_until_it_gets_through() {
    let world = World::new().await;
    world.subscribe("t", "/in").await;
    world.append("t", 200).await;
    let slow = Arc::new(Slow { inner: world.stores.router.clone(), most: 60, asked: Mutex::default() });
    let stores = Stores { router: slow.clone(), ..world.stores.clone() };
    let pipeline = Pipeline::over(&stores, &world.key, WORKER);
    for _ in 0..30 {
        // As a driver does: an error is met with the next pass.
        let _ = pipeline.router.run_once().await;
    }
    let asked = slow.asked.lock().unwrap().clone();
    assert_eq!(asked[..7], [2000, 1000, 500, 250, 125, 62, 31], "{asked:?}");
    assert_eq!(world.stores.reader.gauges().await.unwrap().unrouted_events, 0);
    assert_eq!(world.deliveries().await.len(), 200);
}
