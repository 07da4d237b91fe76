//! Deleting a subscription, its request headers, trusting its endpoint, and test events.

use crate::support::{Response, TestApi};
use serde_json::{Value, json};

async fn created(api: &TestApi, more: Value) -> i64 {
    let mut body = json!({"event_type": "order.created", "callback_url": "https://example.com/hook"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap()
}

async fn delete(api: &TestApi, id: i64) -> Response {
    api.raw("DELETE", &format!("/v1/subscriptions/{id}"), &[], "").await
}

#[tokio::test]
async fn a_deleted_subscription_is_gone_and_its_place_is_free() {
    let api = TestApi::new().await;
    let id = created(&api, json!({})).await;
    api.verify_all().await;
    let deleted = delete(&api, id).await;
    assert_eq!((deleted.status, deleted.text()), (204, ""));
    delete(&api, id).await.expect(404);
    let path = format!("/v1/subscriptions/{id}");
    api.get(&path).await.expect(404);
    api.patch(&path, &json!({"active": true})).await.expect(404);
    for action in ["verify", "rotate-secret", "test"] {
        api.post_nothing(&format!("{path}/{action}")).await.expect(404);
    }
    assert_eq!(api.get("/v1/subscriptions").await.expect(200)["items"], json!([]));
    assert_ne!(created(&api, json!({})).await, id, "the same topics and URL again");
}

#[tokio::test]
async fn what_failed_cannot_be_sent_again_to_a_deleted_subscription() {
    let api = TestApi::new().await;
    let id = created(&api, json!({"max_retry_limit": 1})).await;
    api.verify_all().await;
    let event = json!({"event_type": "order.created", "payload": 1});
    api.post("/v1/events", &event).await.expect(201);
    api.fail_all().await;
    let letter = api.get("/v1/dead-letters").await.expect(200)["items"][0].clone();
    delete(&api, id).await;
    for path in [
        format!("/v1/dead-letters/{}/requeue", letter["id"]),
        format!("/v1/deliveries/{}/resend", letter["saga_id"]),
    ] {
        let problem = api.post_nothing(&path).await.expect(409);
        assert!(problem["detail"].as_str().unwrap().contains("was deleted"), "{problem}");
    }
    let shown = api.get(&format!("/v1/deliveries?subscription_id={id}")).await.expect(200);
    assert_eq!(shown["items"].as_array().unwrap().len(), 1, "its history stays");
}

#[tokio::test]
async fn headers_are_named_and_their_values_are_never_shown() {
    let api = TestApi::new().await;
    let secret = "Bearer hush-hush-0815";
    let id = created(&api, json!({"headers": {"Authorization": secret, "X-Tenant": "a b"}})).await;
    let path = format!("/v1/subscriptions/{id}");
    let shown = api.get(&path).await;
    assert_eq!(shown.expect(200)["headers"], json!(["authorization", "x-tenant"]));
    assert!(!shown.text().contains("hush"));
    let changed = api.patch(&path, &json!({"headers": {"x-other": secret}})).await;
    assert_eq!(changed.expect(200)["headers"], json!(["x-other"]));
    let moved = api.patch(&path, &json!({"callback_url": "https://elsewhere.example/"})).await.expect(200);
    assert_eq!(moved["headers"], json!([]), "they do not follow to another host");
    api.patch(&path, &json!({"headers": {"x-other": secret}})).await.expect(200);
    assert_eq!(api.patch(&path, &json!({"headers": null})).await.expect(200)["headers"], json!([]));
}

#[tokio::test]
async fn what_is_no_header_is_refused_without_its_value() {
    let api = TestApi::new().await;
    let many: serde_json::Map<String, Value> = (0..17).map(|n| (format!("x-{n}"), json!("v"))).collect();
    let wrong = [
        json!({"Host": "hush"}),
        json!({"webhook-id": "hush"}),
        json!({"PROXY-Authorization": "hush"}),
        json!({"x y": "hush"}),
        json!({"": "hush"}),
        json!({"x-key": " hush"}),
        json!({"x-key": "hush\r\nx-evil: 1"}),
        json!({"x-key": "hüsh"}),
        json!({"x-key": ""}),
        json!({"x-key": 7}),
        json!({"x-key": "v".repeat(1001)}),
        Value::Object(many),
        json!(["x-key"]),
    ];
    for headers in wrong {
        let body = json!({"event_type": "t", "callback_url": "https://example.com/", "headers": headers});
        let response = api.post("/v1/subscriptions", &body).await;
        let problem = response.expect(422);
        assert_eq!(problem["errors"][0]["field"], "headers", "{problem}");
        assert!(!response.text().contains("hush") && !response.text().contains("evil"), "{problem}");
    }
    let twice =
        r#"{"event_type":"t","callback_url":"https://example.com/","headers":{"X-Key":"a","x-key":"b"}}"#;
    assert_eq!(api.post_text("/v1/subscriptions", twice).await.expect(422)["errors"][0]["field"], "headers");
}

#[tokio::test]
async fn an_endpoint_is_trusted_only_where_that_is_allowed() {
    let trusted = json!({"trusted": true});
    let api = TestApi::new().await;
    let id = created(&api, json!({})).await;
    let problem = api.post(&format!("/v1/subscriptions/{id}/verify"), &trusted).await.expect(403);
    assert!(problem["detail"].as_str().unwrap().contains("allow_trusted"), "{problem}");

    let api = TestApi::with(|parts| parts.allow_trusted = true).await;
    let id = created(&api, json!({"tenant": "acme"})).await;
    let path = format!("/v1/subscriptions/{id}/verify");
    let bound = api.key_of("acme").await;
    api.as_key(&bound, "POST", &path, Some(&trusted)).await.expect(403);
    api.post(&path, &json!({"trusted": "yes"})).await.expect(422);
    let asked = api.post(&path, &trusted).await.expect(202);
    assert_eq!((&asked["verified"], &asked["verification"]["trusted"]), (&json!(false), &json!(null)));
    // Nothing is sent to the host, so that its limit of challenges does not count.
    for _ in 0..20 {
        api.post(&path, &trusted).await.expect(202);
    }
    let check =
        api.stores.verifier.take_checks(1, std::time::Duration::from_secs(9)).await.unwrap().remove(0);
    assert_eq!(check.vouched_by.as_deref(), Some("root"));
    assert!(api.stores.verifier.record(&check, &hooksaga_store::CheckOutcome::Trusted).await.unwrap());
    let shown = api.get(&format!("/v1/subscriptions/{id}")).await.expect(200);
    assert_eq!((&shown["verified"], &shown["verification"]["trusted"]["by"]), (&json!(true), &json!("root")));
}

#[tokio::test]
async fn a_test_event_leads_to_its_delivery() {
    let api = TestApi::new().await;
    let id = created(&api, json!({})).await;
    let path = format!("/v1/subscriptions/{id}/test");
    let problem = api.post_nothing(&path).await.expect(409);
    assert!(problem["detail"].as_str().unwrap().contains("active and verified"), "{problem}");
    assert_eq!(api.get("/v1/events").await.expect(200)["items"], json!([]), "nothing is stored in vain");
    api.verify_all().await;
    let other = json!({"event_type": "*", "callback_url": "https://example.com/all"});
    api.post("/v1/subscriptions", &other).await.expect(201);
    api.verify_all().await;
    let response = api.post_nothing(&path).await;
    let sent = response.expect(201);
    assert_eq!(response.header("location"), format!("/v1/deliveries/{}", sent["saga_id"]));
    api.route().await;
    let delivery = api.get(&format!("/v1/deliveries/{}", sent["saga_id"])).await.expect(200);
    assert_eq!((&delivery["event_id"], &delivery["subscription_id"]), (&sent["event_id"], &json!(id)));
    assert_eq!(delivery["event_type"], "hooksaga.test");
    let event = api.get(&format!("/v1/events/{}", sent["event_id"])).await.expect(200);
    assert_eq!(event["deliveries"].as_array().unwrap().len(), 1, "nobody else gets it");
    assert_eq!(event["payload"]["subscription_id"], id);
    let paused = json!({"active": false});
    api.patch(&format!("/v1/subscriptions/{id}"), &paused).await.expect(200);
    api.post_nothing(&path).await.expect(409);
}
