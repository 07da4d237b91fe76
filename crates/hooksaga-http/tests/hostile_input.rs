//! Whatever a client sends, it gets a response, and never a 5xx.

use crate::support::TestApi;
use axum::body::Body;
use http::Request;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

const BODIES: [(&str, &str, &str); 7] = [
    (
        "POST",
        "/v1/events",
        r#"{"event_type":"order.created","payload":{"a":[1,"é\n",null]},"external_id":"x-1"}"#,
    ),
    (
        "POST",
        "/v1/events/batch",
        r#"{"events":[{"event_type":"a","payload":1},{"event_type":"b","payload":{},"external_id":"y"}]}"#,
    ),
    (
        "POST",
        "/v1/subscriptions",
        r#"{"event_type":"t","callback_url":"https://example.com/a?b=c","active":true,"max_retry_limit":5}"#,
    ),
    (
        "PATCH",
        "/v1/subscriptions/1",
        r#"{"callback_url":"https://[::1]:8443/","active":false,"max_retry_limit":null}"#,
    ),
    ("POST", "/v1/subscriptions/1/verify", "{}"),
    (
        "POST",
        "/v1/dead-letters/requeue",
        r#"{"filter":{"subscription_id":1,"created_after":"2026-01-01T00:00:00Z"},"limit":10}"#,
    ),
    ("POST", "/v1/dead-letters/1/requeue", ""),
];

/// Pieces that parsers stumble over.
const PIECES: [&str; 24] = [
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "\\ud800",
    "\\u0000",
    "\0",
    "\u{feff}",
    "1e999",
    "-0",
    "-1",
    "99999999999999999999",
    "0.1",
    "true",
    "\"event_type\":",
    "\"payload\":1,",
    "é",
    "\u{202e}",
    "https://a:b@c:99999/#",
];

fn runner() -> TestRunner {
    TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// A body with a few bytes replaced, pieces inserted, and perhaps cut short.
fn mutated(body: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), 0..4_u8, any::<u8>(), prop::sample::select(&PIECES[..]));
    prop::collection::vec(edit, 1..6).prop_map(move |edits| {
        let mut bytes = body.as_bytes().to_vec();
        for (at, kind, byte, piece) in edits {
            let at = at.index(bytes.len() + 1);
            match kind {
                0 if at < bytes.len() => bytes[at] = byte,
                1 => bytes.truncate(at),
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ => drop(bytes.splice(at..at, piece.bytes())),
            }
        }
        bytes
    })
}

#[tokio::test]
async fn bodies() {
    let api = TestApi::new().await;
    api.dead_letter_base().await;
    let mut runner = runner();
    for (method, path, body) in BODIES {
        for round in 0..150 {
            let bytes = if round % 5 == 0 {
                prop::collection::vec(any::<u8>(), 0..200).new_tree(&mut runner).unwrap().current()
            } else {
                mutated(body).new_tree(&mut runner).unwrap().current()
            };
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            let response = api.raw(method, path, &[("content-type", "application/json")], bytes).await;
            assert!(response.status < 500, "{method} {path} {shown:?} gave {}", response.status);
            if response.status >= 400 {
                response.expect(response.status);
            } else {
                response.json();
            }
        }
    }
}

#[tokio::test]
async fn queries_paths_and_headers() {
    let api = TestApi::new().await;
    let mut runner = runner();
    let text = "[!-~]{0,30}".prop_map(|text| text.replace('#', "%23"));
    let names = [
        "limit",
        "cursor",
        "event_type",
        "external_id",
        "status",
        "active",
        "created_after",
        "subscription_id",
        "x",
    ];
    let query = prop::collection::vec((prop::sample::select(names.to_vec()), text), 0..4);
    for _ in 0..400 {
        let query: Vec<_> = query.new_tree(&mut runner).unwrap().current();
        let query: Vec<_> = query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        for list in ["/v1/events", "/v1/subscriptions", "/v1/deliveries", "/v1/dead-letters"] {
            let uri = format!("{list}?{}", query.join("&"));
            if uri.parse::<http::Uri>().is_err() {
                continue;
            }
            let response = api.get(&uri).await;
            assert!(response.status < 500, "{uri} gave {}", response.status);
        }
    }
    let path = "[!-~]{0,20}".prop_map(|text| text.replace(['#', '?'], "%"));
    let value = prop::collection::vec(
        any::<u8>().prop_filter("no control characters", |b| *b >= 32 && *b != 127),
        0..40,
    );
    for _ in 0..400 {
        let uri = format!("/v1/events/{}", path.new_tree(&mut runner).unwrap().current());
        if uri.parse::<http::Uri>().is_ok() {
            assert!(api.get(&uri).await.status < 500, "{uri}");
        }
        let value = value.new_tree(&mut runner).unwrap().current();
        for header in ["authorization", "x-correlation-id", "content-type"] {
            let request = Request::post("/v1/events")
                .header(header, http::HeaderValue::from_bytes(&value).unwrap())
                .body(Body::from("{}"))
                .unwrap();
            assert!(api.send(request).await.status < 500, "{header}: {value:?}");
        }
    }
}

/// Big objects and many faults cost little and response shortly.
#[tokio::test]
async fn many_members_and_many_faults() {
    let api = TestApi::with(|parts| parts.max_batch_bytes = 8 << 20).await;
    let members: Vec<_> = (0..200_000).map(|number| format!("\"m{number}\":1")).collect();
    let response = api.post_text("/v1/events/batch", format!("{{{}}}", members.join(","))).await;
    response.expect(422);
    assert!(response.body.len() < 100_000);

    let event = format!("{{{}}}", members[..60].join(","));
    let events = vec![event; 1000].join(",");
    let response = api.post_text("/v1/events/batch", format!("{{\"events\":[{events}]}}")).await;
    assert_eq!(response.expect(422)["errors"].as_array().unwrap().len(), 4000);

    let name = "n".repeat(1_000_000);
    let response = api.post_text("/v1/events/batch", format!("{{\"{name}\":1}}")).await;
    response.expect(422);
    assert!(response.body.len() < 2000);
}

impl TestApi {
    /// Something for every route to act on.
    async fn dead_letter_base(&self) {
        self.verified_subscription("base", "base").await;
        self.dead_letter("base", &serde_json::json!(1)).await;
    }
}
