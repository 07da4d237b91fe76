//! FB-1: endpoints that hang, or are slow, delay nobody else.

use super::{Subscription, World};
use hooksaga_saga::{EndpointReaction, Standing};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(15);

fn hangs() -> Subscription {
    Subscription::new(|_, _| (EndpointReaction::Unreachable, TIMEOUT))
}

pub(super) fn answers_in(millis: u64) -> Subscription {
    Subscription::new(move |_, _| (EndpointReaction::Served, Duration::from_millis(millis)))
}

/// Sends one event to the last subscription every 100 ms, and returns how long the slowest waited for its start, or still does.
fn longest_wait_of_the_last(world: &mut World, until: Duration) -> Duration {
    while world.now < until {
        if world.now.as_millis().is_multiple_of(100) {
            let now = world.now;
            world.subscriptions.last_mut().unwrap().receive(1, now);
        }
        world.tick();
    }
    world.longest_wait(world.subscriptions.len() - 1)
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
            (EndpointReaction::Served, Duration::from_millis(4))
        } else {
            (EndpointReaction::Unreachable, TIMEOUT)
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
    let silent = world.subscriptions[0].observed.standing(Duration::ZERO, world.start + world.now);
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
    for other in [1, 2] {
        let waited = world.longest_wait(other);
        assert!(waited <= Duration::from_millis(10), "{waited:?}");
    }
}

/// Answers until then, and hangs from then on.
pub(super) fn hangs_from(hangs_at: Duration) -> Subscription {
    Subscription::new(move |now, _| {
        if now < hangs_at {
            (EndpointReaction::Served, Duration::from_millis(5))
        } else {
            (EndpointReaction::Unreachable, TIMEOUT)
        }
    })
}

/// FB-1: endpoints that have answered before begin to hang together, each with a backlog. (With 16 slots, 1,000 of them cannot
/// answer within 200 ms.)
#[test]
fn a_healthy_endpoint_beside_many_that_answered_before_and_hang() {
    let (hangs_at, end) = (Duration::from_secs(2), Duration::from_secs(19));
    let all = [16, 64, 512].map(|capacity| [150, 400, 1_000].map(|count| (capacity, count)));
    let all = all.as_flattened().iter().chain(&[(64, 20), (16, 12)]);
    let cases = all.flat_map(|(capacity, count)| [200, 1_500].map(|idle| (*capacity, *count, idle)));
    let cases = cases.filter(|case| *case != (16, 1_000, 200));
    for (capacity, count, idle) in cases.chain([(64, 20, 50), (512, 150, 50), (512, 150, 0)]) {
        let known = (0..count).map(|_| hangs_from(hangs_at).with(1));
        let mut world = World::new(capacity, known.chain([answers_in(5)]).collect());
        let last = hangs_at - Duration::from_millis(idle);
        for (at, deliveries) in [(last, 1), (hangs_at, 20)] {
            longest_wait_of_the_last(&mut world, at);
            for hanging in &mut world.subscriptions[..count] {
                hanging.receive(deliveries, at);
            }
        }
        world.subscriptions[count].longest_wait = Duration::ZERO;
        let waited = longest_wait_of_the_last(&mut world, end);
        let what = format!("{count}, {capacity} slots, {idle} ms after their last");
        assert!(waited <= Duration::from_millis(10), "{waited:?} beside {what}");
    }
}

/// FB-1: endpoints that get an event now and then begin to hang together.
#[test]
fn a_healthy_endpoint_beside_a_trickle_to_many_that_begin_to_hang() {
    let (hangs_at, end) = (Duration::from_secs(6), Duration::from_secs(23));
    for (capacity, count, every) in [
        (512, 1_000, 5_000),
        (512, 1_000, 500),
        (512, 300, 500),
        (64, 100, 1_000),
        (64, 100, 200),
        (64, 50, 100),
        (16, 100, 5_000),
        (16, 20, 200),
        (16, 12, 100),
    ] {
        let trickle = (0..count).map(|_| hangs_from(hangs_at));
        let mut world = World::new(capacity, trickle.chain([answers_in(5)]).collect());
        while world.now < end {
            let now = world.now;
            if now == hangs_at {
                world.subscriptions[count].longest_wait = Duration::ZERO;
            }
            let millis = usize::try_from(now.as_millis()).unwrap();
            for number in (0..count).filter(|number| millis % every == number * every / count / 5 * 5) {
                world.subscriptions[number].receive(1, now);
            }
            if millis.is_multiple_of(100) {
                world.subscriptions[count].receive(1, now);
            }
            world.tick();
        }
        let waited = world.longest_wait(count);
        let what = format!("{count} with an event every {every} ms, {capacity} slots");
        assert!(waited <= Duration::from_millis(10), "{waited:?} beside {what}");
    }
}

/// FB-1: the same, as `hooksaga bench` measures it: the p95 of a healthy endpoint that gets many events a second. Also if its
/// worker rests after claims that found nothing, ten times as long as such a claim took (where another process creates the jobs).
#[test]
fn a_busy_healthy_endpoint_beside_a_trickle_to_many_that_begin_to_hang() {
    const TRICKLE_TO: usize = 1_000;
    const EVERY: usize = 5_000;
    let (hangs_at, end) = (Duration::from_secs(6), Duration::from_secs(13));
    for (capacity, millis, per_second) in [(16, 1, 300), (16, 5, 100), (64, 10, 300), (512, 30, 300)] {
        for rests in [0, 20].map(Duration::from_millis) {
            let trickle = (0..TRICKLE_TO).map(|_| hangs_from(hangs_at));
            let mut world = World::new(capacity, trickle.chain([answers_in(millis)]).collect());
            (world.tick, world.written_after) = (Duration::from_millis(2), Duration::from_millis(4));
            world.rests = rests;
            let mut sent = 0;
            while world.now < end {
                let now = world.now;
                if now == hangs_at {
                    world.subscriptions[TRICKLE_TO].waits_of_each.clear();
                }
                let passed = usize::try_from(now.as_millis()).unwrap();
                for number in (0..TRICKLE_TO).filter(|number| passed % EVERY == number * 5 / 2 * 2) {
                    world.subscriptions[number].receive(1, now);
                }
                let due = passed * per_second / 1_000;
                world.subscriptions[TRICKLE_TO].receive(due - sent, now);
                sent = due;
                world.tick();
            }
            let waited = world.subscriptions[TRICKLE_TO].p95_wait();
            let what = format!("{capacity} slots, an endpoint that takes {millis} ms, rests of {rests:?}");
            assert!(waited <= Duration::from_millis(100), "{waited:?}: {what}");
        }
    }
}

/// Thousands of endpoints that answer, and are idle for longer than that shows, do not delay one another.
#[test]
fn many_endpoints_with_an_event_now_and_then_do_not_wait() {
    for (capacity, count, every) in [(16, 500, 1_000), (64, 2_000, 1_000), (512, 4_000, 500)] {
        let mut world = World::new(capacity, (0..count).map(|_| answers_in(5)).collect());
        while world.now < Duration::from_secs(5) {
            let now = world.now;
            if now == Duration::from_secs(2) {
                world.subscriptions.iter_mut().for_each(|one| one.longest_wait = Duration::ZERO);
            }
            let millis = usize::try_from(now.as_millis()).unwrap();
            for number in (0..count).filter(|number| millis % every == number * every / count / 5 * 5) {
                world.subscriptions[number].receive(1, now);
            }
            world.tick();
        }
        let waited = (0..count).map(|number| world.longest_wait(number)).max().unwrap();
        assert!(waited <= Duration::from_millis(20), "{waited:?}: {count}, {capacity} slots");
    }
}
