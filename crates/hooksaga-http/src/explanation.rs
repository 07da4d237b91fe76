//! A delivery in one plain sentence: what happened and what happens next.
//!
//! The saga crate's wordings explain error codes and why a delivery is held; the command line and the
//! dashboard use them, too.

use crate::time::Time;
use hooksaga_saga::{ErrorCode, Held, JobStatus, SagaStatus};
use hooksaga_store::{Delivery, DeliveryDetail};

/// The sentence, with its full stop. `held`: why the subscription keeps an open delivery waiting, if it does.
pub(crate) fn explain(detail: &DeliveryDetail, held: Option<Held>) -> String {
    let delivery = &detail.delivery;
    let mut sentence = match delivery.status {
        SagaStatus::Completed => completed(delivery),
        SagaStatus::DeadLettered => format!("{}; {}", given_up(delivery), after_the_end(delivery)),
        SagaStatus::Pending | SagaStatus::InProgress | SagaStatus::PendingRetry => {
            format!("{}; {}", so_far(delivery), next(detail, held))
        }
    };
    sentence.push('.');
    sentence
}

fn completed(delivery: &Delivery) -> String {
    let status =
        delivery.last_response_status.map_or(String::new(), |status| format!(" with status {status}"));
    match &delivery.final_error_code {
        None => format!("The endpoint took it{status} at the first attempt; nothing more is to be done"),
        Some(code) => format!(
            "The endpoint took it{status} at attempt {}, after the one before had failed with {}; nothing more is to be done",
            delivery.attempt_count,
            failure(code)
        ),
    }
}

/// What has been tried of an open delivery.
fn so_far(delivery: &Delivery) -> String {
    match (&delivery.final_error_code, delivery.attempt_count) {
        (Some(code), count) if count > 0 => {
            let last = if count == 1 { "" } else { "the last " };
            format!("{count} of {} attempts failed, {last}with {}", delivery.max_retry_limit, failure(code))
        }
        _ => "Nothing was sent yet".to_owned(),
    }
}

fn given_up(delivery: &Delivery) -> String {
    let code = delivery.final_error_code.as_ref().unwrap_or(&ErrorCode::INTERNAL);
    match delivery.attempt_count {
        count if count < delivery.max_retry_limit => {
            let early = if count == 1 { "the first attempt".to_owned() } else { format!("attempt {count}") };
            format!("It was given up after {early} because of {}, which is final", failure(code))
        }
        1 => format!("The only attempt failed with {}, and it was given up", failure(code)),
        count => format!("All {count} attempts failed, the last with {}, and it was given up", failure(code)),
    }
}

fn after_the_end(delivery: &Delivery) -> &'static str {
    match &delivery.final_error_code {
        Some(code) if *code == ErrorCode::SUBSCRIPTION_DELETED => "it is not sent again",
        _ => "it is not sent again unless somebody resends it",
    }
}

/// What an open delivery waits for.
fn next(detail: &DeliveryDetail, held: Option<Held>) -> String {
    let delivery = &detail.delivery;
    let attempt = match delivery.attempt_count {
        0 => "the first attempt".to_owned(),
        count => format!("attempt {}", count.saturating_add(1)),
    };
    // Only the last job can be other than finished; while the saga waits for its next job, the last one is an old one.
    let job = detail.attempts.last().filter(|job| job.attempt_at == delivery.next_attempt_at);
    match job.map(|job| job.status) {
        Some(JobStatus::Leased) => format!("{attempt} is being sent"),
        Some(JobStatus::Completed | JobStatus::Failed) => {
            format!("{attempt} has ended, and its result is about to be recorded")
        }
        _ if held == Some(Held::Deleted) => {
            format!("it ends without another attempt because {}", Held::Deleted.because())
        }
        _ if delivery.held => {
            let because = held.map(|held| format!(" because {}", held.because())).unwrap_or_default();
            let id = delivery.subscription_id;
            format!("{attempt} is held{because}, and is sent once subscription {id} is active and verified")
        }
        Some(JobStatus::Pending) => format!("{attempt} is sent as soon as a worker takes it"),
        None if delivery.status == SagaStatus::PendingRetry => {
            format!("the next is due at {}", Time(delivery.next_attempt_at))
        }
        None => format!("{attempt} is sent as soon as its turn comes"),
    }
}

/// A code and what it means.
fn failure(code: &ErrorCode) -> String {
    format!("{code} ({})", code.wording().meaning)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::{DisabledReason, EventId, JobId, SagaId, SubscriptionId, Timestamp};
    use hooksaga_store::Attempt;

    const DUE: Timestamp = Timestamp::from_micros(1_769_860_800_123_456);

    fn delivery(status: SagaStatus, attempt_count: u32, code: Option<ErrorCode>) -> DeliveryDetail {
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

    fn with_job(mut detail: DeliveryDetail, status: JobStatus) -> DeliveryDetail {
        detail.attempts.push(Attempt {
            job_id: JobId(1),
            attempt_at: DUE,
            started_at: None,
            callback_url: None,
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
        super::explain(detail, detail.delivery.held.then_some(Held::Paused))
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
                super::explain(&detail, held),
                format!(
                    "Nothing was sent yet; the first attempt is held{why}, and is sent once subscription 3 is active \
                     and verified."
                )
            );
        }
        let deleted = delivery(SagaStatus::PendingRetry, 1, Some(ErrorCode::http(500)));
        assert_eq!(
            super::explain(&deleted, Some(Held::Deleted)),
            "1 of 5 attempts failed, with HTTP_500 (the endpoint failed); it ends without another attempt because the \
             subscription was deleted."
        );
    }

    #[test]
    fn an_open_delivery_says_what_it_waits_for() {
        use SagaStatus::{InProgress, Pending, PendingRetry};
        let new = delivery(Pending, 0, None);
        assert_eq!(
            explain(&new),
            "Nothing was sent yet; the first attempt is sent as soon as its turn comes."
        );
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
}
