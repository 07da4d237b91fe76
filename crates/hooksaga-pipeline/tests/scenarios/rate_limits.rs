//! Rate limits, as endpoints see them.

use super::tampered::Tampered;
use crate::support::{Pipeline, WORKER, World};
use hooksaga_pipeline::Shutdown;
use hooksaga_store::{Stores, SubscriptionPatch};
use std::time::{Duration, Instant};

const RATE: u32 = 20;
const EVENTS: usize = 50;

/// Half a second's decisions reach the worker at once, and those after them in time.
#[tokio::test(flavor = "multi_thread")]
async fn starts_that_were_counted_in_time_and_committed_late_keep_the_limit() {
    let world = World::new().await;
    let id = world.subscribe("t", "/in").await;
    let patch = SubscriptionPatch { rate_limit: Some(Some(RATE)), ..SubscriptionPatch::default() };
    world.patch(id, patch).await;
    world.append("t", EVENTS).await;
    let late = Instant::now() + Duration::from_millis(500);
    let worker = Tampered::deciding_late(world.stores.worker.clone(), late);
    let stores = Stores { worker, ..world.stores.clone() };
    let pipeline = Pipeline::over(&stores, &world.key, WORKER);
    pipeline.prepare().await;
    let shutdown = Shutdown::new();
    let test = async {
        world.receiver.wait_for("/in", EVENTS, Duration::from_secs(30)).await;
        shutdown.trigger();
    };
    tokio::join!(pipeline.worker.run(&shutdown), pipeline.orchestrator.run(&shutdown), test);

    let times: Vec<Instant> = world.receiver.deliveries("/in").iter().map(|arrival| arrival.at).collect();
    assert!(times.iter().all(|at| *at >= late));
    let in_a_second = |first: usize| {
        times[first..]
            .iter()
            .take_while(|at| at.duration_since(times[first]) < Duration::from_secs(1))
            .count()
    };
    let most = (0..times.len()).map(in_a_second).max().unwrap();
    assert!(most <= 22, "{most} in a second");
}
