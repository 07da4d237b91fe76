//! Codes and statuses in plain words: what happened, and what to do about it.

use hooksaga_saga::{ErrorCode, SagaStatus};

pub(super) const fn status(status: SagaStatus) -> &'static str {
    match status {
        SagaStatus::Pending => "Waiting",
        SagaStatus::InProgress => "Sending",
        SagaStatus::PendingRetry => "Retrying",
        SagaStatus::Completed => "Delivered",
        SagaStatus::DeadLettered => "Given up",
    }
}

/// What an error code means, and what to do: sentences made of the wordings that everything shares.
pub(super) struct Meaning {
    pub(super) what: String,
    pub(super) advice: String,
}

pub(super) fn meaning(code: &ErrorCode) -> Meaning {
    let wording = code.wording();
    let status = match code.as_str().strip_prefix("HTTP_") {
        Some(status) => format!(" (HTTP {status})"),
        None => String::new(),
    };
    Meaning {
        what: format!("{}{status}.", capitalised(wording.meaning)),
        advice: format!("{}.", capitalised(wording.advice)),
    }
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
        assert!(meaning.what.starts_with("What stands in front") && meaning.what.ends_with(" (HTTP 503)."));
        assert!(meaning.advice.ends_with('.'));
        assert!(super::meaning(&ErrorCode::TIMEOUT).what.ends_with("in time."));
    }
}
