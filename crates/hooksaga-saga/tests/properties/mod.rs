//! Properties of the pure functions, over arbitrary input.

mod allotment;
mod backoff;
mod callback_urls;
mod care;
mod endpoint;
mod latency;
mod names;
mod rate_limit;
mod redrives;
mod request_headers;
mod retention;
mod retries;
mod retry_after;
mod sequences;
mod stranded;
mod topics;
mod transitions;
mod values;

use hooksaga_saga::{ErrorCode, Outcome, RetryPolicy, Saga, SagaEvent, SagaStatus, Timestamp};
use proptest::{option, prelude::*, sample::select};
use std::time::Duration;

/// Any time, with those that arithmetic goes wrong at more often than chance would have them.
fn timestamps() -> impl Strategy<Value = Timestamp> {
    let max = Timestamp::MAX.as_micros();
    prop_oneof![
        any::<i64>(),
        max - 3..=max,
        -3_i64..=3,
        Just(i64::MIN),
        // Our century.
        1_600_000_000_000_000..=4_000_000_000_000_000_i64,
    ]
    .prop_map(Timestamp::from_micros)
}

/// Any duration, absurd ones included.
fn durations() -> impl Strategy<Value = Duration> {
    let parts = |(secs, nanos)| Duration::new(secs, nanos);
    prop_oneof![
        (any::<u64>(), 0_u32..1_000_000_000).prop_map(parts),
        (0_u64..100_000).prop_map(Duration::from_secs),
        (0_u64..5_000_000).prop_map(Duration::from_micros),
        (0_u64..5_000).prop_map(Duration::from_nanos),
        Just(Duration::ZERO),
        Just(Duration::MAX),
    ]
}

fn policies() -> impl Strategy<Value = RetryPolicy> {
    let any = (durations(), durations());
    prop_oneof![
        any.prop_map(|(base_delay, max_delay)| RetryPolicy { base_delay, max_delay }),
        Just(RetryPolicy::default()),
    ]
}

/// Counts and limits: small ones, and those at the edge.
fn counts() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..=8, 0_u32..=200, Just(u32::MAX - 1), Just(u32::MAX), any::<u32>()]
}

fn codes() -> impl Strategy<Value = ErrorCode> {
    prop_oneof![
        select(vec![ErrorCode::TIMEOUT, ErrorCode::LEASE_EXHAUSTED, ErrorCode::http(429)]),
        select(vec![ErrorCode::SUBSCRIPTION_DELETED, ErrorCode::http(410)]),
        (100_u16..=999).prop_map(ErrorCode::http),
    ]
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![Just(Outcome::Delivered), codes().prop_map(Outcome::Failed)]
}

/// Any saga, whether or not one like it can come about.
fn sagas() -> impl Strategy<Value = Saga> {
    (select(SagaStatus::ALL), counts(), counts(), timestamps(), option::of(codes())).prop_map(
        |(status, attempt_count, max_retry_limit, next_attempt_at, final_error_code)| Saga {
            status,
            attempt_count,
            max_retry_limit,
            next_attempt_at,
            final_error_code,
        },
    )
}

/// A saga and an event that speaks of its attempt, or (one time in three) of another.
fn sagas_with_events() -> impl Strategy<Value = (Saga, SagaEvent)> {
    let other = option::weighted(0.33, timestamps());
    let finished = option::of((outcomes(), option::of(timestamps())));
    (sagas(), other, finished).prop_map(|(saga, at, finished)| {
        let attempt_at = at.unwrap_or(saga.next_attempt_at);
        let event = match finished {
            None => SagaEvent::JobCreated { attempt_at },
            Some((outcome, retry_at)) => SagaEvent::JobFinished { attempt_at, outcome, retry_at },
        };
        (saga, event)
    })
}
