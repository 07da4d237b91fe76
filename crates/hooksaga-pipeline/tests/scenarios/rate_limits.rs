//! Rate limits, as endpoints see them.

use super::tampered::Tampered;
use crate::support::{ALL, Pipeline, WORKER, World};
use hooksaga_pipeline::Shutdown;
use hooksaga_saga::Timestamp;
use hooksaga_store::{Stores, SubscriptionPatch};
use std::time::{Duration, Instant};

const RATE: u32 = 40;
const EVENTS: usize = 120;

/// Two processes start the attempts. One hears of its decisions at once, the other one late and of many together.
#[tokio::test(flavor = "multi_thread")]
async fn starts_that_were_counted_in_time_and_committed_late_keep_the_limit() {
    let world = World::new().await;
    let id = world.subscribe("t", "/in").await;
    let worker = Tampered::deciding_late(world.stores.worker.clone(), Duration::from_millis(600));
    let stores = Stores { worker, ..world.stores.clone() };
    let quick = Pipeline::new(&world);
    let slow = Pipeline::over(&stores, &world.key, WORKER);
    let shutdown = Shutdown::new();
    let test = async {
        // What is delivered first widens the windows.
        for pipeline in [&quick, &slow] {
            world.append("t", EVENTS / 2).await;
            pipeline.router.run_once().await.unwrap();
        }
        world.receiver.wait_for("/in", EVENTS, Duration::from_secs(30)).await;
        let patch = SubscriptionPatch { rate_limit: Some(Some(RATE)), ..SubscriptionPatch::default() };
        world.patch(id, patch).await;
        for pipeline in [&quick, &slow] {
            world.append("t", EVENTS / 2).await;
            pipeline.router.run_once().await.unwrap();
        }
        world.receiver.wait_for("/in", 2 * EVENTS, Duration::from_secs(30)).await;
        shutdown.trigger();
    };
    tokio::join!(
        quick.worker.run(&shutdown),
        quick.orchestrator.run(&shutdown),
        slow.worker.run(&shutdown),
        slow.orchestrator.run(&shutdown),
        test
    );

    let arrivals = world.receiver.deliveries("/in");
    let times: Vec<Instant> = arrivals.iter().skip(EVENTS).map(|arrival| arrival.at).collect();
    // 44, and what a machine that is busy for a moment sends a little later.
    let most = busiest_second(&times, |first, last| last.duration_since(first));
    assert!(most <= 50, "{most} arrived in a second");

    let mut starts = Vec::new();
    for delivery in world.deliveries().await.iter().skip(EVENTS) {
        let detail = world.stores.reader.delivery(&ALL, delivery.saga_id).await.unwrap().unwrap();
        starts.extend(detail.attempts.iter().filter_map(|attempt| attempt.started_at));
    }
    starts.sort_unstable();
    assert_eq!(starts.len(), EVENTS);
    let most = busiest_second(&starts, |first: Timestamp, last: Timestamp| last.since(first));
    assert!(most <= 44, "{most} started in a second");
}

fn busiest_second<T: Copy>(times: &[T], between: impl Fn(T, T) -> Duration) -> usize {
    let in_a_second = |first: usize| {
        times[first..].iter().take_while(|at| between(times[first], **at) < Duration::from_secs(1)).count()
    };
    (0..times.len()).map(in_a_second).max().unwrap()
}
