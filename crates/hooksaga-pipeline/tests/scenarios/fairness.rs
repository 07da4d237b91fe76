//! Who gets how many jobs, and how many slots: the allotment at work.

use crate::support::{Pipeline, WORKER, World, claim_limits};
use hooksaga_pipeline::{Shutdown, WorkerConfig, random_i64};
use hooksaga_saga::Outcome;
use hooksaga_store::{JobReport, Lease, LeaseRef, LeaseToken, Stage};
use hooksaga_testkit::receiver::Behaviour;
use std::time::Duration;
use tokio::time::Instant;

/// One turn: schedules, lets all jobs finish, and returns how many there were.
async fn turn(world: &World, pipeline: &Pipeline) -> u64 {
    while pipeline.orchestrator.schedule_once().await.unwrap().did_work() {}
    let jobs = world.stores.reader.gauges().await.unwrap().pending_jobs;
    pipeline.worker.run_once().await.unwrap();
    pipeline.orchestrator.apply_once().await.unwrap();
    jobs
}

#[tokio::test]
async fn an_endpoint_is_given_more_while_it_is_quick_and_a_few_when_it_hangs() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.append("a", 200).await;
    let config = WorkerConfig { http_timeout: Duration::from_millis(700), ..WORKER };
    let pipeline = Pipeline::over(&world.stores, &world.key, config);
    pipeline.router.run_once().await.unwrap();
    let mut last = 0;
    for _ in 0..4 {
        let jobs = turn(&world, &pipeline).await;
        assert!(jobs > last, "{jobs} after {last}");
        last = jobs;
    }
    assert!(last >= 16, "{last}");
    world.receiver.answer("/hook", [Behaviour::Hang]);
    turn(&world, &pipeline).await;
    assert!(turn(&world, &pipeline).await <= 8, "it hangs, and holds few slots");
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
    assert_eq!(world.receiver.deliveries("/busy").len(), 4, "it never answered before");
}

/// Jobs that a worker with this many free slots is now sending; none of them has been reported.
async fn start_sending(world: &World, slots: u32) -> Vec<LeaseRef> {
    let token = LeaseToken(random_i64());
    let batch =
        world.stores.worker.claim(&claim_limits(slots), Duration::from_secs(60), token).await.unwrap();
    batch.jobs.iter().map(Lease::as_ref).collect()
}

async fn answered_quickly(world: &World, jobs: &[LeaseRef]) {
    let report = |lease: &LeaseRef| JobReport {
        lease: *lease,
        outcome: Outcome::Delivered,
        started_at: None,
        callback_url: None,
        response_status: Some(200),
        retry_at: None,
        duration: Duration::from_millis(3),
        response_excerpt: None,
    };
    let reports: Vec<_> = jobs.iter().map(report).collect();
    assert_eq!(world.stores.worker.report(&reports).await.unwrap().len(), jobs.len());
}

#[tokio::test]
async fn a_lone_quick_endpoint_can_use_every_slot() {
    const SLOTS: u32 = 512;
    let world = World::new().await;
    world.subscribe("busy", "/busy").await;
    for _ in 0..8 {
        world.append("busy", 500).await;
    }
    let pipeline = Pipeline::new(&world);
    while pipeline.router.run_once().await.unwrap().did_work() {}
    let mut most = 0;
    for _ in 0..9 {
        while pipeline.orchestrator.schedule_once().await.unwrap().did_work() {}
        let sent = start_sending(&world, SLOTS).await;
        most = most.max(sent.len());
        answered_quickly(&world, &sent).await;
        while pipeline.orchestrator.apply_once().await.unwrap().did_work() {}
    }
    assert_eq!(most, SLOTS as usize);
}

/// A worker with few slots, and a subscription that holds them: others get through all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_was_quick_and_then_hangs_leaves_slots_for_another() {
    let world = World::new().await;
    world.subscribe("busy", "/busy").await;
    world.subscribe("quiet", "/quiet").await;
    let config = WorkerConfig { concurrency: 16, ..WORKER };
    let pipeline = Pipeline::over(&world.stores, &world.key, config);
    world.append("busy", 400).await;
    while pipeline.router.run_once().await.unwrap().did_work() {}
    // Quick for a while, so that many of its jobs are open when it begins to hang.
    for _ in 0..5 {
        turn(&world, &pipeline).await;
    }
    while pipeline.orchestrator.schedule_once().await.unwrap().did_work() {}
    let open = world.stores.reader.gauges().await.unwrap().pending_jobs;
    assert!(open > 16, "the test needs more open jobs than slots, not {open}");
    world.receiver.answer("/busy", [Behaviour::Hang]);

    let shutdown = Shutdown::new();
    let test = async {
        // Its jobs are claimed before the other's exist.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let sent = Instant::now();
        world.append("quiet", 1).await;
        pipeline.signals.wake(Stage::Router);
        world.receiver.wait_for("/quiet", 1, Duration::from_secs(20)).await;
        assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
        world.receiver.answer("/busy", [Behaviour::Status(200)]);
        shutdown.trigger();
    };
    tokio::join!(
        pipeline.router.run(&shutdown),
        pipeline.worker.run(&shutdown),
        pipeline.orchestrator.run(&shutdown),
        test
    );
}
