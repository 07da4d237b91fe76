//! The challenge, and which responses prove that the endpoint understood it.

use hooksaga_saga::SubscriptionId;
use serde::Deserialize;

/// The body of a challenge.
pub(super) fn request_body(subscription_id: SubscriptionId, challenge: &str) -> String {
    format!(
        r#"{{"type":"hooksaga.verification","subscription_id":{subscription_id},"challenge":"{challenge}"}}"#
    )
}

/// The JSON form of an answer. Any other key means that the request was echoed, not understood.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChallengeEcho<'a> {
    #[serde(borrow)]
    challenge: std::borrow::Cow<'a, str>,
}

/// Whether a 2xx answer gives the challenge back: `{"challenge":"…"}` with that one key, or plain text.
pub(super) fn proves(answer: &[u8], challenge: &str) -> bool {
    let answer = answer.trim_ascii();
    // An array would pass for the object that it lists the values of.
    if answer.first() == Some(&b'{') {
        serde_json::from_slice::<ChallengeEcho>(answer).is_ok_and(|answer| answer.challenge == challenge)
    } else {
        answer == challenge.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHALLENGE: &str = "0123456789abcdef0123456789abcdef";

    fn filled(text: &str) -> String {
        text.replace('$', CHALLENGE)
    }

    #[test]
    fn the_challenge_alone_proves_the_endpoint() {
        for answer in [
            "$",
            " $\r\n",
            r#"{"challenge":"$"}"#,
            "\n{ \"challenge\" : \"$\" }\n",
            // JSON may write any character as an escape.
            r#"{"challen\u0067e":"$"}"#,
        ] {
            assert!(proves(filled(answer).as_bytes(), CHALLENGE), "{answer}");
        }
    }

    #[test]
    fn anything_else_does_not() {
        for answer in [
            "",
            "ok",
            "$$",
            "challenge=$",
            r#""$""#,
            r#"["$"]"#,
            r#"{"challenge":["$"]}"#,
            r#"{"challenge":"$"} x"#,
            r#"{"challenge":"$","ok":true}"#,
            r#"{"challenge":"$","challenge":"$"}"#,
            r#"{"challenge":"no"}"#,
            r#"{"Challenge":"$"}"#,
            r#"{"challenge":"$""#,
            "{}",
        ] {
            assert!(!proves(filled(answer).as_bytes(), CHALLENGE), "{answer}");
        }
        assert!(!proves(b"\xff\xfe", CHALLENGE));
        assert!(!proves(CHALLENGE.to_uppercase().as_bytes(), CHALLENGE));
    }

    #[test]
    fn an_echo_of_the_request_does_not() {
        let request = request_body(SubscriptionId(7), CHALLENGE);
        assert_eq!(
            request,
            filled(r#"{"type":"hooksaga.verification","subscription_id":7,"challenge":"$"}"#)
        );
        assert!(!proves(request.as_bytes(), CHALLENGE));
    }
}
