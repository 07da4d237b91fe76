//! Rate limits: never more than the rate and its burst in any second, and no less than the rate while work waits.

use hooksaga_saga::{Lead, Passage, RateLimit, Reservation, StartWindow, Timestamp};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

const NOW: i64 = 1_700_000_000_000_000;

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(NOW + micros)
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

/// How one of several processes asks for starts; times in microseconds.
#[derive(Clone, Debug)]
struct Question {
    /// Since the one before it.
    pause: i64,
    process: usize,
    wanted: u32,
    /// Between which moments, before and after it, the process knows the database's clock to have been read.
    before: i64,
    after: i64,
    /// After how long the answer is there.
    answer: i64,
    /// How long the start takes after that.
    delay: u64,
}

fn question() -> impl Strategy<Value = Question> {
    // More than 25 ms together is what a limit is not exact beyond.
    let reading = (0_i64..12_500, 0_i64..12_500);
    let late = prop_oneof![0_i64..60_000, 0_i64..8_000_000];
    let asked = (0_i64..400_000, 0_usize..4, 0_u32..3000, reading, late, 0_u64..50_000);
    asked.prop_map(|(pause, process, wanted, (before, after), late, delay)| Question {
        pause,
        process,
        wanted,
        before,
        after,
        answer: after + late,
        delay,
    })
}

proptest! {
    /// Nothing is stored where nothing passed, unless what stands there would hold everything for longer than a bucket is
    /// large.
    #[test]
    fn a_bucket_is_stored_when_it_changes(
        rate in 1_u32..=10_000,
        ahead in -10_000_000_i64..10_000_000_000,
        passed in 0_u32..2,
    ) {
        let limit = RateLimit::per_second(rate);
        let full_at = Some(at(ahead));
        let right = limit.pass(full_at, passed, at(0)).full_at;
        let wrong = passed == 0 && right < at(ahead);
        let stored = limit.to_store(full_at, passed, at(0));
        prop_assert_eq!(stored, (passed > 0 || wrong).then_some(right));
        if let Some(stored) = stored {
            prop_assert!(limit.wait(Some(stored), u32::MAX, at(0)) <= Duration::from_secs(2));
        }
    }

    /// Whenever and for however many it is asked.
    #[test]
    fn no_second_has_more_than_the_rate_and_a_burst(
        rate in 1_u32..=10_000,
        asked in prop::collection::vec((0_i64..400_000, 0_u32..3000), 1..200),
    ) {
        let limit = RateLimit::per_second(rate);
        let (mut now, mut full_at, mut passages) = (0, None, Vec::new());
        for (pause, wanted) in asked {
            now += pause;
            let passage = limit.pass(full_at, wanted, at(now));
            prop_assert!(passage.passed <= wanted);
            full_at = Some(passage.full_at);
            passages.push((now, passage.passed));
        }
        for shift in [0, 49_000] {
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
            let passage = limit.pass(full_at, u32::MAX, at(now));
            passed += u64::from(passage.passed);
            full_at = Some(passage.full_at);
            let wait = limit.wait(full_at, limit.batch(), at(now));
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
                let passage = limit.pass(admission, u32::MAX, at(now));
                admission = Some(passage.full_at);
                *taken.entry(now + lateness.next().unwrap()).or_insert(0) += passage.passed;
                let wait = limit.wait(admission, limit.batch(), at(now));
                next_look = now + micros(wait).max(1) + lateness.next().unwrap();
                continue;
            }
            let jobs = taken.remove(&now).unwrap();
            let passage = limit.reserve(start, jobs, at(now), Lead::NONE);
            start = Some(passage.full_at);
            started.push((now, passage.jobs));
            let mut wait = micros(passage.wait);
            for _ in passage.jobs..jobs {
                let back = now + ((wait + STEP - 1) / STEP).max(1) * STEP;
                *taken.entry(back).or_insert(0) += 1;
                wait += micros(limit.time_for(1));
            }
        }
        let passed: u64 = started.iter().map(|(_, passed)| u64::from(*passed)).sum();
        let wanted = u64::from(rate) * 60;
        prop_assert!(passed * 100 >= wanted * 98, "{passed} instead of {wanted}");
        let most = busiest_second(&started, 0);
        prop_assert!(most <= rate + rate.div_ceil(10), "{most} in a second at {rate}");
    }

    /// However far ahead processes ask, however inexactly they know the database's clock, however late they hear the answer,
    /// and whenever in its window each attempt starts.
    #[test]
    fn no_second_has_more_starts_than_the_limit_whatever_commits_take(
        rate in 1_u32..=10_000,
        leads in prop::collection::vec(prop_oneof![Just(0), 0_u64..100, 0_u64..5_000], 1..5),
        asked in prop::collection::vec(question(), 1..100),
    ) {
        let (limit, begin) = (RateLimit::per_second(rate), Instant::now());
        let (mut now, mut full_at, mut starts) = (60_000_000, None, Vec::new());
        for Question { pause, process, wanted, before, after, answer, delay } in asked {
            now += pause;
            let lead = Lead::new(Duration::from_millis(leads[process % leads.len()]));
            let Reservation { jobs, last, full_at: left, .. } = limit.reserve(full_at, wanted, at(now), lead);
            full_at = Some(left);
            prop_assert!(jobs <= wanted && (jobs == 0 || last <= lead.shortest()));
            for later in 0..jobs {
                let ahead = lead.shortest() + last.saturating_sub(limit.time_for(later));
                let own = |micros: i64| begin + Duration::from_micros(micros.unsigned_abs());
                let window = StartWindow::new(own(now - before), own(now + after), ahead);
                let start = window.opens.max(own(now + answer)) + Duration::from_micros(delay);
                if start <= window.closes {
                    starts.push((micros(start - begin), 1));
                }
            }
        }
        starts.sort_unstable();
        let most = busiest_second(&starts, 0);
        prop_assert!(most <= rate + rate.div_ceil(10), "{most} in a second at {rate}");
    }

    /// Processes whose commits take different times, each of which locks the bucket meanwhile, and a backlog: the limit is used
    /// to the full, and none of them asks further ahead than the slowest one has to.
    #[test]
    fn whatever_commits_take_a_backlog_is_started_at_its_rate(
        rate in 1_u32..=10_000,
        commits in prop::collection::vec(prop_oneof![Just(1_000), 0_i64..300_000, 0_i64..1_500_000], 1..4),
    ) {
        const END: i64 = 60_000_000;
        let limit = RateLimit::per_second(rate);
        let slowest = Duration::from_micros(commits.iter().max().unwrap().unsigned_abs());
        let mut asks: Vec<(i64, Lead)> = vec![(0, Lead::NONE); commits.len()];
        let (mut free, mut full_at, mut started) = (0, None, 0_u64);
        loop {
            let process = (0..asks.len()).min_by_key(|process| asks[*process].0).unwrap();
            let (ready, lead) = asks[process];
            let now = ready.max(free);
            if now >= END {
                break;
            }
            let reserved = limit.reserve(full_at, u32::MAX, at(now), lead);
            full_at = Some(reserved.full_at);
            free = now + commits[process];
            let took = Duration::from_micros(commits[process].unsigned_abs());
            let in_time = |later: &u32| {
                let ahead = lead.shortest() + reserved.last.saturating_sub(limit.time_for(*later));
                took <= ahead + StartWindow::LENGTH
            };
            started += (0..reserved.jobs).filter(in_time).count() as u64;
            let next = lead.after(took).max(lead.joining(limit, reserved.wait));
            prop_assert!(next <= Lead::new(slowest * 2), "{next:?} where commits take {slowest:?}");
            asks[process] = (free + 5_000, next);
        }
        let wanted = u64::from(rate) * 60;
        prop_assert!(started * 100 >= wanted * 90, "{started} instead of {wanted}");
    }

    /// After the wait that it returns, this many pass.
    #[test]
    fn the_wait_is_long_enough(rate in 1_u32..=10_000, taken in 0_u32..2000, more in 1_u32..50) {
        let limit = RateLimit::per_second(rate);
        let Passage { full_at, .. } = limit.pass(None, taken, at(0));
        let wait = limit.wait(Some(full_at), more, at(0));
        let later = at(0).after(wait + Duration::from_micros(1));
        let whole = limit.pass(None, u32::MAX, at(0)).passed;
        prop_assert!(limit.pass(Some(full_at), u32::MAX, later).passed >= more.min(whole));
    }

    /// A clock that was ahead stops nobody for longer than an empty bucket does.
    #[test]
    fn a_clock_that_was_ahead_strands_nothing(rate in 1_u32..=10_000, ahead in 0_i64..i64::MAX / 2) {
        let limit = RateLimit::per_second(rate);
        let stored = Some(at(0).after(Duration::from_micros(ahead.unsigned_abs())));
        prop_assert!(limit.wait(stored, 1, at(0)) <= Duration::from_secs(2));
        let passage = limit.pass(stored, 1, at(0));
        prop_assert!(passage.full_at <= at(0).after(Duration::from_secs(4)));
        let reserved = limit.reserve(stored, 1, at(0), Lead::NONE);
        // As far as others may have reserved it must be believed.
        let longest = Lead::MOST.longest() + Duration::from_secs(2);
        prop_assert!(reserved.wait <= longest && reserved.full_at <= at(0).after(longest));
    }
}

#[test]
fn limits_keep_their_range_and_their_burst() {
    for (rate, burst) in [(0, 1), (1, 1), (10, 1), (11, 2), (100, 10), (10_000, 1000), (20_000, 1000)] {
        assert_eq!(RateLimit::per_second(rate).burst(), burst, "{rate}");
    }
}

/// While the database is quick nothing is put off; once it is slow, the lead covers what it takes, and shrinks when it is quick
/// again.
#[test]
fn the_lead_follows_what_an_answer_takes() {
    let millis = Duration::from_millis;
    let quick = Lead::NONE.after(millis(20));
    assert_eq!(quick, Lead::NONE);
    let slow = quick.after(millis(200));
    assert_eq!(slow, Lead::new(millis(400)));
    assert_eq!(slow.after(millis(200)), slow);
    let shrinking = (0..20).fold(slow, |lead, _| lead.after(millis(2)));
    assert!(shrinking > Lead::NONE && shrinking < Lead::new(millis(40)), "{shrinking:?}");
    assert_eq!(quick.after(Duration::from_secs(60)), Lead::MOST);
    assert_eq!(slow.aged(millis(499)), slow);
    assert_eq!(slow.aged(millis(1_000)), Lead::new(millis(100)));
    assert_eq!(Lead::MOST.aged(Duration::from_secs(5)), Lead::NONE);
    assert_eq!(Lead::MOST.aged(Duration::MAX), Lead::NONE);
}

/// However long it takes to read the database's clock, there is a time at which an attempt may start.
#[test]
fn a_database_that_is_far_away_stops_nothing() {
    let (asked, ahead) = (Instant::now(), Duration::from_millis(400));
    for round_trip in [1, 25, 45, 300].map(Duration::from_millis) {
        let window = StartWindow::new(asked, asked + round_trip, ahead);
        assert_eq!(window.opens, asked + round_trip + ahead);
        assert!(window.closes >= window.opens + StartWindow::SHORTEST, "{round_trip:?}");
    }
}

/// A time further ahead than anybody reserves is an empty bucket; one that somebody may have reserved is kept.
#[test]
fn what_others_have_reserved_is_kept() {
    let limit = RateLimit::per_second(2);
    let far = limit.reserve(None, 100, at(0), Lead::MOST);
    assert_eq!((far.jobs, far.last), (9, Duration::from_millis(3_750)));
    let beside = limit.reserve(Some(far.full_at), 1, at(0), Lead::NONE);
    assert_eq!((beside.jobs, beside.full_at), (0, far.full_at));
    assert_eq!(beside.wait, Duration::from_millis(8_250));
    let joined = Lead::NONE.joining(limit, beside.wait);
    assert_eq!(joined.longest(), Duration::from_millis(7_750), "both reserve for the same moments");
    assert_eq!(limit.reserve(Some(far.full_at), 1, at(500_000), joined).jobs, 1);
    let ahead = limit.reserve(Some(at(60_000_000)), 1, at(0), Lead::NONE);
    assert_eq!((ahead.jobs, ahead.full_at), (0, at(0).after(Duration::from_millis(750))));
}
