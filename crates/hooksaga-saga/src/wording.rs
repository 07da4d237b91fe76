//! What an error code means, why a subscription was disabled and why a delivery is held: in words for people, with what
//! they can do about it.
//!
//! One table for everything that shows these: the API, the command line, the dashboard and the log say the same.

use crate::{DisabledReason, ErrorCode, Held};

/// An error code in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wording {
    /// What happened: a clause without a full stop that can follow the code and a colon.
    pub meaning: &'static str,
    /// What to do about it: the same.
    pub advice: &'static str,
    /// What somebody can do who runs the endpoint, but not this server.
    pub advice_for_customers: &'static str,
}

const fn say(meaning: &'static str, advice: &'static str) -> Wording {
    Wording { meaning, advice, advice_for_customers: advice }
}

/// What the operators of this server can do, and what their customers can.
const fn say_to_each(meaning: &'static str, operators: &'static str, customers: &'static str) -> Wording {
    Wording { meaning, advice: operators, advice_for_customers: customers }
}

/// Where nothing is wrong with the endpoint.
const NOT_THE_ENDPOINT: &str = "nothing is wrong with the endpoint: ask whoever sends these webhooks";

impl ErrorCode {
    /// What this code means and what to do about it.
    ///
    /// A code that this version does not know has a wording too: codes are an open set.
    pub fn wording(&self) -> Wording {
        match self.as_str() {
            "REDIRECT" => say(
                "the endpoint redirected, and redirects are not followed",
                "set the callback URL to the address that it redirects to",
            ),
            "TIMEOUT" => say(
                "the endpoint did not respond in time",
                "let the endpoint store the event, respond at once, and do the work afterwards",
            ),
            "CONNECT_FAILED" => say(
                "no connection to the endpoint",
                "check that it runs, that host and port in the callback URL are right, and that no firewall is in between",
            ),
            "DNS_FAILED" => say(
                "the host name in the callback URL did not resolve",
                "check the spelling of the host name and its DNS records",
            ),
            "TLS_FAILED" => say_to_each(
                "the TLS handshake failed",
                "check that the endpoint's certificate is valid, complete and issued for this host name \
                 (callbacks.ca_file adds an authority of your own)",
                "check that the endpoint's certificate is valid, complete and issued for this host name",
            ),
            "BLOCKED_ADDRESS" => say_to_each(
                "the callback URL leads to an address that must not be called: private, loopback or otherwise special",
                "use a public address, or allow the network with callbacks.allow_networks",
                // Customers see it as a name that does not resolve.
                "check the spelling of the host name and its DNS records",
            ),
            "RESPONSE_INVALID" => say(
                "the endpoint closed the connection without a response, or what it sent was not HTTP",
                "check that the callback URL has the right scheme and port, and look into the endpoint's log",
            ),
            "LEASE_EXHAUSTED" => say_to_each(
                "too many workers crashed or were killed while sending this delivery",
                "look into the log of the workers for crashes or kills for lack of memory, then send it again",
                NOT_THE_ENDPOINT,
            ),
            "SUBSCRIPTION_DELETED" => say(
                "the subscription was deleted before this delivery was made",
                "nothing: create the subscription again if it was deleted by mistake",
            ),
            "INTERNAL" => say_to_each(
                "a fault of this server",
                "look into the server's log for this delivery",
                NOT_THE_ENDPOINT,
            ),
            "CHALLENGE_MISMATCH" => say(
                "the endpoint responded to the verification, but not with the challenge",
                "return 2xx and echo the challenge, as {\"challenge\":\"…\"} or as plain text",
            ),
            code => http(code),
        }
    }
}

impl DisabledReason {
    /// Why a subscription was disabled, and what to do about it.
    pub const fn wording(self) -> Wording {
        match self {
            Self::Gone => say(
                "its endpoint returned 410 Gone",
                "give it another callback URL if the endpoint has moved, and resume it; waiting deliveries are then sent",
            ),
            Self::Failing => say(
                "every attempt had failed for too long",
                "repair the endpoint and resume it; waiting deliveries are then sent",
            ),
        }
    }
}

impl Held {
    /// Why the open deliveries of a subscription wait: a clause that can follow "because".
    pub fn because(self) -> String {
        match self {
            Self::Disabled(reason) => format!("the subscription was disabled ({})", reason.wording().meaning),
            Self::Paused => "the subscription is paused".to_owned(),
            Self::Unverified => "the callback URL of the subscription is not verified".to_owned(),
            Self::Deleted => "the subscription was deleted".to_owned(),
        }
    }

    /// What becomes of them, and what to do: a clause without a full stop.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Disabled(reason) => reason.wording().advice,
            Self::Paused => "resume it; waiting deliveries are then sent",
            Self::Unverified => {
                "let the endpoint return the challenge, and ask for verification again; waiting deliveries are then sent"
            }
            Self::Deleted => "nothing: what was still to be delivered ends without being sent",
        }
    }
}

fn http(code: &str) -> Wording {
    let status: Option<u16> = code.strip_prefix("HTTP_").and_then(|status| status.parse().ok());
    match status {
        Some(401 | 403) => say(
            "the endpoint refused the request as not authorized",
            "check that it verifies signatures with this subscription's current secret, and that nothing in front of it \
             asks for a login",
        ),
        Some(404 | 405) => say(
            "the endpoint has nothing at this path that takes a POST",
            "check the path in the callback URL, and that the endpoint is deployed",
        ),
        Some(408) => say("the endpoint gave up waiting for the request", "look into the endpoint's log"),
        Some(410) => say(
            "the endpoint says that it is gone for good",
            "give the subscription another callback URL if the endpoint has moved",
        ),
        Some(413) => {
            say("the payload is too large for the endpoint", "raise the endpoint's limit for request bodies")
        }
        Some(429) => say(
            "the endpoint asks for fewer requests",
            "nothing at first: the delivery is tried again later; raise the endpoint's limit if this goes on",
        ),
        Some(400..=499) => say(
            "the endpoint refused the request",
            "the response of the attempt and the endpoint's log say why; fix the endpoint, then send the dead letters again",
        ),
        Some(502..=504) => say(
            "the endpoint's proxy or load balancer could not reach it, or it is overloaded",
            "check that the endpoint runs; dead letters can be sent again",
        ),
        Some(500..=599) => say(
            "the endpoint failed",
            "look into the endpoint's log; fix the endpoint, then send the dead letters again",
        ),
        Some(_) => say(
            "the endpoint responded with a status that no delivery expects",
            "return 2xx for every delivery that the endpoint accepts",
        ),
        None => say_to_each(
            "a code that this version does not know",
            "upgrade: a newer version of the server has written it",
            "ask whoever sends these webhooks",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown() -> Wording {
        ErrorCode::from_stored("NEVER_HEARD_OF".to_owned()).wording()
    }

    #[test]
    fn every_code_has_a_wording_of_its_own() {
        let mut seen = vec![unknown()];
        for code in ErrorCode::ALL {
            let wording = code.wording();
            assert!(!seen.contains(&wording), "{code} shares its wording");
            seen.push(wording);
        }
        for status in 400..=599 {
            let code = ErrorCode::http(status);
            assert_ne!(code.wording(), unknown(), "{code}");
        }
    }

    #[test]
    fn wordings_fit_behind_a_colon() {
        let statuses = [302, 400, 401, 404, 408, 410, 413, 429, 500, 503].map(ErrorCode::http);
        for code in ErrorCode::ALL.iter().chain(&statuses) {
            let Wording { meaning, advice, advice_for_customers } = code.wording();
            for text in [meaning, advice, advice_for_customers] {
                assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('\n'), "{code}: {text}");
                assert!(!text.contains("  "), "{code}: {text}");
            }
        }
    }

    #[test]
    fn customers_are_not_told_about_the_settings_of_the_server() {
        for code in ErrorCode::ALL.iter().chain([&ErrorCode::from_stored("NEW".to_owned())]) {
            let advice = code.wording().advice_for_customers;
            for operators in ["callbacks.", "workers", "server's log", "upgrade"] {
                assert!(!advice.contains(operators), "{code}: {advice}");
            }
        }
    }

    #[test]
    fn every_reason_to_wait_has_words_of_its_own() {
        let disabled = DisabledReason::ALL.map(Held::Disabled);
        let mut seen = Vec::new();
        for held in disabled.into_iter().chain([Held::Paused, Held::Unverified, Held::Deleted]) {
            for text in [held.because(), held.advice().to_owned()] {
                assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('\n'), "{text}");
            }
            assert!(!seen.contains(&held.because()), "{held:?} shares its words");
            seen.push(held.because());
        }
        assert_eq!(seen[0], "the subscription was disabled (its endpoint returned 410 Gone)");
    }

    #[test]
    fn a_status_that_is_no_number_is_unknown() {
        for text in ["HTTP_", "HTTP_abc", "HTTP_99999", ""] {
            assert_eq!(ErrorCode::from_stored(text.to_owned()).wording(), unknown(), "{text}");
        }
    }
}
