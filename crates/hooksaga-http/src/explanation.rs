//! A delivery in one plain sentence: what happened and what happens next.
//!
//! The API writes it as text, which the command line shows; the pages of the dashboard and the portal say the same. The
//! saga crate's wordings explain error codes and why a delivery is held.

use crate::time::ApiTime;
use hooksaga_saga::{ErrorCode, Held, JobStatus, SagaStatus, Timestamp};
use hooksaga_store::{Delivery, DeliveryDetail};
use std::fmt;

/// The sentence. Only a page shows the time at its end in another way.
#[derive(Clone, Debug)]
pub(crate) struct Explanation {
    /// Without the full stop, and without the time.
    pub(crate) text: String,
    /// When the next attempt is due, where the sentence ends with that.
    pub(crate) due: Option<Timestamp>,
    /// What the sentence says that the delivery waits for, or ends of.
    pub(crate) held: Option<Held>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if let Some(due) = self.due {
            write!(f, " due at {}", ApiTime(due))?;
        }
        f.write_str(".")
    }
}

/// What an open delivery's subscription has to do with when it is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitCauses {
    /// Why the subscription keeps it waiting, if it does.
    pub(crate) held: Option<Held>,
    /// Attempts per second that the subscription allows, if they are limited.
    pub(crate) rate_limit: Option<u32>,
}

pub(crate) fn explain(detail: &DeliveryDetail, wait_causes: WaitCauses) -> Explanation {
    let delivery = &detail.delivery;
    let text = match delivery.status {
        SagaStatus::Completed => completed(delivery),
        SagaStatus::DeadLettered => match &delivery.final_error_code {
            Some(code) if *code == ErrorCode::SUBSCRIPTION_DELETED => unsent(delivery, code),
            code => given_up(delivery, code.as_ref().unwrap_or(&ErrorCode::INTERNAL)),
        },
        SagaStatus::Pending | SagaStatus::InProgress | SagaStatus::PendingRetry => {
            let next = next(detail, wait_causes);
            return Explanation { text: format!("{}; {}", so_far(delivery), next.text), ..next };
        }
    };
    Explanation { text, due: None, held: None }
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

fn given_up(delivery: &Delivery, code: &ErrorCode) -> String {
    let what = match delivery.attempt_count {
        count if count < delivery.max_retry_limit => {
            let early = if count == 1 { "the first attempt".to_owned() } else { format!("attempt {count}") };
            format!("It was given up after {early} because of {}, which is final", failure(code))
        }
        1 => format!("The only attempt failed with {}, and it was given up", failure(code)),
        count => format!("All {count} attempts failed, the last with {}, and it was given up", failure(code)),
    };
    format!("{what}; it is not sent again unless somebody resends it")
}

/// Its last attempt, which ended it, was no request: the endpoint did not hear of it.
fn unsent(delivery: &Delivery, code: &ErrorCode) -> String {
    let what = match delivery.attempt_count.saturating_sub(1) {
        0 => "Nothing was sent".to_owned(),
        1 => "1 attempt failed, and there was no other".to_owned(),
        sent => format!("{sent} attempts failed, and there was no other"),
    };
    format!("{what} because of {}; it is not sent again", failure(code))
}

/// What an open delivery waits for.
fn next(detail: &DeliveryDetail, WaitCauses { held, rate_limit }: WaitCauses) -> Explanation {
    let delivery = &detail.delivery;
    let limit = rate_limit.map(|limit| format!(", at the subscription's rate limit of {limit} per second"));
    let pace = limit.as_deref().unwrap_or_default();
    let attempt = match delivery.attempt_count {
        0 => "the first attempt".to_owned(),
        count => format!("attempt {}", count.saturating_add(1)),
    };
    let say = |text: String| Explanation { text, due: None, held: None };
    // Only the last job can be other than finished; while the saga waits for its next job, the last one is an old one.
    let job = detail.attempts.last().filter(|job| job.attempt_at == delivery.next_attempt_at);
    match job.map(|job| job.status) {
        Some(JobStatus::Leased) => say(format!("{attempt} is being sent")),
        Some(JobStatus::Completed | JobStatus::Failed) => {
            say(format!("{attempt} has ended, and its result is about to be recorded"))
        }
        _ if held == Some(Held::Deleted) => {
            let text = format!("it ends without another attempt because {}", Held::Deleted.because());
            Explanation { held, ..say(text) }
        }
        _ if delivery.held => {
            let because = held.map(|held| format!(" because {}", held.because())).unwrap_or_default();
            let id = delivery.subscription_id;
            let text = format!(
                "{attempt} is held{because}, and is sent once subscription {id} is active and verified"
            );
            Explanation { held, ..say(text) }
        }
        Some(JobStatus::Pending) => say(format!("{attempt} is sent as soon as a worker takes it{pace}")),
        None if delivery.status == SagaStatus::PendingRetry => {
            let asked = detail.attempts.last().and_then(|last| last.retry_at);
            // Not before it, or as late as a retry may be.
            let put_off = asked.is_some_and(|asked| asked >= delivery.next_attempt_at);
            let why = match limit {
                _ if put_off => ", put off because the endpoint asked for it (Retry-After),".to_owned(),
                Some(limit) => format!("{limit},"),
                None => String::new(),
            };
            Explanation { due: Some(delivery.next_attempt_at), ..say(format!("the next{why} is")) }
        }
        None => say(format!("{attempt} is sent as soon as its turn comes{pace}")),
    }
}

/// A code and what it means.
fn failure(code: &ErrorCode) -> String {
    format!("{code} ({})", code.wording().meaning)
}

#[cfg(test)]
#[path = "explanation_tests.rs"]
pub(crate) mod tests;
