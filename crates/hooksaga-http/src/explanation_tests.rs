//! Tests of `explanation.rs`.

use super::*;
use hooksaga_saga::{DisabledReason, EventId, JobId, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::Attempt;

const DUE: Timestamp = Timestamp::from_micros(1_769_860_800_123_456);

pub(crate) fn delivery(status: SagaStatus, attempt_count: u32, code: Option<ErrorCode>) -> DeliveryDetail {
    let delivery = Delivery {
        saga_id: SagaId(21),
        tenant: "default".to_owned(),
        event_id: EventId(17),
        event_type: "order.created".to_owned(),
        external_id: None,
        correlation_id: "trace-17".to_owned(),
        subscription_id: SubscriptionId(3),
        callback_url: "https://example.com/hook".to_owned(),
        generation: 0,
        status,
        attempt_count,
        max_retry_limit: 5,
        next_attempt_at: DUE,
        final_error_code: code,
        last_response_status: None,
        created_at: DUE,
        updated_at: DUE,
        held: false,
    };
    DeliveryDetail { delivery, attempts: Vec::new() }
}

pub(crate) fn with_job(mut detail: DeliveryDetail, status: JobStatus) -> DeliveryDetail {
    detail.attempts.push(Attempt {
        job_id: JobId(1),
        attempt_at: DUE,
        started_at: None,
        callback_url: None,
        retry_at: None,
        status,
        response_status: None,
        error_code: None,
        duration_ms: None,
        response_excerpt: None,
        lease_resets: 0,
    });
    detail
}

fn held(mut detail: DeliveryDetail) -> DeliveryDetail {
    detail.delivery.held = true;
    detail
}

fn explain(detail: &DeliveryDetail) -> String {
    super::explain(detail, holding(detail.delivery.held.then_some(Held::Paused))).to_string()
}

/// Of a subscription without a rate limit.
pub(crate) fn holding(held: Option<Held>) -> WaitCauses {
    WaitCauses { held, rate_limit: None }
}

#[test]
fn a_held_delivery_says_why() {
    let detail = held(delivery(SagaStatus::Pending, 0, None));
    let disabled = |reason| Some(Held::Disabled(reason));
    for (held, why) in [
        (
            disabled(DisabledReason::Gone),
            " because the subscription was disabled (its endpoint returned 410 Gone)",
        ),
        (
            disabled(DisabledReason::Failing),
            " because the subscription was disabled (every attempt had failed for too long)",
        ),
        (Some(Held::Paused), " because the subscription is paused"),
        (Some(Held::Unverified), " because the callback URL of the subscription is not verified"),
        // It was resumed a moment ago.
        (None, ""),
    ] {
        assert_eq!(
            super::explain(&detail, holding(held)).to_string(),
            format!(
                "Nothing was sent yet; the first attempt is held{why}, and is sent once subscription 3 is active \
                 and verified."
            )
        );
    }
    let deleted = delivery(SagaStatus::PendingRetry, 1, Some(ErrorCode::http(500)));
    assert_eq!(
        super::explain(&deleted, holding(Some(Held::Deleted))).to_string(),
        "1 of 5 attempts failed, with HTTP_500 (the endpoint failed); it ends without another attempt because the \
         subscription was deleted."
    );
}

#[test]
fn an_open_delivery_says_what_it_waits_for() {
    use SagaStatus::{InProgress, Pending, PendingRetry};
    let new = delivery(Pending, 0, None);
    assert_eq!(explain(&new), "Nothing was sent yet; the first attempt is sent as soon as its turn comes.");
    assert_eq!(
        explain(&held(new)),
        "Nothing was sent yet; the first attempt is held because the subscription is paused, and is sent once \
         subscription 3 is active and verified."
    );
    let first = delivery(InProgress, 0, None);
    assert_eq!(
        explain(&with_job(first.clone(), JobStatus::Pending)),
        "Nothing was sent yet; the first attempt is sent as soon as a worker takes it."
    );
    assert_eq!(
        explain(&held(with_job(first.clone(), JobStatus::Pending))),
        "Nothing was sent yet; the first attempt is held because the subscription is paused, and is sent once \
         subscription 3 is active and verified."
    );
    assert_eq!(
        explain(&held(with_job(first, JobStatus::Leased))),
        "Nothing was sent yet; the first attempt is being sent.",
        "an attempt in flight finishes where it began"
    );
    let again = delivery(InProgress, 2, Some(ErrorCode::http(500)));
    assert_eq!(
        explain(&with_job(again, JobStatus::Failed)),
        "2 of 5 attempts failed, the last with HTTP_500 (the endpoint failed); \
         attempt 3 has ended, and its result is about to be recorded."
    );
    let retry = delivery(PendingRetry, 1, Some(ErrorCode::http(500)));
    assert_eq!(
        explain(&retry),
        "1 of 5 attempts failed, with HTTP_500 (the endpoint failed); \
         the next is due at 2026-01-31T12:00:00.123456Z."
    );
}

#[test]
fn an_open_delivery_says_what_its_subscription_and_its_endpoint_put_it_off_for() {
    use SagaStatus::{InProgress, Pending, PendingRetry};
    let limited = WaitCauses { held: None, rate_limit: Some(5) };
    assert_eq!(
        super::explain(&delivery(Pending, 0, None), limited).to_string(),
        "Nothing was sent yet; the first attempt is sent as soon as its turn comes, at the subscription's rate limit of 5 per second."
    );
    assert_eq!(
        super::explain(&with_job(delivery(InProgress, 0, None), JobStatus::Pending), limited).to_string(),
        "Nothing was sent yet; the first attempt is sent as soon as a worker takes it, at the subscription's rate limit of 5 per second."
    );
    // Asked for exactly this time, for a later one than may be, and for one that the backoff exceeds.
    for (asked, put_off) in [(0, true), (1, true), (-1, false)] {
        let mut retry = with_job(delivery(PendingRetry, 1, Some(ErrorCode::http(429))), JobStatus::Failed);
        retry.attempts[0].attempt_at = Timestamp::from_micros(DUE.as_micros() - 30_000_000);
        retry.attempts[0].retry_at = Some(Timestamp::from_micros(DUE.as_micros() + asked));
        let why = if put_off { ", put off because the endpoint asked for it (Retry-After)," } else { "" };
        let said = explain(&retry);
        assert!(said.ends_with(&format!("; the next{why} is due at 2026-01-31T12:00:00.123456Z.")), "{said}");
        let said = super::explain(&retry, limited).to_string();
        let why = if put_off { why } else { ", at the subscription's rate limit of 5 per second," };
        assert!(said.ends_with(&format!("; the next{why} is due at 2026-01-31T12:00:00.123456Z.")), "{said}");
    }
}

#[test]
fn a_finished_delivery_says_how_it_ended() {
    use SagaStatus::{Completed, DeadLettered};
    let mut taken = delivery(Completed, 1, None);
    taken.delivery.last_response_status = Some(204);
    assert_eq!(
        explain(&taken),
        "The endpoint took it with status 204 at the first attempt; nothing more is to be done."
    );
    let late = delivery(Completed, 3, Some(ErrorCode::http(500)));
    assert_eq!(
        explain(&late),
        "The endpoint took it at attempt 3, after the one before had failed with HTTP_500 (the endpoint failed); \
         nothing more is to be done."
    );
    assert_eq!(
        explain(&delivery(DeadLettered, 5, Some(ErrorCode::http(500)))),
        "All 5 attempts failed, the last with HTTP_500 (the endpoint failed), and it was given up; \
         it is not sent again unless somebody resends it."
    );
    assert_eq!(
        explain(&delivery(DeadLettered, 1, Some(ErrorCode::http(410)))),
        "It was given up after the first attempt because of HTTP_410 (the endpoint says that it is gone for good), \
         which is final; it is not sent again unless somebody resends it."
    );
}

#[test]
fn what_ended_with_its_subscription_does_not_count_what_was_never_sent() {
    let why = "because of SUBSCRIPTION_DELETED (the subscription was deleted before this delivery was made); it is not \
               sent again.";
    for (count, what) in [
        (1, "Nothing was sent"),
        (2, "1 attempt failed, and there was no other"),
        // The last that it had: still it was not sent.
        (5, "4 attempts failed, and there was no other"),
    ] {
        let ended = delivery(SagaStatus::DeadLettered, count, Some(ErrorCode::SUBSCRIPTION_DELETED));
        assert_eq!(explain(&ended), format!("{what} {why}"));
    }
}

#[test]
fn every_status_and_code_makes_one_sentence_with_its_wording() {
    let unknown = ErrorCode::from_stored("NEVER_HEARD_OF".to_owned());
    let codes = ErrorCode::ALL.iter().cloned().chain((300..600).map(ErrorCode::http)).chain([unknown]);
    for code in codes {
        for status in SagaStatus::ALL {
            for (count, is_held, job) in [
                (1, false, None),
                (1, true, None),
                (4, false, Some(JobStatus::Pending)),
                (4, true, Some(JobStatus::Leased)),
                (5, false, Some(JobStatus::Failed)),
                (u32::MAX, false, Some(JobStatus::Completed)),
            ] {
                let mut detail = delivery(*status, count, Some(code.clone()));
                detail.delivery.held = is_held;
                let detail = job.map_or(detail.clone(), |job| with_job(detail, job));
                let said = explain(&detail);
                assert!(
                    said.starts_with(|first: char| first.is_uppercase() || first.is_ascii_digit()),
                    "{said}"
                );
                assert!(
                    said.ends_with('.') && !said.ends_with("..") && !said.contains(['\n', '\r']),
                    "{said}"
                );
                assert!(said.contains(code.as_str()) && said.contains(code.wording().meaning), "{said}");
                assert_eq!(said.matches(". ").count(), 0, "one sentence: {said}");
                assert!(said.contains("; "), "what happened, and what happens next: {said}");
            }
        }
    }
}
