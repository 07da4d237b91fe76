//! FB-1: endpoints that hang, or are slow, delay nobody else.

use super::{Subscription, World};
use hooksaga_saga::{Answer, Standing};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(15);

fn hangs() -> Subscription {
    Subscription::new(|_, _| (Answer::Unreachable, TIMEOUT))
}

fn answers_in(millis: u64) -> Subscription {
    Subscription::new(move |_, _| (Answer::Served, Duration::from_millis(millis)))
}

/// Sends one event to the last subscription every 100 ms, and returns how long the slowest waited for its start.
fn longest_wait_of_the_last(world: &mut World, until: Duration) -> Duration {
    while world.now < until {
        if world.now.as_millis().is_multiple_of(100) {
            let now = world.now;
            world.subscriptions.last_mut().unwrap().receive(1, now);
        }
        world.tick();
    }
    world.subscriptions.last().unwrap().longest_wait
}

#[test]
fn a_healthy_endpoint_beside_many_that_hang() {
    for capacity in [16, 64, 512] {
        for count in [150, 400, 1_000] {
            let mut world = World::new(capacity, vec![answers_in(5)]);
            longest_wait_of_the_last(&mut world, Duration::from_millis(200));
            for _ in 0..count {
                world.subscriptions.insert(0, hangs().with(20));
            }
            let waited = longest_wait_of_the_last(&mut world, Duration::from_secs(40));
            assert!(waited <= Duration::from_millis(10), "{waited:?} beside {count}, {capacity} slots");
            let tried = world.subscriptions.iter().filter(|hanging| hanging.requests > 0).count();
            assert!(tried > 20, "those that hang are tried, too: {tried}");
        }
    }
}

/// FB-2: one that was never tried, behind a thousand that were never tried either and hang, is not the last to be tried.
#[test]
fn a_newcomer_beside_many_that_were_never_tried_and_hang() {
    for capacity in [16, 64, 512] {
        for count in [150, 400, 1_000] {
            let mut world = World::new(capacity, vec![]);
            world.subscriptions.extend((0..count).map(|_| hangs().with(20)));
            for seconds in 0..30 {
                while world.now < Duration::from_millis(1_000 * seconds + 100) {
                    world.tick();
                }
                let now = world.now;
                world.subscriptions.push(answers_in(5));
                let newcomer = world.subscriptions.last_mut().unwrap();
                newcomer.receive(1, now);
                world.tick();
                world.tick();
                let newcomer = world.subscriptions.last().unwrap();
                let waited = newcomer.longest_wait;
                assert_eq!(newcomer.requests, 1, "beside {count}, {capacity} slots, after {now:?}");
                assert!(waited <= Duration::from_millis(10), "{waited:?} beside {count}, {capacity} slots");
            }
        }
    }
}

#[test]
fn a_healthy_endpoint_beside_slow_ones() {
    for (capacity, count, millis) in
        [(16, 3, 850), (16, 14, 850), (64, 1, 800), (64, 62, 300), (512, 3, 850), (512, 300, 850)]
    {
        let mut world = World::new(capacity, vec![answers_in(5)]);
        longest_wait_of_the_last(&mut world, Duration::from_millis(200));
        for _ in 0..count {
            world.subscriptions.insert(0, answers_in(millis).with(300));
        }
        let waited = longest_wait_of_the_last(&mut world, Duration::from_secs(8));
        assert!(
            waited <= Duration::from_millis(60),
            "{waited:?} beside {count} of {millis} ms, {capacity} slots"
        );
    }
}

/// At full load, thousands of jobs open, an endpoint begins to hang: within a second it gets nothing more, and
/// neither one that is known nor one that is new notices.
#[test]
fn an_endpoint_at_full_load_begins_to_hang() {
    let hangs_at = Duration::from_secs(2);
    let busy = Subscription::new(move |now, _| {
        if now < hangs_at {
            (Answer::Served, Duration::from_millis(4))
        } else {
            (Answer::Unreachable, TIMEOUT)
        }
    });
    let mut world = World::new(512, vec![busy.with(250_000), answers_in(5), answers_in(5)]);
    while world.now < hangs_at {
        world.tick();
    }
    assert!(world.subscriptions[0].observed.open() > 1_000, "{}", world.subscriptions[0].observed.open());
    while world.now < hangs_at + Duration::from_secs(1) {
        world.tick();
    }
    let silent = world.subscriptions[0].observed.standing(world.start + world.now);
    assert_eq!(silent, Standing::Unreachable);
    for _ in 0..1_000 {
        if world.now.as_millis().is_multiple_of(100) {
            let now = world.now;
            world.subscriptions[1].receive(1, now);
            world.subscriptions[2].receive(1, now);
        }
        world.tick();
        assert_eq!(world.given[0], 0);
    }
    for other in &world.subscriptions[1..] {
        assert!(other.longest_wait <= Duration::from_millis(10), "{:?}", other.longest_wait);
    }
}
