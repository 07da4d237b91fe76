//! What a callback carries, and how its status decides.

use super::server::{ReceivedRequest, Server, read_request};
use bytes::Bytes;
use hooksaga_pipeline::{CallbackRequest, DeliveryClient, PostOutcome, SigningSecret};
use hooksaga_saga::{ErrorCode, Outcome};
use http::{HeaderName, HeaderValue};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{io::AsyncWriteExt, sync::mpsc};

/// Long enough for every test that is not about time.
pub(crate) const PLENTY: Duration = Duration::from_secs(20);

pub(crate) use crate::support::{client, loopback};

pub(crate) fn request(url: impl Into<String>) -> CallbackRequest {
    CallbackRequest {
        url: url.into(),
        webhook_id: "evt_1".into(),
        body: Bytes::from_static(b"{\"n\":1}"),
        secrets: Arc::new([SigningSecret::generate()]),
        extra_headers: Vec::new(),
    }
}

pub(crate) fn failed(code: ErrorCode) -> Outcome {
    Outcome::Failed(code)
}

#[expect(clippy::disallowed_methods, reason = "a receiver's clock, and the one that a verifier sleeps by")]
pub(crate) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

/// The outcome of one callback that the server answers with these bytes.
pub(crate) async fn outcome_of(response: impl Into<Vec<u8>>) -> PostOutcome {
    let server = Server::always(response).await;
    client().post(request(server.url()), PLENTY).await.unwrap()
}

/// The request that a server received, which it answered with 204.
async fn received(request: CallbackRequest, client: &DeliveryClient) -> ReceivedRequest {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let sender = sender.clone();
        async move {
            sender.send(read_request(&mut stream).await.unwrap()).unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let request = CallbackRequest { url: format!("{}{}", server.url(), request.url), ..request };
    assert_eq!(client.post(request, PLENTY).await.unwrap().outcome, Outcome::Delivered);
    receiver.recv().await.unwrap()
}

#[tokio::test]
async fn the_callback_is_a_signed_post_of_the_body_as_it_is() {
    let secrets: Arc<[_]> = (0..3).map(|_| SigningSecret::generate()).collect();
    let body = "{ \"a\" : \"ü\" }\n";
    let sent = CallbackRequest {
        body: Bytes::from(body),
        secrets: Arc::clone(&secrets),
        extra_headers: vec![(
            HeaderName::from_static("hooksaga-event-type"),
            HeaderValue::from_static("order.paid"),
        )],
        ..request("?a=1&b=%20")
    };
    let got = received(sent, &client()).await;

    assert!(got.head.starts_with("POST /hook?a=1&b=%20 HTTP/1.1\r\n"), "{}", got.head);
    assert_eq!(got.body, body.as_bytes());
    assert!(got.header("host").starts_with("127.0.0.1:"));
    assert_eq!(got.header("content-type"), "application/json");
    assert!(got.header("user-agent").starts_with("hooksaga/"));
    assert_eq!(got.header("accept-encoding"), "identity");
    assert_eq!(got.header("hooksaga-event-type"), "order.paid");
    assert_eq!(got.header("webhook-id"), "evt_1");

    let timestamp = got.header("webhook-timestamp");
    let signed_at = Duration::from_secs(timestamp.parse().unwrap());
    assert!(wall_clock().abs_diff(signed_at) <= Duration::from_secs(30));
    let signatures: Vec<_> = got.header("webhook-signature").split(' ').collect();
    assert_eq!(signatures.len(), 3);
    for (secret, signature) in secrets.iter().zip(signatures) {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
        let signed = format!("evt_1.{timestamp}.{body}");
        let tag = base64::Engine::decode(
            &base64::engine::general_purpose::STANDARD,
            signature.strip_prefix("v1,").unwrap(),
        );
        ring::hmac::verify(&key, signed.as_bytes(), &tag.unwrap()).expect("the secret's own signature");
    }
}

#[tokio::test]
async fn a_large_body_arrives_whole() {
    let body: Bytes = (0..1_500_000_u32).map(|n| b'a' + (n % 26) as u8).collect();
    let got = received(CallbackRequest { body: body.clone(), ..request("") }, &client()).await;
    assert!(got.body == body);
}

#[tokio::test]
async fn every_2xx_is_a_success_without_an_excerpt() {
    for status in [200, 201, 202, 204, 226, 299] {
        let body = if status == 204 { "" } else { "content-length: 2\r\n" };
        let text = if status == 204 { "" } else { "ok" };
        let done = outcome_of(format!("HTTP/1.1 {status} x\r\n{body}\r\n{text}")).await;
        assert_eq!(done.outcome, Outcome::Delivered, "{status}");
        assert_eq!(done.response_status, Some(status));
        assert_eq!(done.excerpt, None);
    }
}

#[tokio::test]
async fn every_other_status_is_a_failure_with_its_code() {
    for status in [400, 401, 404, 410, 429, 500, 503, 599, 600, 999] {
        let done = outcome_of(format!("HTTP/1.1 {status} x\r\ncontent-length: 4\r\n\r\noops")).await;
        assert_eq!(done.outcome, failed(ErrorCode::http(status)), "{status}");
        assert_eq!(done.response_status, Some(status));
        assert_eq!(done.excerpt.as_deref(), Some("oops"));
    }
}

#[tokio::test]
async fn a_status_that_switches_protocols_is_a_failure() {
    let done = outcome_of("HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n").await;
    assert_eq!(done.outcome, failed(ErrorCode::http(101)));
}

#[tokio::test]
async fn interim_responses_are_passed_over() {
    let done = outcome_of("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 x\r\n\r\n").await;
    assert_eq!((done.outcome, done.response_status), (Outcome::Delivered, Some(204)));
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let elsewhere = Server::always("HTTP/1.1 204 x\r\n\r\n").await;
    for status in [300, 301, 302, 303, 304, 307, 308] {
        let location = elsewhere.url();
        let length = if status == 304 { "" } else { "content-length: 0\r\n" };
        let done = outcome_of(format!("HTTP/1.1 {status} x\r\nlocation: {location}\r\n{length}\r\n")).await;
        assert_eq!(done.outcome, failed(ErrorCode::REDIRECT), "{status}");
        assert_eq!(done.response_status, Some(status));
    }
    assert_eq!(elsewhere.accepted(), 0);
}

#[tokio::test]
async fn the_excerpt_is_the_first_4096_bytes_as_text() {
    let long = "x".repeat(4095) + "é and more";
    let done = outcome_of(format!("HTTP/1.1 500 x\r\ncontent-length: {}\r\n\r\n{long}", long.len())).await;
    // The é does not fit whole.
    assert_eq!(done.excerpt.unwrap(), "x".repeat(4095));

    let mut response = b"HTTP/1.1 500 x\r\ncontent-length: 5\r\n\r\n".to_vec();
    response.extend_from_slice(b"a\xff\0\xc3\xa9");
    assert_eq!(outcome_of(response).await.excerpt.unwrap(), "a\u{fffd}\u{fffd}é");
    assert_eq!(outcome_of("HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n").await.excerpt, None);
}

#[tokio::test]
async fn a_chunked_failure_has_its_excerpt_too() {
    let chunked = "HTTP/1.1 502 x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nbad\r\n5\r\n gate\r\n0\r\n\r\n";
    assert_eq!(outcome_of(chunked).await.excerpt.as_deref(), Some("bad gate"));
}

#[tokio::test]
async fn retry_after_is_kept_of_a_429_or_503() {
    let of = async |status: u16, header: &str| {
        outcome_of(format!("HTTP/1.1 {status} x\r\n{header}content-length: 0\r\n\r\n")).await.retry_after
    };
    let date = "Fri, 31 Dec 1999 23:59:59 GMT";
    assert_eq!(of(429, "retry-after: 120\r\n").await.as_deref(), Some("120"));
    assert_eq!(of(503, &format!("Retry-After:  {date} \r\n")).await.as_deref(), Some(date));
    // Whether it makes sense is decided elsewhere.
    assert_eq!(of(503, "retry-after: soon\r\n").await.as_deref(), Some("soon"));
    assert_eq!(of(429, &format!("retry-after: {}\r\n", "9".repeat(64))).await.unwrap().len(), 64);
    for header in
        ["", "retry-after:\r\n", "retry-after: \u{e9}\r\n", &format!("retry-after: {}\r\n", "9".repeat(65))]
    {
        assert_eq!(of(503, header).await, None, "{header}");
    }
    for status in [200, 302, 404, 410, 500, 502, 504] {
        assert_eq!(of(status, "retry-after: 120\r\n").await, None, "{status}");
    }
}
