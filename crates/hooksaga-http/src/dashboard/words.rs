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

/// What an error code means, and what to do.
pub(super) struct Meaning {
    pub(super) what: String,
    pub(super) advice: &'static str,
}

pub(super) fn meaning(code: &ErrorCode) -> Meaning {
    let said = |what: &str, advice| Meaning { what: what.to_owned(), advice };
    if let Some(status) = code.as_str().strip_prefix("HTTP_").and_then(|status| status.parse().ok()) {
        return of_status(status);
    }
    match code.as_str() {
        "REDIRECT" => said(
            "The endpoint redirected the request. Redirects are not followed.",
            "Change the callback URL to the address that it redirects to.",
        ),
        "TIMEOUT" => said(
            "The endpoint did not respond in time.",
            "Return 2xx at once and do the work afterwards; if it does, check that it is up.",
        ),
        "CONNECT_FAILED" => said(
            "No connection to the endpoint could be made.",
            "Check that the server runs, listens on this port, and that no firewall is in between.",
        ),
        "DNS_FAILED" => said(
            "The host name of the callback URL could not be resolved.",
            "Check the name in the callback URL and its DNS records.",
        ),
        "TLS_FAILED" => said(
            "The TLS handshake with the endpoint failed.",
            "Check its certificate: not expired, for this host name, and with the intermediate certificates.",
        ),
        "BLOCKED_ADDRESS" => said(
            "The host name leads to an address that must not be called, such as a private one.",
            "Use a public address, or have the operator allow the network.",
        ),
        "RESPONSE_INVALID" => said(
            "The endpoint sent something that is not HTTP, or closed the connection before a response.",
            "Check what listens on this port, and its log at the time of the attempt.",
        ),
        "LEASE_EXHAUSTED" => said(
            "The worker that took this delivery ended before it could report, several times.",
            "Look into the workers' logs; then send it again.",
        ),
        "SUBSCRIPTION_DELETED" => said("The subscription was deleted before this was delivered.", ""),
        "CHALLENGE_MISMATCH" => said(
            "The endpoint responded, but not with the challenge.",
            "Return the challenge exactly as this page shows.",
        ),
        "INTERNAL" => said(
            "Something failed in this server, not at the endpoint.",
            "Look into the server's log; then send it again.",
        ),
        other => Meaning { what: format!("The attempt failed with {other}."), advice: "" },
    }
}

fn of_status(status: u16) -> Meaning {
    let advice = match status {
        400 | 422 => "It refuses this payload: compare it with what the endpoint expects.",
        401 | 403 => {
            "It refuses the request: check its access rules, and that it verifies the signature with the current secret."
        }
        404 | 405 => "Nothing accepts webhooks there: check the path of the callback URL.",
        410 => "It says that it is gone for good: change the callback URL.",
        413 => "The payload is too large for it: raise its limit.",
        429 => "It asks for fewer requests: it is sent less at a time, and later.",
        500 => "It failed while it handled the request: look into its log at the time of the attempt.",
        502..=504 => "It, or a proxy in front of it, is overloaded or down: check that it is up again.",
        _ => "Look into its log at the time of the attempt.",
    };
    Meaning { what: format!("The endpoint returned HTTP {status}."), advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_words_of_its_own() {
        for code in ErrorCode::ALL {
            assert!(!meaning(code).what.contains(code.as_str()), "{code}");
        }
        assert!(meaning(&ErrorCode::http(503)).what.contains("503"));
        let unknown = ErrorCode::from_stored("NEW_CODE".to_owned());
        assert!(meaning(&unknown).what.contains("NEW_CODE"));
    }
}
