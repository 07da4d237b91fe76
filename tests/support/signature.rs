//! Checking signatures as a receiver does, by the Standard Webhooks rules.

use super::Arrival;
use base64::{Engine, engine::general_purpose::STANDARD};
use ring::hmac;

/// Whether one of the arrival's signatures was made with this `whsec_…` secret.
pub(crate) fn signed_by(arrival: &Arrival, secret: &str) -> bool {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let id = arrival.header("webhook-id").unwrap();
    let timestamp = arrival.header("webhook-timestamp").unwrap();
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(&arrival.body);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &signed);
    let expected = format!("v1,{}", STANDARD.encode(tag));
    arrival.header("webhook-signature").unwrap().split(' ').any(|signature| signature == expected)
}
