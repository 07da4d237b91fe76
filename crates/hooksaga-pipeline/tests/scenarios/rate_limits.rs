//! Rate limits, as endpoints see them.

use super::tampered::Tampered;
use crate::support::{Pipeline, WORKER, World};
use hooksaga_pipeline::Shutdown;
use hooksaga_store::{Stores, SubscriptionPatch};
use std::time::{Duration, Instant};

const RATE: u32 = 40;
const EVENTS: usize = 90;

/// A second's decisions reach the worker at once, and those after them in time.
#[tokio::test(flavor = "multi_thread")]
async fn starts_that_were_counted_in_time_and_committed_late_keep_the_limit() {
    let world = World::new().await;
    let id = world.subscribe("t", "/in").await;
    let worker = Tampered::deciding_late(world.stores.worker.clone(), Duration::from_secs(1));
    let stores = Stores { worker, ..world.stores.clone() };
    let pipeline = Pipeline::over(&stores, &world.key, WORKER);
    let shutdown = Shutdown::new();
    let test = async {
        // What is delivered first widens the window.
        world.append("t", EVENTS).await;
        pipeline.router.run_once().await.unwrap();
        world.receiver.wait_for("/in", EVENTS, Duration::from_secs(30)).await;
        let patch = SubscriptionPatch { rate_limit: Some(Some(RATE)), ..SubscriptionPatch::default() };
        world.patch(id, patch).await;
        world.append("t", EVENTS).await;
        pipeline.router.run_once().await.unwrap();
        world.receiver.wait_for("/in", 2 * EVENTS, Duration::from_secs(30)).await;
        shutdown.trigger();
    };
    tokio::join!(pipeline.worker.run(&shutdown), pipeline.orchestrator.run(&shutdown), test);

    let arrivals = world.receiver.deliveries("/in");
    let times: Vec<Instant> = arrivals.iter().skip(EVENTS).map(|arrival| arrival.at).collect();
    let in_a_second = |first: usize| {
        times[first..]
            .iter()
            .take_while(|at| at.duration_since(times[first]) < Duration::from_secs(1))
            .count()
    };
    let most = (0..times.len()).map(in_a_second).max().unwrap();
    // 44, and what a machine that is busy for a moment sends a little later.
    assert!(most <= 50, "{most} in a second");
}
