//! The admission window: how many jobs a subscription may have at a time.

use crate::support::{Pipeline, WORKER, World};
use hooksaga_pipeline::WorkerConfig;
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
