//! Codes and statuses in plain words: what happened, and what to do about it.

use hooksaga_saga::{ErrorCode, SagaStatus, Tenant};
use hooksaga_store::TenantScope;

pub(super) const fn status(status: SagaStatus) -> &'static str {
    match status {
        SagaStatus::Pending => "Waiting",
        SagaStatus::InProgress => "Sending",
        SagaStatus::PendingRetry => "Retrying",
        SagaStatus::Completed => "Delivered",
        SagaStatus::DeadLettered => "Given up",
    }
}

/// Who reads a page, and so what can be done about what it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// Those who run the server.
    Operators,
    /// Those whose key is bound to a tenant, in the portal and on the dashboard.
    Customers,
}

/// What an error code means, and what to do: sentences made of the wordings that everything shares.
pub(super) struct Meaning {
    pub(super) what: String,
    advice: &'static str,
    for_customers: &'static str,
}

impl Meaning {
    /// What these readers can do.
    pub(super) fn advice(&self, audience: Audience) -> String {
        match audience {
            Audience::Operators => sentence(self.advice),
            Audience::Customers => sentence(self.for_customers),
        }
    }
}

pub(super) fn meaning(code: &ErrorCode) -> Meaning {
    let wording = code.wording();
    let status = match code.as_str().strip_prefix("HTTP_") {
        Some(status) => format!(" (HTTP {status})"),
        None => String::new(),
    };
    Meaning {
        what: format!("{}{status}.", capitalised(wording.meaning)),
        advice: wording.advice,
        for_customers: wording.advice_for_customers,
    }
}

/// The same for a text that an operator passes on to a customer: no more than the customer's own pages show.
pub(super) fn meaning_for_customers(code: &ErrorCode) -> Meaning {
    meaning(TenantScope::One(Tenant::default()).shown_code(code))
}

/// A clause as a sentence.
pub(super) fn sentence(clause: &str) -> String {
    format!("{}.", capitalised(clause))
}

/// A clause as the beginning of a sentence.
pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_sentences_that_name_the_status() {
        let meaning = meaning(&ErrorCode::http(503));
        assert!(meaning.what.starts_with("The endpoint's proxy") && meaning.what.ends_with(" (HTTP 503)."));
        assert!(meaning.advice(Audience::Operators).ends_with("can be sent again."));
        assert!(super::meaning(&ErrorCode::TIMEOUT).what.ends_with("in time."));
    }

    #[test]
    fn customers_are_told_what_they_can_do() {
        let tls = meaning(&ErrorCode::TLS_FAILED);
        assert!(tls.advice(Audience::Operators).contains("callbacks.ca_file"));
        assert!(tls.advice(Audience::Customers).ends_with("issued for this host name."));
        let blocked = meaning_for_customers(&ErrorCode::BLOCKED_ADDRESS);
        assert_eq!(blocked.what, meaning(&ErrorCode::DNS_FAILED).what, "which names exist is not told");
    }
}
