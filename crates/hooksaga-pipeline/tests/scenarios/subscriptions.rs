//! Subscriptions that are paused, resumed, moved.

use crate::support::{Pipeline, World};
use hooksaga_saga::{JobStatus, SagaStatus};
use hooksaga_store::SubscriptionPatch;
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
async fn a_job_of_a_paused_subscription_is_handed_back_and_goes_on_later() {
    let world = World::new().await;
    let id = world.subscribe("a", "/hook").await;
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.prepare().await;
    world.set_active(id, false).await;
    let handed_back = Instant::now();
    assert!(pipeline.worker.run_once().await.unwrap().did_work());

    let detail = world.delivery().await;
    assert_eq!((detail.delivery.status, detail.delivery.attempt_count), (SagaStatus::InProgress, 0));
    assert!(detail.delivery.held);
    assert_eq!((detail.attempts[0].status, detail.attempts[0].lease_resets), (JobStatus::Pending, 0));

    world.set_active(id, true).await;
    while !pipeline.worker.run_once().await.unwrap().did_work() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(handed_back.elapsed() < Duration::from_secs(30), "the job never came back");
    }
    assert!(handed_back.elapsed() >= Duration::from_secs(4), "it came back at once");
    pipeline.settle().await;
    assert_eq!(world.delivery().await.delivery.status, SagaStatus::Completed);
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

    let url = world.receiver.url("/new");
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
