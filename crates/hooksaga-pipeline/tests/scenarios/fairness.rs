//! The admission window: how many jobs a subscription may have at a time.

use crate::support::{Pipeline, WORKER, World};
use hooksaga_pipeline::{WorkerConfig, random_i64};
use hooksaga_saga::Outcome;
use hooksaga_store::{JobReport, Lease, LeaseRef, LeaseToken};
use hooksaga_testkit::receiver::Behaviour;
use std::time::Duration;

/// One turn: schedules, answers how many jobs there are now, and lets them finish.
async fn turn(world: &World, pipeline: &Pipeline) -> u64 {
    pipeline.orchestrator.schedule_once().await.unwrap();
    pipeline.orchestrator.schedule_once().await.unwrap();
    let jobs = world.stores.reader.gauges().await.unwrap().pending_jobs;
    pipeline.worker.run_once().await.unwrap();
    pipeline.orchestrator.apply_once().await.unwrap();
    jobs
}

#[tokio::test]
async fn a_window_doubles_while_results_are_quick_and_halves_when_they_time_out() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.append("a", 100).await;
    let config = WorkerConfig { http_timeout: Duration::from_millis(1500), ..WORKER };
    let pipeline = Pipeline::over(&world.stores, &world.key, config);
    pipeline.router.run_once().await.unwrap();
    for expected in [4, 8, 16] {
        assert_eq!(turn(&world, &pipeline).await, expected);
    }
    world.receiver.answer("/hook", [Behaviour::Hang]);
    assert_eq!(turn(&world, &pipeline).await, 32);
    world.receiver.answer("/hook", [Behaviour::Status(200)]);
    assert_eq!(turn(&world, &pipeline).await, 16, "halved after the timeouts");
}

#[tokio::test]
async fn a_subscription_with_a_backlog_does_not_hold_up_another() {
    let world = World::new().await;
    world.subscribe("busy", "/busy").await;
    world.append("busy", 50).await;
    let pipeline = Pipeline::new(&world);
    pipeline.prepare().await;
    world.subscribe("quiet", "/quiet").await;
    world.append("quiet", 1).await;
    pipeline.prepare().await;
    pipeline.worker.run_once().await.unwrap();
    assert_eq!(world.receiver.deliveries("/quiet").len(), 1);
    assert_eq!(world.receiver.deliveries("/busy").len(), 4);
}

/// Jobs that a worker with so many free slots is now sending; it hears nothing of them until they are reported.
async fn start_sending(world: &World, slots: u32) -> Vec<LeaseRef> {
    let token = LeaseToken(random_i64());
    let batch = world.stores.worker.claim(slots, Duration::from_secs(60), token).await.unwrap();
    batch.jobs.iter().map(Lease::as_ref).collect()
}

async fn answered_quickly(world: &World, jobs: &[LeaseRef]) {
    let report = |lease: &LeaseRef| JobReport {
        lease: *lease,
        outcome: Outcome::Delivered,
        response_status: Some(200),
        duration: Duration::from_millis(3),
        response_excerpt: None,
    };
    let reports: Vec<_> = jobs.iter().map(report).collect();
    assert_eq!(world.stores.worker.report(&reports).await.unwrap().len(), jobs.len());
}

#[tokio::test]
async fn an_endpoint_that_was_quick_and_then_hangs_leaves_room_for_another() {
    /// The default of `worker.concurrency`.
    const SLOTS: u32 = 512;
    let world = World::new().await;
    world.subscribe("busy", "/busy").await;
    for _ in 0..4 {
        world.append("busy", 500).await;
    }
    let pipeline = Pipeline::new(&world);
    while pipeline.router.run_once().await.unwrap().did_work() {}

    // As quick as can be, for longer than its window can grow.
    for _ in 0..8 {
        pipeline.orchestrator.schedule_once().await.unwrap();
        let sent = start_sending(&world, SLOTS).await;
        answered_quickly(&world, &sent).await;
        pipeline.orchestrator.apply_once().await.unwrap();
    }
    // Now it hangs, with plenty left to send.
    while pipeline.orchestrator.schedule_once().await.unwrap().did_work() {}
    let hanging = u32::try_from(start_sending(&world, SLOTS).await.len()).unwrap();
    assert!(hanging >= SLOTS / 2, "a quick endpoint gets many slots, not {hanging}");
    assert!(hanging < SLOTS, "no slot is left to anyone else");
    assert!(world.stores.reader.gauges().await.unwrap().pending_sagas > 0, "the test has enough events");

    world.subscribe("quiet", "/quiet").await;
    world.append("quiet", 1).await;
    let rest = WorkerConfig { concurrency: SLOTS - hanging, ..WORKER };
    let with_the_rest = Pipeline::over(&world.stores, &world.key, rest);
    pipeline.prepare().await;
    with_the_rest.worker.run_once().await.unwrap();
    assert_eq!(world.receiver.deliveries("/quiet").len(), 1);
    assert!(world.receiver.deliveries("/busy").is_empty(), "what waits for the busy one stays in its sagas");
}
