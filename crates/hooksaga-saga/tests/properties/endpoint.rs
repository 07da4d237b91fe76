//! What is kept of an endpoint, and how it stands.

use super::durations;
use hooksaga_saga::{Endpoint, EndpointReaction, ErrorCode, Outcome, Standing};
use proptest::{collection::vec, prelude::*, sample::select};
use std::time::{Duration, Instant};

const ALL: [EndpointReaction; 4] = [
    EndpointReaction::Served,
    EndpointReaction::Refused,
    EndpointReaction::Throttled,
    EndpointReaction::Unreachable,
];
const QUICK: Duration = Duration::from_millis(5);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One round trip: the window is filled, and everything gets the same answer.
fn round_trip(endpoint: &mut Endpoint, answer: EndpointReaction, now: Instant) {
    let jobs = endpoint.window().saturating_sub(endpoint.open());
    endpoint.admitted(jobs, now);
    for _ in 0..endpoint.open() {
        endpoint.answered(answer, QUICK, now);
    }
}

#[test]
fn what_an_outcome_says() {
    let of = |code: &str| EndpointReaction::of(&Outcome::Failed(ErrorCode::from_stored(code.to_owned())));
    assert_eq!(EndpointReaction::of(&Outcome::Delivered), EndpointReaction::Served);
    for code in ["HTTP_429", "HTTP_502", "HTTP_503", "HTTP_504"] {
        assert_eq!(of(code), EndpointReaction::Throttled, "{code}");
    }
    for code in ["TIMEOUT", "CONNECT_FAILED", "DNS_FAILED", "TLS_FAILED"] {
        assert_eq!(of(code), EndpointReaction::Unreachable, "{code}");
    }
    for code in [
        "HTTP_400",
        "HTTP_404",
        "HTTP_410",
        "HTTP_500",
        "HTTP_501",
        "REDIRECT",
        "BLOCKED_ADDRESS",
        "INTERNAL",
    ] {
        assert_eq!(of(code), EndpointReaction::Refused, "{code}");
    }
}

#[test]
fn a_window_doubles_until_it_is_refused_and_then_grows_by_one() {
    let (mut endpoint, now) = (Endpoint::default(), Instant::now());
    let mut windows = vec![endpoint.window()];
    for _ in 0..4 {
        round_trip(&mut endpoint, EndpointReaction::Served, now);
        windows.push(endpoint.window());
    }
    assert_eq!(windows, [4, 8, 16, 32, 64]);
    for wanted in [32, 16] {
        round_trip(&mut endpoint, EndpointReaction::Throttled, now);
        assert_eq!(endpoint.window(), wanted, "once per round trip, however many are refused");
    }
    for wanted in 17..=31 {
        round_trip(&mut endpoint, EndpointReaction::Served, now);
        assert_eq!(endpoint.window(), wanted);
    }
    // It was refused at 32: that is tried again, but not soon.
    for _ in 0..7 {
        round_trip(&mut endpoint, EndpointReaction::Served, now);
        assert_eq!(endpoint.window(), 31);
    }
    round_trip(&mut endpoint, EndpointReaction::Served, now);
    assert_eq!(endpoint.window(), 32);
}

#[test]
fn other_refusals_say_nothing_about_load() {
    let mut endpoint = Endpoint::default();
    round_trip(&mut endpoint, EndpointReaction::Refused, Instant::now());
    assert_eq!(endpoint.window(), 4);
}

/// A window that nobody fills does not grow: it would say nothing.
#[test]
fn an_unused_window_does_not_grow() {
    let (mut endpoint, now) = (Endpoint::default(), Instant::now());
    for _ in 0..1_000 {
        endpoint.admitted(1, now);
        endpoint.answered(EndpointReaction::Served, QUICK, now);
    }
    assert_eq!(endpoint.window(), 4);
}

#[test]
fn standings_of_a_life() {
    let start = Instant::now();
    let at = |after| start + millis(after);
    let mut endpoint = Endpoint::default();
    assert_eq!(endpoint.standing(Duration::ZERO, at(900_000)), Standing::New);
    assert!(endpoint.is_idle() && endpoint.last_activity().is_none());
    endpoint.admitted(4, start);
    assert_eq!(endpoint.standing(Duration::ZERO, at(500)), Standing::New);
    assert_eq!(endpoint.standing(Duration::ZERO, at(501)), Standing::Unreachable, "silent for too long");
    endpoint.answered(EndpointReaction::Served, millis(800), at(800));
    assert_eq!(
        endpoint.standing(Duration::ZERO, at(800)),
        Standing::Unconfirmed,
        "one response shows little"
    );
    (0..3).for_each(|_| endpoint.answered(EndpointReaction::Served, millis(800), at(800)));
    endpoint.admitted(3, at(800));
    let answering = Standing::Answering { latency: millis(800) };
    assert_eq!(endpoint.standing(Duration::ZERO, at(800)), answering);
    assert_eq!(endpoint.standing(Duration::ZERO, at(2_400)), answering, "it takes its time");
    assert_eq!(endpoint.standing(Duration::ZERO, at(2_401)), Standing::Unconfirmed);
    assert_eq!(endpoint.standing(Duration::ZERO, at(4_000)), Standing::Unconfirmed);
    assert_eq!(endpoint.standing(Duration::ZERO, at(4_001)), Standing::Unreachable);
    endpoint.answered(EndpointReaction::Refused, millis(800), at(4_100));
    endpoint.answered(EndpointReaction::Unreachable, millis(15_000), at(4_200));
    assert_eq!(endpoint.standing(Duration::ZERO, at(4_200)), Standing::Unreachable);
    assert!(!endpoint.is_idle());
    endpoint.answered(EndpointReaction::Throttled, millis(800), at(4_300));
    assert!(
        matches!(endpoint.standing(Duration::ZERO, at(4_300)), Standing::Answering { latency } if latency > millis(2_000))
    );
    assert!(endpoint.is_idle() && endpoint.last_activity() == Some(at(4_300)));
    assert_eq!(
        endpoint.standing(Duration::ZERO, at(90_000)),
        Standing::Unconfirmed,
        "nothing open, nothing silent"
    );
}

#[test]
fn a_count_corrects_what_was_missed() {
    let start = Instant::now();
    let mut endpoint = Endpoint::default();
    endpoint.admitted(10, start);
    endpoint.set_open(3, start + millis(400));
    assert_eq!(
        (endpoint.open(), endpoint.standing(Duration::ZERO, start + millis(600))),
        (3, Standing::Unreachable)
    );
    endpoint.set_open(0, start + millis(600));
    assert_eq!(endpoint.standing(Duration::ZERO, start + millis(9_000)), Standing::New);
    endpoint.set_open(2, start + millis(9_000));
    assert_eq!(endpoint.standing(Duration::ZERO, start + millis(9_400)), Standing::New);
    endpoint.answered(EndpointReaction::Served, QUICK, start);
    let demand = endpoint.demand(7, 5, 3, Duration::ZERO, start);
    assert_eq!((demand.open, demand.waiting, demand.window, demand.last_turn), (1, 7, 5, 5));
    assert_eq!(demand.standing, endpoint.standing(Duration::ZERO, start));
}

proptest! {
    /// Whatever comes, in whatever order and however late: counts and windows stay sane.
    #[test]
    fn any_life(
        life in vec((select(ALL.to_vec()), durations(), 0_u32..50, prop::option::of(0_u32..99), 0_u64..9_000), 0..200),
    ) {
        let mut now = Instant::now();
        let mut endpoint = Endpoint::default();
        for (answer, took, jobs, count, later) in life {
            now += millis(later);
            endpoint.admitted(jobs, now);
            if let Some(count) = count {
                endpoint.set_open(count, now);
                prop_assert_eq!(endpoint.open(), count);
            }
            let (open, window) = (endpoint.open(), endpoint.window());
            endpoint.answered(answer, took, now);
            prop_assert_eq!(endpoint.open(), open.saturating_sub(1));
            let allowed = match answer {
                EndpointReaction::Served => window..=window + 1,
                EndpointReaction::Refused => window..=window,
                EndpointReaction::Throttled | EndpointReaction::Unreachable => (window / 2).max(1)..=window,
            };
            prop_assert!(allowed.contains(&endpoint.window()));
            prop_assert_eq!(endpoint.standing(Duration::ZERO, now) == Standing::Unreachable, answer == EndpointReaction::Unreachable);
        }
    }
}

#[test]
fn one_that_failed_elsewhere_stands_as_if_it_had_failed_here() {
    let now = Instant::now();
    for code in ErrorCode::ALL.iter().cloned().chain([429, 500, 503].map(ErrorCode::http)) {
        let remembered = Endpoint::failing(&code);
        let mut seen = Endpoint::default();
        for _ in 0..8 {
            round_trip(&mut seen, EndpointReaction::of_failure(&code), now);
        }
        assert!(remembered.is_idle());
        assert_eq!(remembered.window(), seen.window(), "{code}");
        let unreachable =
            |endpoint: &Endpoint| endpoint.standing(Duration::ZERO, now) == Standing::Unreachable;
        assert_eq!(unreachable(&remembered), unreachable(&seen), "{code}");
    }
}

/// However quick an endpoint was: what it did a while ago does not show that it still answers.
#[test]
fn a_response_shows_for_a_moment_that_an_endpoint_answers() {
    let (mut endpoint, start) = (Endpoint::default(), Instant::now());
    for jobs in 1..100 {
        endpoint.admitted(jobs, start);
        (0..jobs).for_each(|_| endpoint.answered(EndpointReaction::Served, QUICK, start));
    }
    let last_response = |endpoint: &Endpoint, at| endpoint.demand(1, 0, 0, Duration::ZERO, at).last_response;
    assert_eq!(last_response(&endpoint, start + millis(70)), Some(millis(70)));
    let answering = Standing::Answering { latency: QUICK };
    assert_eq!(endpoint.standing(Duration::ZERO, start + millis(150)), answering);
    assert_eq!(endpoint.standing(Duration::ZERO, start + millis(151)), Standing::Unconfirmed);
    let later = start + millis(9_000);
    endpoint.admitted(2, later);
    assert_eq!(endpoint.standing(Duration::ZERO, later), Standing::Unconfirmed);
    for _ in 0..3 {
        endpoint.answered(EndpointReaction::Refused, QUICK, later);
        endpoint.admitted(1, later);
        assert_eq!(endpoint.standing(Duration::ZERO, later), Standing::Unconfirmed, "too few");
    }
    endpoint.answered(EndpointReaction::Refused, QUICK, later);
    assert_eq!(endpoint.standing(Duration::ZERO, later), answering, "any response will do");
    assert_eq!(last_response(&endpoint, later), Some(Duration::ZERO));
    assert_eq!(endpoint.standing(Duration::ZERO, later + millis(151)), Standing::Unconfirmed);
    assert_eq!(endpoint.standing(Duration::ZERO, later + millis(500)), Standing::Unconfirmed);
    assert_eq!(endpoint.standing(Duration::ZERO, later + millis(501)), Standing::Unreachable, "one is open");
}

/// One that is slow, and always has one request open, gives few responses in any time, and is known to answer all the same.
#[test]
fn an_endpoint_with_one_request_at_a_time_is_known_to_answer() {
    for latency in [2, 40, 850, 9_000].map(millis) {
        let (mut endpoint, mut now) = (Endpoint::default(), Instant::now());
        for request in 0..10 {
            endpoint.admitted(1, now);
            now += latency;
            endpoint.answered(EndpointReaction::Served, latency, now);
            let standing = endpoint.standing(Duration::ZERO, now);
            assert_eq!(
                matches!(standing, Standing::Answering { .. }),
                request >= 3,
                "{standing:?} after {request}"
            );
        }
        let is_quick = latency < millis(50);
        let last_response = endpoint.demand(1, 0, 0, Duration::ZERO, now).last_response;
        assert_eq!(last_response, is_quick.then_some(Duration::ZERO), "{latency:?}");
    }
}
