//! `/v1/subscriptions`.

use crate::support::TestApi;
use hooksaga_pipeline::SigningSecret;
use hooksaga_store::{CheckOutcome, Stage};
use serde_json::{Value, json};
use std::time::Duration;

fn new(event_type: &str, url: &str) -> Value {
    json!({"event_type": event_type, "callback_url": url})
}

/// A subscription as a list shows it.
fn without_health(mut shown: Value) -> Value {
    for name in ["health", "waiting", "last_failure"] {
        assert!(shown.as_object_mut().unwrap().remove(name).is_some(), "{name}");
    }
    shown
}

#[tokio::test]
async fn a_subscription_is_created_with_its_secret() {
    let api = TestApi::new().await;
    let response = api.post("/v1/subscriptions", &new("t", "https://example.com/hook")).await;
    let created = response.expect(201);
    assert_eq!(response.header("location"), format!("/v1/subscriptions/{}", created["id"]));
    assert_eq!(created["active"], true);
    assert_eq!(created["verified"], false);
    assert!(created["max_retry_limit"].is_null());
    assert_eq!(
        created["verification"],
        json!({"status": "pending", "last_error": null, "checked_at": null, "trusted": null})
    );
    assert!(created["secret"].as_str().unwrap().parse::<SigningSecret>().is_ok());
    assert!(api.was_woken(Stage::Verifier).await);

    let shown = without_health(api.get(response.header("location")).await.expect(200));
    let mut expected = created.clone();
    expected.as_object_mut().unwrap().remove("secret");
    assert_eq!(shown, expected);
    assert_eq!(api.get("/v1/subscriptions").await.expect(200)["items"], json!([shown]));

    let again = api.post("/v1/subscriptions", &new("t", "https://example.com/hook")).await.expect(409);
    assert_eq!(again["existing_id"], created["id"]);
    api.post("/v1/subscriptions", &new("u", "https://example.com/hook")).await.expect(201);
}

#[tokio::test]
async fn every_option_is_kept_and_the_given_secret_is_sealed() {
    let api = TestApi::new().await;
    let secret = SigningSecret::generate().reveal();
    let body = json!({
        "event_type": "t", "callback_url": "https://example.com/", "active": false, "max_retry_limit": 100,
        "secret": secret,
    });
    let created = api.post("/v1/subscriptions", &body).await.expect(201);
    assert_eq!(created["active"], false);
    assert_eq!(created["max_retry_limit"], 100);
    assert_eq!(created["secret"], secret);
    let checks = api.stores.verifier.take_checks(10, Duration::from_secs(10)).await.unwrap();
    let sealed = &checks[0].secrets[0].secret;
    assert_eq!(api.secret_key.open(checks[0].subscription_id, sealed).unwrap().reveal(), secret);
}

#[tokio::test]
async fn faults_of_a_new_subscription_are_all_named() {
    let api = TestApi::new().await;
    let body = json!({
        "event_type": "", "callback_url": "ftp://x", "active": 1, "max_retry_limit": 0, "secret": "s",
        "verified": true, "name": "n",
    });
    assert_eq!(
        api.post("/v1/subscriptions", &body).await.invalid_fields(),
        ["active", "callback_url", "event_type", "max_retry_limit", "name", "secret", "verified"]
    );
    assert_eq!(
        api.post("/v1/subscriptions", &json!({})).await.invalid_fields(),
        ["callback_url", "event_type"]
    );
    let problem = api
        .post(
            "/v1/subscriptions",
            &json!({"event_type": "t", "callback_url": "https://e.com", "verified": true}),
        )
        .await
        .expect(422);
    assert!(problem["detail"].as_str().unwrap().contains("read-only"));
    for (limit, status) in [
        (json!(1), 201),
        (json!(100), 201),
        (json!(null), 201),
        (json!(40.0), 201),
        (json!(0), 422),
        (json!(101), 422),
        (json!(-1), 422),
        (json!(1.5), 422),
        (json!("5"), 422),
        (json!(1e30), 422),
    ] {
        let url = format!("https://example.com/{}", limit.to_string().len() * 1000 + status);
        let mut body = new(&format!("t{}", limit.to_string().replace('"', "")).replace('+', "p"), &url);
        body["max_retry_limit"] = limit.clone();
        assert_eq!(api.post("/v1/subscriptions", &body).await.status, status as u16, "{limit}");
    }
    // Clients that write out every field of a type send null for what they leave out.
    let one = json!({"event_type": "one", "event_types": null, "callback_url": "https://example.com/null"});
    assert_eq!(api.post("/v1/subscriptions", &one).await.expect(201)["event_types"], json!(["one"]));
    let list =
        json!({"event_type": null, "event_types": ["b", "a"], "callback_url": "https://example.com/null"});
    assert_eq!(api.post("/v1/subscriptions", &list).await.expect(201)["event_type"], "a,b");
    let neither =
        json!({"event_type": null, "event_types": null, "callback_url": "https://example.com/null"});
    assert_eq!(api.post("/v1/subscriptions", &neither).await.invalid_fields(), ["event_type"]);
    api.post_text("/v1/subscriptions", "{").await.expect(400);
    api.raw("POST", "/v1/subscriptions", &[], "{}").await.expect(415);
    let large = format!("{{\"event_type\":\"{}\"}}", "t".repeat(70_000));
    api.post_text("/v1/subscriptions", large).await.expect(413);
}

#[tokio::test]
async fn secrets_have_24_to_64_bytes() {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let api = TestApi::new().await;
    for (length, status) in [(23, 422), (24, 201), (64, 201), (65, 422)] {
        let mut body = new("t", &format!("https://example.com/{length}"));
        body["secret"] = format!("whsec_{}", BASE64_STANDARD.encode(vec![7; length])).into();
        api.post("/v1/subscriptions", &body).await.expect(status);
    }
    for secret in ["", "whsec_", "whsec_!!!!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
        let mut body = new("t", "https://example.com/");
        body["secret"] = secret.into();
        assert_eq!(api.post("/v1/subscriptions", &body).await.invalid_fields(), ["secret"]);
    }
}

#[tokio::test]
async fn plain_http_needs_the_development_switch() {
    let api = TestApi::new().await;
    let body = new("t", "http://example.com:9000/hook");
    assert_eq!(api.post("/v1/subscriptions", &body).await.invalid_fields(), ["callback_url"]);
    let api = TestApi::with(|parts| parts.allow_http = true).await;
    api.post("/v1/subscriptions", &body).await.expect(201);
    let long = format!("https://example.com/{}", "a".repeat(480));
    assert_eq!(long.len(), 500);
    api.post("/v1/subscriptions", &new("t", &long)).await.expect(201);
    let response = api.post("/v1/subscriptions", &new("t", &format!("{long}a"))).await;
    assert_eq!(response.invalid_fields(), ["callback_url"]);
}

#[tokio::test]
async fn subscriptions_are_filtered() {
    let api = TestApi::new().await;
    let first = api.verified_subscription("a", "1").await;
    let second = api.subscription("a", "2").await;
    let third = api.subscription("b", "3").await;
    api.patch(&format!("/v1/subscriptions/{third}"), &json!({"active": false})).await.expect(200);
    for (query, ids) in [
        ("", vec![third, second, first]),
        ("?event_type=a", vec![second, first]),
        ("?active=true", vec![second, first]),
        ("?active=false", vec![third]),
        ("?verified=true", vec![first]),
        ("?verified=false&active=true", vec![second]),
    ] {
        let page = api.get(&format!("/v1/subscriptions{query}")).await.expect(200);
        let found: Vec<_> =
            page["items"].as_array().unwrap().iter().map(|item| item["id"].as_i64().unwrap()).collect();
        assert_eq!(found, ids, "{query}");
    }
}

#[tokio::test]
async fn a_change_changes_what_it_names() {
    let api = TestApi::new().await;
    let id = api.verified_subscription("t", "hook").await;
    let path = format!("/v1/subscriptions/{id}");
    let before = without_health(api.get(&path).await.expect(200));
    assert_eq!(before["verification"]["status"], "verified");
    assert_eq!(api.patch(&path, &json!({})).await.expect(200), before);

    while api.was_woken(Stage::Schedule).await {}
    let changed = api.patch(&path, &json!({"active": false, "event_type": "u"})).await.expect(200);
    assert_eq!((&changed["active"], &changed["event_type"]), (&json!(false), &json!("u")));
    assert_eq!(changed["verified"], true);
    assert!(!api.was_woken(Stage::Schedule).await, "nothing goes on while it is inactive");
    while api.was_woken(Stage::Redrives).await {}
    api.patch(&path, &json!({"active": true})).await.expect(200);
    assert!(api.was_woken(Stage::Schedule).await, "held work goes on");
    assert!(api.was_woken(Stage::Redrives).await, "and what it had to catch up with");

    assert_eq!(changed["max_retry_limit"], 1);
    let limit = |value: Value| json!({"max_retry_limit": value});
    assert_eq!(api.patch(&path, &limit(json!(7))).await.expect(200)["max_retry_limit"], 7);
    assert!(api.patch(&path, &limit(json!(null))).await.expect(200)["max_retry_limit"].is_null());

    assert!(api.was_woken(Stage::Verifier).await, "by its creation");
    let moved = api.patch(&path, &json!({"callback_url": "https://example.com/new"})).await.expect(200);
    assert_eq!(moved["verified"], false);
    assert_eq!(moved["verification"]["status"], "pending");
    assert!(api.was_woken(Stage::Verifier).await);
    assert_eq!(without_health(api.get(&path).await.expect(200)), moved);

    let merge = [("content-type", "application/merge-patch+json")];
    api.raw("PATCH", &path, &merge, r#"{"active":false}"#).await.expect(200);
}

#[tokio::test]
async fn a_wrong_change_is_refused() {
    let api = TestApi::new().await;
    let first = api.subscription("t", "1").await;
    let second = api.subscription("t", "2").await;
    let path = format!("/v1/subscriptions/{second}");
    let before = api.get(&path).await.expect(200);
    let body = json!({
        "event_type": null, "callback_url": null, "active": null, "max_retry_limit": 101, "verified": true,
        "secret": "whsec_x", "id": 1, "color": 1,
    });
    assert_eq!(
        api.patch(&path, &body).await.invalid_fields(),
        ["active", "callback_url", "color", "event_type", "id", "max_retry_limit", "secret", "verified"]
    );
    let problem = api.patch(&path, &json!({"verified": true})).await.expect(422);
    assert!(problem["errors"][0]["detail"].as_str().unwrap().contains("read-only"));
    let problem = api.patch(&path, &json!({"callback_url": "https://example.com/1"})).await.expect(409);
    assert_eq!(problem["existing_id"], first);
    assert_eq!(api.get(&path).await.expect(200), before);

    api.patch("/v1/subscriptions/999", &json!({})).await.expect(404);
    api.patch("/v1/subscriptions/x", &json!({})).await.expect(400);
    api.raw("PATCH", &path, &[("content-type", "application/json")], "{").await.expect(400);
    api.raw("PATCH", &path, &[], "{}").await.expect(415);
    let large = json!({"event_type": "t".repeat(70_000)});
    api.patch(&path, &large).await.expect(413);
}

#[tokio::test]
async fn verification_can_be_asked_for_again() {
    let api = TestApi::new().await;
    let id = api.subscription("t", "hook").await;
    let path = format!("/v1/subscriptions/{id}");
    let checks = api.stores.verifier.take_checks(10, Duration::from_secs(10)).await.unwrap();
    let outcome = CheckOutcome::GivenUp(hooksaga_saga::ErrorCode::CHALLENGE_MISMATCH);
    assert!(api.stores.verifier.record(&checks[0], &outcome).await.unwrap());
    let failed = api.get(&path).await.expect(200);
    assert_eq!(failed["verification"]["status"], "failed");
    assert_eq!(failed["verification"]["last_error"], "CHALLENGE_MISMATCH");
    assert!(failed["verification"]["checked_at"].is_string());

    assert!(api.was_woken(Stage::Verifier).await, "by its creation");
    let asked = api.post_nothing(&format!("{path}/verify")).await.expect(202);
    assert_eq!(asked["verification"]["status"], "pending");
    assert!(api.was_woken(Stage::Verifier).await);
    assert_eq!(api.stores.verifier.take_checks(10, Duration::from_secs(10)).await.unwrap().len(), 1);
    api.post(&format!("{path}/verify"), &json!({})).await.expect(202);
    assert_eq!(api.post(&format!("{path}/verify"), &json!({"now": 1})).await.invalid_fields(), ["now"]);
    api.post_text(&format!("{path}/verify"), "x").await.expect(400);
    api.raw("POST", &format!("{path}/verify"), &[], "x").await.expect(415);
    api.post_text(&format!("{path}/verify"), " ".repeat(70_000)).await.expect(413);
    api.post_nothing("/v1/subscriptions/999/verify").await.expect(404);
    api.post_nothing("/v1/subscriptions/0/verify").await.expect(400);
}

#[tokio::test]
async fn secrets_are_rotated() {
    let api = TestApi::new().await;
    let id = api.subscription("t", "hook").await;
    let path = format!("/v1/subscriptions/{id}/rotate-secret");
    let mut given = Vec::new();
    for _ in 0..6 {
        let response = api.post_nothing(&path).await.expect(200);
        assert_eq!(response.as_object().unwrap().len(), 1);
        given.push(response["secret"].as_str().unwrap().to_owned());
    }
    let checks = api.stores.verifier.take_checks(10, Duration::from_secs(10)).await.unwrap();
    let valid: Vec<_> = checks[0]
        .secrets
        .iter()
        .map(|secret| api.secret_key.open(checks[0].subscription_id, &secret.secret).unwrap().reveal())
        .collect();
    given.reverse();
    assert_eq!(valid, given[..5], "the newest five, newest first");
    api.post_nothing("/v1/subscriptions/999/rotate-secret").await.expect(404);
    api.post_nothing("/v1/subscriptions/-1/rotate-secret").await.expect(400);
    assert_eq!(api.post(&path, &json!({"secret": "x"})).await.invalid_fields(), ["secret"]);
}

#[tokio::test]
async fn a_description_is_kept_changed_and_cleared() {
    let api = TestApi::new().await;
    let mut body = new("t", "https://example.com/1");
    body["description"] = "the shop's ERP, tél. 7 😀".into();
    let created = api.post("/v1/subscriptions", &body).await.expect(201);
    assert_eq!(created["description"], body["description"]);
    let path = format!("/v1/subscriptions/{}", created["id"]);
    let untouched = api.patch(&path, &json!({"active": true})).await.expect(200);
    assert_eq!(untouched["description"], body["description"]);
    assert_eq!(api.patch(&path, &json!({"description": "new"})).await.expect(200)["description"], "new");
    assert!(api.patch(&path, &json!({"description": null})).await.expect(200)["description"].is_null());
    assert!(api.get(&path).await.expect(200)["description"].is_null());

    let bare = api.post("/v1/subscriptions", &new("t", "https://example.com/2")).await.expect(201);
    assert!(bare["description"].is_null());
    for description in [json!(""), json!("é".repeat(501)), json!("a\nb"), json!("\0"), json!(7), json!([])] {
        assert_eq!(
            api.patch(&path, &json!({"description": description})).await.invalid_fields(),
            ["description"]
        );
    }
    api.patch(&path, &json!({"description": "é".repeat(500)})).await.expect(200);
}

/// Any short text may be asked for: only what no parameter can be is refused.
#[tokio::test]
async fn a_filter_by_what_is_no_url_finds_nothing() {
    let api = TestApi::new().await;
    api.post("/v1/subscriptions", &new("t", "https://example.com/hook")).await.expect(201);
    let listed = async |query: &str| {
        let page = api.get(&format!("/v1/subscriptions?callback_url={query}")).await.expect(200);
        page["items"].as_array().unwrap().len()
    };
    assert_eq!(listed("https://example.com/hook").await, 1);
    for query in
        ["https://example.com/other", "http://example.com/hook", "example.com/hook", "no-url", "ftp://x"]
    {
        assert_eq!(listed(query).await, 0, "{query}");
    }
    for query in ["", "a%20b", "%00", &"x".repeat(501)] {
        let response = api.get(&format!("/v1/subscriptions?callback_url={query}")).await;
        assert_eq!(response.invalid_fields(), ["callback_url"], "{query}");
    }
}
