//! CA-8: an endpoint that takes only so much at a time is given that much, and little more.

use super::{Subscription, World};
use hooksaga_saga::EndpointReaction;
use std::time::Duration;

const TIMES: Duration = Duration::from_millis(50);

/// Serves this many at a time and refuses the rest at once.
fn serves(at_a_time: usize) -> Subscription {
    Subscription::new(move |_, serving| {
        if serving < at_a_time {
            (EndpointReaction::Served, TIMES)
        } else {
            (EndpointReaction::Throttled, Duration::from_millis(1))
        }
    })
}

/// At most a tenth of the requests is refused, nothing dies, and it takes no more than twice the time that the
/// endpoint needs.
#[test]
fn an_endpoint_that_throttles_gets_what_it_can_take() {
    for (at_a_time, capacity) in [(1, 512), (2, 64), (5, 16), (5, 64), (5, 512), (20, 512), (100, 512)] {
        let mut world = World::new(capacity, vec![serves(at_a_time).with(2_000)]);
        while world.subscriptions[0].served < 2_000 && world.now < Duration::from_secs(300) {
            world.tick();
        }
        let throttled = &world.subscriptions[0];
        let (requests, refused) = (throttled.requests, throttled.refused);
        assert_eq!((throttled.served, throttled.dead), (2_000, 0), "{at_a_time} at a time");
        assert!(refused * 10 <= requests, "{refused} of {requests} refused, {at_a_time} at a time");
        let needed = TIMES * 2_000 / u32::try_from(at_a_time).unwrap();
        let took = world.now;
        assert!(took < needed * 2 + Duration::from_secs(10), "{took:?}, {at_a_time} at a time");
    }
}

/// One that recovers is given more again, by addition.
#[test]
fn an_endpoint_that_recovers_grows_back() {
    let recovers = Subscription::new(|now, serving| {
        let at_a_time = if now < Duration::from_secs(5) { 5 } else { 60 };
        if serving < at_a_time {
            (EndpointReaction::Served, TIMES)
        } else {
            (EndpointReaction::Throttled, Duration::ZERO)
        }
    });
    let mut world = World::new(512, vec![recovers.with(20_000)]);
    let window = |world: &World| world.subscriptions[0].observed.window();
    while world.now < Duration::from_secs(5) {
        world.tick();
    }
    assert!(window(&world) < 10, "{}", window(&world));
    while world.now < Duration::from_secs(12) {
        world.tick();
    }
    assert!((30..=64).contains(&window(&world)), "{}", window(&world));
}
