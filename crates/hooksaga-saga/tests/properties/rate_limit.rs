//! Rate limits: never more than the rate and its burst in any second, and no less than the rate while work waits.

use hooksaga_saga::{Gate, Passage, RateLimit, Timestamp};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

const NOW: i64 = 1_700_000_000_000_000;

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(NOW + micros)
}

fn gates() -> impl Strategy<Value = Gate> {
    prop_oneof![Just(Gate::Admission), Just(Gate::Start)]
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap()
}

/// The most that passed in any second that begins with a passage.
fn busiest_second(passages: &[(i64, u32)], shift: i64) -> u32 {
    let (mut window, mut held, mut most) = (VecDeque::new(), 0, 0);
    for &(time, passed) in passages {
        window.push_back((time, passed));
        held += passed;
        // What passes late moves closer to what passes in time, by `shift` at most.
        while window.front().is_some_and(|(first, _)| time - first >= 1_000_000 + shift) {
            held -= window.pop_front().map_or(0, |(_, passed)| passed);
        }
        most = most.max(held);
    }
    most
}

proptest! {
    /// Nothing is stored where nothing passed, unless what stands there would hold everything for longer than a bucket is
    /// large.
    #[test]
    fn a_bucket_is_stored_when_it_changes(
        rate in 1_u32..=10_000,
        gate in gates(),
        ahead in -10_000_000_i64..10_000_000_000,
        passed in 0_u32..2,
    ) {
        let limit = RateLimit::per_second(rate);
        let full_at = Some(at(ahead));
        let right = limit.pass(gate, full_at, passed, at(0)).full_at;
        let wrong = passed == 0 && right < at(ahead);
        let stored = limit.to_store(gate, full_at, passed, at(0));
        prop_assert_eq!(stored, (passed > 0 || wrong).then_some(right));
        if let Some(stored) = stored {
            prop_assert!(limit.wait(gate, Some(stored), u32::MAX, at(0)) <= Duration::from_secs(2));
        }
    }

    /// Whenever and for however many it is asked.
    #[test]
    fn no_second_has_more_than_the_rate_and_a_burst(
        rate in 1_u32..=10_000,
        gate in gates(),
        asked in prop::collection::vec((0_i64..400_000, 0_u32..3000), 1..200),
    ) {
        let limit = RateLimit::per_second(rate);
        let (mut now, mut full_at, mut passages) = (0, None, Vec::new());
        for (pause, wanted) in asked {
            now += pause;
            let passage = limit.pass(gate, full_at, wanted, at(now));
            prop_assert!(passage.passed <= wanted);
            full_at = Some(passage.full_at);
            passages.push((now, passage.passed));
        }
        let shift = match gate {
            Gate::Admission => 49_000,
            Gate::Start => 24_000,
        };
        for shift in [0, shift] {
            let most = busiest_second(&passages, shift);
            prop_assert!(most <= rate + rate.div_ceil(10), "{most} in a second at {rate}, shifted by {shift} µs");
        }
    }

    /// Asked again when it says so, and up to 20 ms later, a backlog drains at its rate.
    #[test]
    fn a_backlog_drains_at_its_rate(rate in 1_u32..=10_000, lateness in prop::collection::vec(0_i64..20_000, 1..50)) {
        let limit = RateLimit::per_second(rate);
        let (mut now, mut full_at, mut passed) = (0_i64, None, 0_u64);
        let mut lateness = lateness.iter().cycle();
        let end = 60_000_000;
        while now < end {
            let passage = limit.pass(Gate::Admission, full_at, u32::MAX, at(now));
            passed += u64::from(passage.passed);
            full_at = Some(passage.full_at);
            let wait = limit.wait(Gate::Admission, full_at, limit.batch(), at(now));
            now += micros(wait).max(1) + lateness.next().unwrap();
        }
        let wanted = u64::from(rate) * 60;
        let most = wanted + u64::from(limit.burst()) + 1;
        prop_assert!(passed * 100 >= wanted * 98 && passed <= most, "{passed} instead of {wanted}");
    }

    /// The same through both gates: jobs are admitted so, taken up to 20 ms later, and what may not start yet is handed back
    /// for whole steps of 20 ms.
    #[test]
    fn a_backlog_drains_at_its_rate_through_both_gates(
        rate in 1_u32..=2_000,
        lateness in prop::collection::vec(0_i64..20_000, 1..50),
    ) {
        const STEP: i64 = 20_000;
        const END: i64 = 60_000_000;
        let limit = RateLimit::per_second(rate);
        let mut lateness = lateness.iter().cycle();
        let (mut admission, mut start) = (None, None);
        // How many jobs are taken when; and when the orchestrator looks again.
        let mut taken = BTreeMap::new();
        let mut next_look = 0;
        let mut started = Vec::new();
        loop {
            let first = taken.keys().next().copied().unwrap_or(END);
            let now = first.min(next_look);
            if now >= END {
                break;
            }
            if next_look <= first {
                let passage = limit.pass(Gate::Admission, admission, u32::MAX, at(now));
                admission = Some(passage.full_at);
                *taken.entry(now + lateness.next().unwrap()).or_insert(0) += passage.passed;
                let wait = limit.wait(Gate::Admission, admission, limit.batch(), at(now));
                next_look = now + micros(wait).max(1) + lateness.next().unwrap();
                continue;
            }
            let jobs = taken.remove(&now).unwrap();
            let passage = limit.pass(Gate::Start, start, jobs, at(now));
            start = Some(passage.full_at);
            started.push((now, passage.passed));
            let mut wait = micros(limit.wait(Gate::Start, start, 1, at(now)));
            for _ in passage.passed..jobs {
                let back = now + ((wait + STEP - 1) / STEP).max(1) * STEP;
                *taken.entry(back).or_insert(0) += 1;
                wait += micros(limit.interval());
            }
        }
        let passed: u64 = started.iter().map(|(_, passed)| u64::from(*passed)).sum();
        let wanted = u64::from(rate) * 60;
        prop_assert!(passed * 100 >= wanted * 98, "{passed} instead of {wanted}");
        let most = busiest_second(&started, 0);
        prop_assert!(most <= rate + rate.div_ceil(10), "{most} in a second at {rate}");
    }

    /// However late the decisions of one process are committed, it starts no more in a second; and where all take as long,
    /// nothing waits for anything else.
    #[test]
    fn what_is_committed_late_is_spaced(
        rate in 1_u32..=10_000,
        asked in prop::collection::vec((0_i64..400_000, 0_u32..500, 0_i64..1_000_000), 1..60),
        same in any::<bool>(),
    ) {
        let limit = RateLimit::per_second(rate);
        let (mut now, mut full_at, mut committed) = (0, None, Vec::new());
        for (pause, wanted, late) in asked {
            now += pause;
            let passage = limit.pass(Gate::Start, full_at, wanted, at(now));
            full_at = Some(passage.full_at);
            committed.push((now + if same { 1_000_000 } else { late }, passage.passed));
        }
        committed.sort_unstable();
        let (mut own, mut starts) = (None, Vec::new());
        for (now, passed) in committed {
            for _ in 0..passed {
                let (start, full_at) = limit.space(own, at(now));
                own = Some(full_at);
                prop_assert!(start >= at(now) && (!same || start == at(now)), "held up for {:?}", start.since(at(now)));
                starts.push((start.as_micros() - NOW, 1));
            }
        }
        // Timers are exact to a millisecond.
        let most = busiest_second(&starts, 1_000);
        prop_assert!(most <= rate + rate.div_ceil(10), "{most} in a second at {rate}");
    }

    /// After the wait that it returns, this many pass.
    #[test]
    fn the_wait_is_long_enough(rate in 1_u32..=10_000, gate in gates(), taken in 0_u32..2000, more in 1_u32..50) {
        let limit = RateLimit::per_second(rate);
        let Passage { full_at, .. } = limit.pass(gate, None, taken, at(0));
        let wait = limit.wait(gate, Some(full_at), more, at(0));
        let later = at(0).after(wait + Duration::from_micros(1));
        let whole = limit.pass(gate, None, u32::MAX, at(0)).passed;
        prop_assert!(limit.pass(gate, Some(full_at), u32::MAX, later).passed >= more.min(whole));
    }

    /// A clock that was ahead stops nobody for longer than an empty bucket does.
    #[test]
    fn a_clock_that_was_ahead_strands_nothing(rate in 1_u32..=10_000, gate in gates(), ahead in 0_i64..i64::MAX / 2) {
        let limit = RateLimit::per_second(rate);
        let stored = Some(at(0).after(Duration::from_micros(ahead.unsigned_abs())));
        prop_assert!(limit.wait(gate, stored, 1, at(0)) <= Duration::from_secs(2));
        let passage = limit.pass(gate, stored, 1, at(0));
        prop_assert!(passage.full_at <= at(0).after(Duration::from_secs(4)));
    }
}

#[test]
fn limits_keep_their_range_and_their_burst() {
    for (rate, burst) in [(0, 1), (1, 1), (10, 1), (11, 2), (100, 10), (10_000, 1000), (20_000, 1000)] {
        assert_eq!(RateLimit::per_second(rate).burst(), burst, "{rate}");
    }
}
