//! Subscriptions that are paused, resumed, moved.

use crate::support::{Pipeline, World};
use hooksaga_pipeline::Shutdown;
use hooksaga_saga::{JobStatus, SagaStatus};
use hooksaga_store::{Stage, SubscriptionPatch};
use hooksaga_testkit::receiver::Behaviour;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test]
async fn a_paused_subscription_gets_no_sagas_and_its_open_ones_wait() {
    let world = World::new().await;
    let id = world.subscribe("a", "/hook").await;
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.router.run_once().await.unwrap();
    world.set_active(id, false).await;
    world.append("a", 1).await;
    pipeline.settle().await;

    let held = world.delivery().await.delivery;
    assert_eq!((held.status, held.held), (SagaStatus::Pending, true));
    assert_eq!(world.receiver.deliveries("/hook").len(), 0);

    world.set_active(id, true).await;
    pipeline.settle().await;
    let delivered = world.delivery().await.delivery;
    assert_eq!((delivered.status, delivered.held), (SagaStatus::Completed, false));
}

#[tokio::test]
async fn a_job_of_a_paused_subscription_is_parked_once_and_goes_on_when_it_resumes() {
    let world = World::new().await;
    let id = world.subscribe("a", "/hook").await;
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.prepare().await;
    world.set_active(id, false).await;
    assert!(pipeline.worker.run_once().await.unwrap().did_work());

    let detail = world.delivery().await;
    assert_eq!((detail.delivery.status, detail.delivery.attempt_count), (SagaStatus::InProgress, 0));
    assert!(detail.delivery.held);
    assert_eq!((detail.attempts[0].status, detail.attempts[0].lease_resets), (JobStatus::Pending, 0));
    assert_eq!(pipeline.worker.unpark_once().await.unwrap(), 0, "it is still paused");
    assert!(!pipeline.worker.run_once().await.unwrap().did_work(), "a parked job is not claimed");

    world.set_active(id, true).await;
    assert_eq!(pipeline.worker.unpark_once().await.unwrap(), 1);
    pipeline.settle().await;
    assert_eq!(world.delivery().await.delivery.status, SagaStatus::Completed);
    assert_eq!(world.receiver.deliveries("/hook").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_subscription_costs_nothing_and_resumes_within_a_second() {
    let world = World::new().await;
    let id = world.subscribe("a", "/hook").await;
    world.append("a", 20).await;
    let pipeline = Pipeline::new(&world);
    pipeline.prepare().await;
    world.set_active(id, false).await;
    let shutdown = Shutdown::new();
    let test = async {
        while pipeline.metrics.encode(&Default::default()).contains("hooksaga_jobs_handed_back_total 0") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let parked = handed_back(&pipeline);
        // Longer than the look that follows a parking.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(handed_back(&pipeline), parked, "parked jobs are claimed and handed back");
        assert_eq!(world.receiver.deliveries("/hook").len(), 0);
        world.set_active(id, true).await;
        let resumed = Instant::now();
        pipeline.signals.wake(Stage::Resume);
        pipeline.signals.wake(Stage::Schedule);
        world.receiver.wait_for("/hook", 20, Duration::from_secs(20)).await;
        assert!(resumed.elapsed() < Duration::from_secs(1), "{:?}", resumed.elapsed());
        shutdown.trigger();
    };
    tokio::join!(pipeline.worker.run(&shutdown), pipeline.orchestrator.run(&shutdown), test);
}

fn handed_back(pipeline: &Pipeline) -> String {
    let metrics = pipeline.metrics.encode(&Default::default());
    metrics.lines().find(|line| line.starts_with("hooksaga_jobs_handed_back_total")).unwrap().to_owned()
}

#[tokio::test]
async fn each_attempt_goes_to_the_url_of_its_time() {
    let world = World::new().await;
    let id = world.subscribe("a", "/old").await;
    world.receiver.answer("/old", [Behaviour::Status(500)]);
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.prepare().await;
    pipeline.worker.run_once().await.unwrap();
    pipeline.orchestrator.apply_once().await.unwrap();
    assert_eq!(world.statuses().await, [SagaStatus::PendingRetry]);

    let url = world.url("/new");
    world.patch(id, SubscriptionPatch { callback_url: Some(url), ..SubscriptionPatch::default() }).await;
    pipeline.settle().await;
    assert!(world.delivery().await.delivery.held, "the new URL is not verified yet");

    world.verify().await;
    pipeline.settle().await;
    assert_eq!(world.receiver.deliveries("/old").len(), 1);
    assert_eq!(world.receiver.deliveries("/new").len(), 1);
    let delivery = world.delivery().await.delivery;
    assert_eq!((delivery.status, delivery.attempt_count), (SagaStatus::Completed, 2));
}
