//! Checks Standard Webhooks signatures, as any receiver of ours would.

use base64::{Engine, engine::general_purpose::STANDARD};
use hooksaga_pipeline::SigningSecret;
use http::HeaderMap;
use ring::hmac;
use std::fmt;

/// Signatures older or younger than this are refused: a recorded request cannot be replayed later.
const TOLERANCE_SECONDS: u64 = 300;

/// What a receiver thinks of a request's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureCheck {
    /// One of the secrets made it, and lately.
    Valid,
    /// No secret was given to check with.
    Unchecked,
    /// The request carries no signature.
    Missing,
    /// The timestamp is too far from now.
    Stale,
    /// None of the secrets made it.
    Invalid,
}

impl SignatureCheck {
    /// Whether a receiver should take the request for genuine.
    pub(crate) fn is_acceptable(self) -> bool {
        matches!(self, Self::Valid | Self::Unchecked)
    }
}

impl fmt::Display for SignatureCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Valid => "signature valid",
            Self::Unchecked => "signature not checked",
            Self::Missing => "signature MISSING",
            Self::Stale => "signature STALE",
            Self::Invalid => "signature INVALID",
        })
    }
}

/// Checks a request against the secrets that may have signed it. `now`: seconds since the Unix epoch.
pub(super) fn check(headers: &HeaderMap, body: &[u8], secrets: &[SigningSecret], now: u64) -> SignatureCheck {
    if secrets.is_empty() {
        return SignatureCheck::Unchecked;
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(id), Some(timestamp), Some(signatures)) =
        (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"))
    else {
        return SignatureCheck::Missing;
    };
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(body);
    let genuine = signatures
        .split(' ')
        .filter_map(|signature| STANDARD.decode(signature.strip_prefix("v1,")?).ok())
        .any(|tag| secrets.iter().any(|secret| made_by(secret, &signed, &tag)));
    match timestamp.parse::<u64>() {
        _ if !genuine => SignatureCheck::Invalid,
        Ok(sent) if sent.abs_diff(now) <= TOLERANCE_SECONDS => SignatureCheck::Valid,
        _ => SignatureCheck::Stale,
    }
}

fn made_by(secret: &SigningSecret, signed: &[u8], tag: &[u8]) -> bool {
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), signed, tag).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of the Standard Webhooks specification's reference libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SENT: u64 = 1_614_265_330;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn request(signature: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", signature),
        ] {
            headers.insert(name, value.parse().expect("a header value"));
        }
        headers
    }

    fn secrets() -> Vec<SigningSecret> {
        vec![SigningSecret::generate(), SECRET.parse().expect("a secret")]
    }

    #[test]
    fn a_known_signature_is_valid_by_any_of_the_secrets_and_among_several_signatures() {
        assert_eq!(check(&request(SIGNATURE), BODY, &secrets(), SENT + 300), SignatureCheck::Valid);
        let several = format!("v1,AAAA v1a,xyz {SIGNATURE}");
        assert_eq!(check(&request(&several), BODY, &secrets(), SENT), SignatureCheck::Valid);
    }

    #[test]
    fn anything_else_is_not() {
        assert_eq!(check(&request(SIGNATURE), b"{}", &secrets(), SENT), SignatureCheck::Invalid);
        assert_eq!(check(&request("v1,AAAA"), BODY, &secrets(), SENT), SignatureCheck::Invalid);
        assert_eq!(
            check(&request(SIGNATURE), BODY, &[SigningSecret::generate()], SENT),
            SignatureCheck::Invalid
        );
        assert_eq!(check(&request(SIGNATURE), BODY, &secrets(), SENT + 301), SignatureCheck::Stale);
        assert_eq!(check(&HeaderMap::new(), BODY, &secrets(), SENT), SignatureCheck::Missing);
        assert_eq!(check(&HeaderMap::new(), BODY, &[], SENT), SignatureCheck::Unchecked);
    }
}
