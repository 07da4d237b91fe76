//! Who gets how many jobs, and how many slots: the allotment at work.

use crate::support::{Pipeline, WORKER, World, claim_limits, event};
use hooksaga_pipeline::{Shutdown, WorkerOptions, random_i64};
use hooksaga_saga::Outcome;
use hooksaga_store::{JobReport, Lease, LeaseRef, LeaseToken, NewEvent, Stage};
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
    let config = WorkerOptions { http_timeout: Duration::from_millis(700), ..WORKER };
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

/// Two copies on one database give an endpoint together what one alone would, as soon as the second knows that nobody was
/// killed before it began.
#[tokio::test]
async fn a_copy_that_starts_counts_what_others_have_open() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.append("a", 3).await;
    let (first, second) = (Pipeline::new(&world), Pipeline::new(&world));
    let open = async || world.stores.reader.gauges().await.unwrap().pending_jobs;
    first.prepare().await;
    assert_eq!(open().await, 3);
    // It starts; then the other copy's worker is heard of.
    second.orchestrator.schedule_once().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1010)).await;
    world.beat().await;
    world.append("a", 10).await;
    second.router.run_once().await.unwrap();
    while second.orchestrator.schedule_once().await.unwrap().did_work() {}
    assert_eq!(open().await, 4, "one that was never tried gets four jobs, whoever creates them");
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
    let batch = world
        .stores
        .worker
        .claim(&claim_limits(slots), token.lasting(Duration::from_secs(60)))
        .await
        .unwrap();
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
    let config = WorkerOptions { concurrency: 16, ..WORKER };
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

/// Sends thirty events to `/quiet`, one every 100 ms, while everything runs: none waits for long, and few notice anything.
async fn assert_quiet_is_quick(world: &World, pipeline: &Pipeline) {
    const EVENTS: usize = 30;
    let shutdown = Shutdown::new();
    let test = async {
        let mut took = Vec::new();
        let before = world.receiver.deliveries("/quiet").len();
        for number in 1..=EVENTS {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let sent = Instant::now();
            world.append("quiet", 1).await;
            pipeline.signals.wake(Stage::Router);
            world.receiver.wait_for("/quiet", before + number, Duration::from_secs(20)).await;
            took.push(sent.elapsed());
        }
        shutdown.trigger();
        took
    };
    let (.., mut took) = tokio::join!(
        pipeline.router.run(&shutdown),
        pipeline.worker.run(&shutdown),
        pipeline.orchestrator.run(&shutdown),
        test
    );
    took.sort_unstable();
    let (median, slowest) = (took[EVENTS / 2], took[EVENTS - 1]);
    assert!(median < Duration::from_millis(100), "{median:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

/// Many endpoints that are known to be quick hang together, each with a backlog: one that answers does not notice.
#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_answered_before_and_hang_together_hold_up_nobody() {
    const ENDPOINTS: usize = 150;
    let world = World::new().await;
    world.subscribe("quiet", "/quiet").await;
    for number in 0..ENDPOINTS {
        world.subscribe("known", &format!("/known/{number}")).await;
    }
    // As many slots as the worker has that the orchestrator has heard of.
    let config = WorkerOptions { concurrency: 512, http_timeout: Duration::from_secs(6), ..WORKER };
    let pipeline = Pipeline::over(&world.stores, &world.key, config);
    for event_type in ["known", "quiet"] {
        world.append(event_type, 1).await;
    }
    while pipeline.router.run_once().await.unwrap().did_work() {}
    for _ in 0..20 {
        turn(&world, &pipeline).await;
    }
    for number in 0..ENDPOINTS {
        let path = format!("/known/{number}");
        assert_eq!(world.receiver.deliveries(&path).len(), 1);
        world.receiver.answer(&path, [Behaviour::Hang]);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.append("known", 20).await;
    while pipeline.router.run_once().await.unwrap().did_work() {}
    assert_quiet_is_quick(&world, &pipeline).await;
}

/// Endpoints that hang, with payloads that are more than a worker may hold.
#[tokio::test(flavor = "multi_thread")]
async fn large_payloads_that_nobody_takes_stop_nobody() {
    const MIB: usize = 1 << 20;
    let world = World::new().await;
    world.subscribe("quiet", "/quiet").await;
    for number in 0..100 {
        world.subscribe(&format!("large{number}"), &format!("/large/{number}")).await;
        world.receiver.answer(&format!("/large/{number}"), [Behaviour::Hang]);
    }
    let config = WorkerOptions { concurrency: 512, http_timeout: Duration::from_secs(6), ..WORKER };
    let pipeline = Pipeline::over(&world.stores, &world.key, config);
    for number in 0..100 {
        let payload = format!("\"{}\"", "x".repeat(MIB)).into();
        let large = NewEvent { payload, ..event(&format!("large{number}"), number) };
        world.stores.ingest.append(&[large]).await.unwrap();
    }
    while pipeline.router.run_once().await.unwrap().did_work() {}
    assert_quiet_is_quick(&world, &pipeline).await;
}
