//! The headers of a callback: Standard Webhooks' three, and what every callback carries.

use crate::secrets::SigningSecret;
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT_ENCODING, CONTENT_TYPE, InvalidHeaderValue, USER_AGENT},
};
use ring::hmac;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The excerpt is kept as it comes: nothing here decompresses.
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("hooksaga/", env!("CARGO_PKG_VERSION")));

/// `v1,` and the base64 of 32 bytes.
const SIGNATURE_LEN: usize = 3 + 44;

/// The headers of a callback, signed at `timestamp` (seconds since the Unix epoch) with every secret.
/// `extra` cannot replace a header that is set here, but for accept-encoding.
pub(super) fn headers(
    id: &str,
    timestamp: u64,
    body: &[u8],
    secrets: &[SigningSecret],
    extra: Vec<(HeaderName, HeaderValue)>,
) -> Result<HeaderMap, InvalidHeaderValue> {
    // Host and content-length come on top.
    let mut headers = HeaderMap::with_capacity(extra.len() + 8);
    for (name, value) in extra {
        headers.insert(name, value);
    }
    let timestamp = timestamp.to_string();
    let signatures = signatures(id, &timestamp, body, secrets);
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(USER_AGENT, AGENT);
    headers.entry(ACCEPT_ENCODING).or_insert(IDENTITY);
    headers.insert(WEBHOOK_ID, HeaderValue::from_str(id)?);
    headers.insert(WEBHOOK_SIGNATURE, HeaderValue::try_from(signatures)?);
    headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::try_from(timestamp)?);
    Ok(headers)
}

/// One signature per secret, in their order, separated by blanks.
fn signatures(id: &str, timestamp: &str, body: &[u8], secrets: &[SigningSecret]) -> String {
    let mut text = String::with_capacity(secrets.len() * (SIGNATURE_LEN + 1));
    for secret in secrets {
        let mut mac = hmac::Context::with_key(secret.key());
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str("v1,");
        STANDARD.encode_string(mac.sign(), &mut text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "evt_42";
    const TIMESTAMP: u64 = 1_700_000_000;
    const BODY: &str = r#"{"hello":"wörld"}"#;
    // Secrets of the bytes 0 to 31 and of 24 bytes 255, with what Python's
    // hmac.new(secret, b"evt_42.1700000000." + body, hashlib.sha256) gives for them.
    const VECTORS: [(&str, &str); 2] = [
        (
            "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            "v1,Q97tKligHv04/2/XDFb2R/fuN89ObvnKW5KhkC/5AUY=",
        ),
        ("whsec_////////////////////////////////", "v1,FRyvrM0UU6BSoxN8EUx/wb9nCUGZrXufnOafmhgbtOE="),
    ];

    fn signed(secrets: &[SigningSecret], extra: Vec<(HeaderName, HeaderValue)>) -> HeaderMap {
        headers(ID, TIMESTAMP, BODY.as_bytes(), secrets, extra).expect("valid headers")
    }

    #[test]
    fn signatures_are_those_of_another_implementation_in_the_order_of_the_secrets() {
        let secrets = VECTORS.map(|(secret, _)| secret.parse().expect("a secret"));
        let headers = signed(&secrets, Vec::new());
        assert_eq!(headers["webhook-id"], ID);
        assert_eq!(headers["webhook-timestamp"], "1700000000");
        assert_eq!(headers["webhook-signature"], format!("{} {}", VECTORS[0].1, VECTORS[1].1));
        let headers = signed(&secrets[1..], Vec::new());
        assert_eq!(headers["webhook-signature"], VECTORS[1].1);
    }

    #[test]
    fn extra_headers_are_added_but_replace_nothing() {
        let value = HeaderValue::from_static("7");
        let extra = vec![
            (HeaderName::from_static("hooksaga-attempt"), value.clone()),
            (WEBHOOK_SIGNATURE, value.clone()),
            (CONTENT_TYPE, value),
        ];
        let headers = signed(&[SigningSecret::generate()], extra);
        assert_eq!(headers["hooksaga-attempt"], "7");
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["user-agent"], concat!("hooksaga/", env!("CARGO_PKG_VERSION")));
        assert_eq!(headers["accept-encoding"], "identity");
        assert_eq!(headers.get_all("webhook-signature").iter().count(), 1);
        assert_ne!(headers["webhook-signature"], "7");
    }

    #[test]
    fn an_id_that_is_no_header_value_is_an_error() {
        assert!(headers("evt\n1", TIMESTAMP, b"", &[], Vec::new()).is_err());
    }
}
