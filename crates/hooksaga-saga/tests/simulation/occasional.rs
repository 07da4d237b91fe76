//! FB-1: an endpoint that gets an event now and then, and one that gets 50 a second, beside many that responded before and begin
//! to hang together.

use super::{
    Subscription, World,
    hanging::{answers_in, hangs_from},
};
use std::time::Duration;

/// The bar of FB-1.
const MOST: Duration = Duration::from_millis(100);

/// How those that hang get their events.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Twenty at once as they begin to hang, so many milliseconds after their last one.
    Burst(u64),
    /// One every so many milliseconds, one endpoint after the other.
    InTurn(u64),
    /// One every so many milliseconds on average, at random.
    AtRandom(u64),
}

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

/// How long 95 of 100 events waited at most, of those that went to an endpoint which gets one `every` so many milliseconds on
/// average, at intervals between half and one and a half times as long, and of those that went to the busy one. Those that wait at
/// the end count, too.
fn p95_beside(count: usize, capacity: u32, load: Load, every: u64, seed: u64) -> Duration {
    // Each has had an event before, and long enough ago where that matters.
    let before = if let Load::InTurn(5_000) | Load::AtRandom(_) = load { 6_000 } else { 2_000 };
    let (hangs_at, end) = (Duration::from_millis(before), Duration::from_millis(before + 8_000));
    let hanging = (0..count).map(|_| hangs_from(hangs_at));
    let mut world = World::new(capacity, hanging.chain([answers_in(5), answers_in(1)]).collect());
    world.written_after = Duration::from_millis(5);
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed << 40);
    let mut next = 0;
    while world.now < end {
        let now = world.now;
        let millis = u64::try_from(now.as_millis()).unwrap();
        if now == hangs_at {
            world.subscriptions[count..].iter_mut().for_each(|healthy| healthy.waits_of_each.clear());
        }
        for (number, hanging) in (0..).zip(&mut world.subscriptions[..count]) {
            let deliveries = match load {
                Load::Burst(idle) if millis == 500 || millis + idle == before => 1,
                Load::Burst(_) if now == hangs_at => 20,
                Load::InTurn(every) => {
                    let its = number * every / u64::try_from(count).unwrap();
                    usize::from(millis % every == its / 5 * 5)
                }
                Load::AtRandom(every) => usize::from(random.below(every) < 5),
                Load::Burst(_) => 0,
            };
            hanging.receive(deliveries, now);
        }
        if millis >= next {
            world.subscriptions[count].receive(1, now);
            next += every / 2 + random.below(every);
        }
        world.subscriptions[count + 1].receive(usize::from(millis % 20 == 0), now);
        world.tick();
    }
    let now = world.now;
    let p95_of = |healthy: &mut Subscription| {
        healthy.waits_of_each.extend(healthy.waiting.iter().map(|delivery| now - delivery.due));
        healthy.p95_wait()
    };
    world.subscriptions[count..].iter_mut().map(p95_of).max().unwrap()
}

fn all_within_the_bar(rows: impl IntoIterator<Item = (u32, usize, Load, u64)>) {
    for (capacity, count, load, every) in rows {
        let waited = p95_beside(count, capacity, load, every, 0);
        assert!(
            waited <= MOST,
            "{waited:?} of one with an event every {every} ms beside {count}, {load:?}, {capacity} slots"
        );
    }
}

/// Also if they responded within 150 ms: many that each gave a response of late are not known to answer.
#[test]
fn an_endpoint_with_an_event_now_and_then_beside_many_that_get_a_backlog_and_hang() {
    all_within_the_bar([16, 64, 512].into_iter().flat_map(|capacity| {
        [150, 400, 1_000].into_iter().flat_map(move |count| {
            [50, 200, 1_500].into_iter().map(move |idle| (capacity, count, Load::Burst(idle), 100))
        })
    }));
    all_within_the_bar([16, 64].map(|capacity| (capacity, 400, Load::Burst(1_500), 300)));
}

#[test]
fn an_endpoint_with_an_event_now_and_then_beside_a_trickle_to_many_that_begin_to_hang() {
    all_within_the_bar([16, 64, 512].into_iter().flat_map(|capacity| {
        [150, 400, 1_000].map(move |count| (capacity, count, Load::InTurn(5_000), 100))
    }));
    all_within_the_bar([
        (16, 150, Load::InTurn(5_000), 300),
        (64, 400, Load::InTurn(5_000), 300),
        (64, 400, Load::InTurn(500), 100),
        (512, 400, Load::InTurn(100), 100),
        (512, 1_000, Load::InTurn(100), 100),
        (16, 150, Load::AtRandom(5_000), 100),
        (64, 400, Load::AtRandom(2_000), 100),
        (512, 1_000, Load::AtRandom(2_000), 100),
    ]);
}
