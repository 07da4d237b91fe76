//! Workers that die, come late, stop, or meet a database that is away.

use crate::support::{Pipeline, WORKER, World};
use hooksaga_pipeline::{SecretKey, Shutdown, WorkerOptions};
use hooksaga_saga::{ErrorCode, JobStatus, Outcome, SagaStatus};
use hooksaga_store::{JobReport, LeaseRef};
use hooksaga_testkit::receiver::Behaviour;
use std::{sync::Arc, time::Duration};

fn delivered(lease: LeaseRef) -> JobReport {
    JobReport {
        lease,
        outcome: Outcome::Delivered,
        started_at: None,
        callback_url: None,
        response_status: Some(200),
        retry_at: None,
        duration: Duration::from_millis(1),
        response_excerpt: None,
    }
}

/// Runs the cleaner until the one expired lease, which ends within a microsecond, is reset.
async fn reset_one(pipeline: &Pipeline) {
    while !pipeline.cleaner.run_once().await.unwrap().did_work() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_worker_that_dies_before_it_reports_is_replaced_and_cannot_come_back() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.prepare().await;
    let dead = world.claim_and_die().await;
    assert!(!pipeline.worker.run_once().await.unwrap().did_work(), "the job is leased");
    reset_one(&pipeline).await;

    assert_eq!(world.stores.worker.report(&[delivered(dead)]).await.unwrap(), [], "its lease is over");
    pipeline.settle().await;
    assert_eq!(world.receiver.deliveries("/hook").len(), 1);
    assert_eq!(world.stores.worker.report(&[delivered(dead)]).await.unwrap(), []);
    let detail = world.delivery().await;
    assert_eq!((detail.delivery.status, detail.delivery.attempt_count), (SagaStatus::Completed, 1));
    assert_eq!(detail.attempts.len(), 1);
    assert_eq!(detail.attempts[0].lease_resets, 1);
}

#[tokio::test]
async fn a_job_that_outlives_every_worker_fails_unsent() {
    let world = World::new().await;
    world.subscribe_with("a", "/hook", Some(1)).await;
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.prepare().await;
    for _ in 0..6 {
        world.claim_and_die().await;
        reset_one(&pipeline).await;
    }
    pipeline.settle().await;
    assert_eq!(world.receiver.deliveries("/hook").len(), 0);
    let detail = world.delivery().await;
    assert_eq!(detail.delivery.status, SagaStatus::DeadLettered);
    assert_eq!(detail.delivery.final_error_code, Some(ErrorCode::LEASE_EXHAUSTED));
    assert_eq!((detail.attempts[0].status, detail.attempts[0].lease_resets), (JobStatus::Failed, 6));
    assert_eq!(
        (detail.attempts[0].started_at, &detail.attempts[0].callback_url),
        (None, &None),
        "it was not sent"
    );
}

#[tokio::test]
async fn five_resets_are_not_too_many() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.prepare().await;
    for _ in 0..5 {
        world.claim_and_die().await;
        reset_one(&pipeline).await;
    }
    pipeline.settle().await;
    assert_eq!(world.statuses().await, [SagaStatus::Completed]);
}

#[tokio::test]
async fn no_post_starts_that_might_outlive_its_lease() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.append("a", 1).await;
    let config = WorkerOptions {
        http_timeout: Duration::from_secs(5),
        // What remains after the POST is less than its result may need.
        lease_duration: Duration::from_millis(5200),
        ..WORKER
    };
    let pipeline = Pipeline::over(&world.stores, &world.key, config);
    pipeline.prepare().await;
    assert!(pipeline.worker.run_once().await.unwrap().did_work());
    assert_eq!(world.receiver.deliveries("/hook").len(), 0);
    let detail = world.delivery().await;
    assert_eq!((detail.attempts[0].status, detail.attempts[0].lease_resets), (JobStatus::Pending, 0));
    assert!(!pipeline.worker.run_once().await.unwrap().did_work(), "it waits a moment, and does not spin");
}

#[tokio::test]
async fn secrets_that_cannot_be_opened_fail_the_attempt() {
    let world = World::new().await;
    world.subscribe_with("a", "/hook", Some(1)).await;
    world.append("a", 2).await;
    let other_key = Arc::new(SecretKey::generate());
    let pipeline = Pipeline::over(&world.stores, &other_key, WORKER);
    pipeline.settle().await;
    assert_eq!(world.receiver.deliveries("/hook").len(), 0);
    for delivery in world.deliveries().await {
        assert_eq!(delivery.final_error_code, Some(ErrorCode::INTERNAL));
    }
}

#[tokio::test]
async fn jobs_not_started_when_the_order_to_stop_comes_are_free_at_once() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.append("a", 4).await;
    let pipeline = Pipeline::new(&world);
    pipeline.prepare().await;
    let shutdown = Shutdown::new();
    shutdown.trigger();
    assert!(pipeline.worker.run_once_until(&shutdown).await.unwrap().did_work());
    assert_eq!(world.receiver.deliveries("/hook").len(), 0);
    let gauges = world.stores.reader.gauges().await.unwrap();
    assert_eq!((gauges.pending_jobs, gauges.leased_jobs), (4, 0));
    pipeline.settle().await;
    assert_eq!(world.statuses().await, [SagaStatus::Completed; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_worker_finishes_and_reports_what_is_in_flight() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.receiver.answer("/hook", [Behaviour::Slow(Duration::from_millis(300), 200)]);
    world.append("a", 4).await;
    let pipeline = Pipeline::new(&world);
    pipeline.prepare().await;
    let shutdown = Shutdown::new();
    let stop = async {
        world.receiver.wait_for("/hook", 1, Duration::from_secs(10)).await;
        shutdown.trigger();
    };
    tokio::join!(pipeline.worker.run(&shutdown), stop);
    let gauges = world.stores.reader.gauges().await.unwrap();
    let sent = world.receiver.deliveries("/hook").len() as u64;
    assert!(sent >= 1);
    assert_eq!((gauges.leased_jobs, gauges.finished_jobs, gauges.pending_jobs), (0, sent, 4 - sent));
}
