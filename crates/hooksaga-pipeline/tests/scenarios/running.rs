//! The components as they run in a server: woken, concurrent, stopped.

use super::tampered::Tampered;
use crate::support::{DEFAULT_LIMIT, POLICY, Pipeline, WORKER, World, event};
use hooksaga_pipeline::{DeliveryLog, Ingest, IngestLimits, Shutdown, WorkerOptions};
use hooksaga_saga::SagaStatus;
use hooksaga_testkit::receiver::Behaviour;
use std::time::{Duration, Instant};

/// Runs everything while `test` does.
async fn run_during(pipeline: &Pipeline, test: impl Future<Output = ()>) {
    let shutdown = Shutdown::new();
    let stop_after = async {
        test.await;
        shutdown.trigger();
    };
    tokio::join!(
        pipeline.router.run(&shutdown),
        pipeline.orchestrator.run(&shutdown),
        pipeline.worker.run(&shutdown),
        pipeline.cleaner.run(&shutdown),
        pipeline.dead_letters.run(&shutdown),
        stop_after,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_submitted_at_once_is_delivered_once_with_few_slots() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    let config = WorkerOptions { concurrency: 7, ..WORKER };
    let pipeline = Pipeline::over(&world.stores, &world.key, config);
    let (ingest, task) = Ingest::start(
        world.stores.ingest.clone(),
        pipeline.signals.clone(),
        pipeline.metrics.clone(),
        IngestLimits::default(),
        DeliveryLog::All,
    );
    let ingesting = tokio::spawn(task.run());
    run_during(&pipeline, async {
        let submits: Vec<_> = (0..300)
            .map(|number| {
                let ingest = ingest.clone();
                tokio::spawn(async move { ingest.submit(vec![event("a", number)]).await.unwrap() })
            })
            .collect();
        for submit in submits {
            submit.await.unwrap();
        }
        world.receiver.wait_for("/hook", 300, Duration::from_secs(60)).await;
    })
    .await;
    drop(ingest);
    ingesting.await.unwrap();
    pipeline.settle().await;
    assert_eq!(world.statuses().await, [SagaStatus::Completed; 300]);
    assert_eq!(world.receiver.deliveries("/hook").len(), 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_start_on_time_without_anyone_asking() {
    let world = World::new().await;
    world.subscribe_with("a", "/hook", Some(DEFAULT_LIMIT)).await;
    let limit = DEFAULT_LIMIT as usize;
    world.receiver.answer("/hook", [Behaviour::Status(500)]);
    let pipeline = Pipeline::new(&world);
    let took = Instant::now();
    run_during(&pipeline, async {
        world.append("a", 1).await;
        pipeline.signals.wake(hooksaga_store::Stage::Router);
        world.receiver.wait_for("/hook", limit, Duration::from_secs(30)).await;
    })
    .await;
    // Polls alone would take 50 ms or more for each of the five steps of each retry.
    let polled = Duration::from_millis(50) * 5 * DEFAULT_LIMIT;
    assert!(took.elapsed() < polled, "{limit} attempts {POLICY:?} took {:?}", took.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_write_results_any_more_ends_and_sends_nothing_more() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.append("a", 1).await;
    let mut stores = world.stores.clone();
    stores.worker = Tampered::refusing(stores.worker, || panic!("as told"));
    let pipeline = Pipeline::over(&stores, &world.key, WORKER);
    pipeline.prepare().await;
    let never = Shutdown::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), pipeline.worker.run(&never)).await;
    assert!(ended.is_ok(), "it runs on, and its results are lost");
    assert_eq!(world.receiver.deliveries("/hook").len(), 1);
}
