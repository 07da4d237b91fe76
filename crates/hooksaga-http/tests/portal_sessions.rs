//! `/v1/me` and `/v1/portal-sessions`.

use crate::support::{PUBLIC_URL, TestApi};
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/v1/portal-sessions";

async fn open(api: &TestApi, body: &Value) -> Value {
    api.post(PATH, body).await.expect(201)
}

fn token(session: &Value) -> &str {
    session["token"].as_str().unwrap()
}

/// Seconds between the server's now and a time that it returns.
async fn seconds_until(api: &TestApi, time: &Value) -> i64 {
    let now = api.get("/v1/stats").await.expect(200)["now"].clone();
    let parse = |time: &Value| time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    parse(time).duration_since(parse(&now)).as_secs()
}

#[tokio::test]
async fn a_key_is_told_what_it_is() {
    let api = TestApi::new().await;
    let me = api.get("/v1/me").await.expect(200);
    let every = ["ingest", "admin", "operator", "read"];
    assert_eq!(me, json!({"name": "root", "scopes": every, "tenant": null, "expires_at": null}));

    let plain = api.key("ingest").await;
    let me = api.as_key(&plain, "GET", "/v1/me", None).await.expect(200);
    assert_eq!(me, json!({"name": "a key", "scopes": ["ingest"], "tenant": null, "expires_at": null}));

    let bound = api.key_with("read,admin", Some("acme"), Some(Duration::from_secs(600))).await;
    let me = api.as_key(&bound, "GET", "/v1/me", None).await.expect(200);
    assert_eq!((&me["tenant"], &me["scopes"]), (&json!("acme"), &json!(["admin", "read"])));
    let left = seconds_until(&api, &me["expires_at"]).await;
    assert!((590..=601).contains(&left), "{left}");
    assert_eq!(api.as_key(&bound, "GET", "/v1/me?x=1", None).await.invalid_fields(), ["x"]);
}

#[tokio::test]
async fn a_session_is_a_link_with_a_key_that_is_bound_and_expires() {
    let api = TestApi::new().await;
    let session = open(&api, &json!({"tenant": "acme"})).await;
    assert_eq!(session.as_object().unwrap().len(), 3);
    assert_eq!(session["url"], format!("{PUBLIC_URL}/portal#token={}", token(&session)));
    let left = seconds_until(&api, &session["expires_at"]).await;
    assert!((3590..=3601).contains(&left), "an hour by default: {left}");

    let me = api.as_key(token(&session), "GET", "/v1/me", None).await.expect(200);
    assert_eq!((&me["tenant"], &me["expires_at"]), (&json!("acme"), &session["expires_at"]));
    assert_eq!(me["scopes"], json!(["admin", "operator", "read"]));
    let event = json!({"event_type": "t", "payload": 1});
    api.as_key(token(&session), "POST", "/v1/events", Some(&event)).await.expect(403);
    let subscription = json!({"event_type": "t", "callback_url": "https://example.com/"});
    let created =
        api.as_key(token(&session), "POST", "/v1/subscriptions", Some(&subscription)).await.expect(201);
    assert_eq!(created["tenant"], "acme");

    // It cannot prolong itself, nor name another tenant.
    for tenant in ["acme", "globex"] {
        let problem =
            api.as_key(token(&session), "POST", PATH, Some(&json!({"tenant": tenant}))).await.expect(403);
        assert!(problem["detail"].as_str().unwrap().contains("further sessions"), "{problem}");
    }
    assert_ne!(token(&open(&api, &json!({"tenant": "acme"})).await), token(&session));
}

#[tokio::test]
async fn the_link_never_follows_the_host_header() {
    let api = TestApi::with(|parts| parts.public_url = format!("{PUBLIC_URL}/base/")).await;
    for host in ["evil.example", "evil.example:80"] {
        let headers = [
            ("content-type", "application/json"),
            ("host", host),
            ("x-forwarded-host", host),
            ("forwarded", "host=evil.example;proto=http"),
        ];
        let session = api.raw("POST", PATH, &headers, r#"{"tenant":"acme"}"#).await.expect(201);
        let url = session["url"].as_str().unwrap();
        assert!(url.starts_with(&format!("{PUBLIC_URL}/base/portal#token=")), "{url}");
    }
}

#[tokio::test]
async fn a_bound_admin_key_opens_sessions_of_its_own_tenant_only() {
    let api = TestApi::new().await;
    let bound = api.key_of("acme").await;
    // It may leave its tenant out: it could name no other.
    for body in [json!({"tenant": "acme"}), json!({}), json!({"tenant": null, "ttl": null})] {
        let session = api.as_key(&bound, "POST", PATH, Some(&body)).await.expect(201);
        let me = api.as_key(token(&session), "GET", "/v1/me", None).await.expect(200);
        assert_eq!(me["tenant"], "acme");
    }
    let empty = json!({"tenant": ""});
    assert_eq!(api.as_key(&bound, "POST", PATH, Some(&empty)).await.invalid_fields(), ["tenant"]);
    let before = api.stores.keys.list().await.unwrap().len();
    api.as_key(&bound, "POST", PATH, Some(&json!({"tenant": "globex"}))).await.expect(403);
    let reader = api.key("read,operator,ingest").await;
    api.as_key(&reader, "POST", PATH, Some(&json!({"tenant": "acme"}))).await.expect(403);
    assert_eq!(api.stores.keys.list().await.unwrap().len(), before + 1, "only the reader was added");
}

#[tokio::test]
async fn a_session_lasts_a_minute_to_a_day() {
    let api = TestApi::new().await;
    for (ttl, seconds) in
        [("1m", 60), ("60s", 60), ("60000ms", 60), ("90m", 5400), ("24h", 86_400), ("1d", 86_400)]
    {
        let session = open(&api, &json!({"tenant": "acme", "ttl": ttl})).await;
        let left = seconds_until(&api, &session["expires_at"]).await;
        assert!((seconds - 10..=seconds + 1).contains(&left), "{ttl}: {left}");
    }
    for ttl in [
        json!("59s"),
        json!("59999ms"),
        json!("86401s"),
        json!("25h"),
        json!("2d"),
        json!("0s"),
        json!("-1m"),
        json!("1"),
        json!("m"),
        json!(""),
        json!("1 m"),
        json!("1.5h"),
        json!("1w"),
        json!("99999999999999999999h"),
        json!("18446744073709551615d"),
        json!(3600),
        json!(["1h"]),
    ] {
        let response = api.post(PATH, &json!({"tenant": "acme", "ttl": ttl})).await;
        assert_eq!(response.invalid_fields(), ["ttl"], "{ttl}");
        assert!(response.json()["detail"].as_str().unwrap().len() > 5);
    }
}

#[tokio::test]
async fn a_bad_session_request_is_refused_field_by_field() {
    let api = TestApi::new().await;
    for (body, fields) in [
        (json!({}), vec!["tenant"]),
        (json!({"tenant": ""}), vec!["tenant"]),
        (json!({"tenant": "a b"}), vec!["tenant"]),
        (json!({"tenant": "é"}), vec!["tenant"]),
        (json!({"tenant": "x".repeat(101)}), vec!["tenant"]),
        (json!({"tenant": null}), vec!["tenant"]),
        (json!({"tenant": 7}), vec!["tenant"]),
        (json!({"tenant": "hooksaga"}), vec!["tenant"]),
        (json!({"tenant": "a/b", "ttl": "1s", "scopes": "read"}), vec!["scopes", "tenant", "ttl"]),
    ] {
        assert_eq!(api.post(PATH, &body).await.invalid_fields(), fields, "{body}");
    }
    api.post_text(PATH, "{").await.expect(400);
    api.raw("POST", PATH, &[], "{}").await.expect(415);
    assert!(api.stores.keys.list().await.unwrap().is_empty());
    open(&api, &json!({"tenant": "x".repeat(100)})).await;
    assert_eq!(api.stores.keys.list().await.unwrap().len(), 1);
}
