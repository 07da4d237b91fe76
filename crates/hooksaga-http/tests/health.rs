//! How a subscription's endpoint has been doing, and why deliveries are held, as the API says it.

use crate::support::TestApi;
use hooksaga_saga::{ErrorCode, Outcome};
use serde_json::{Value, json};

async fn shown(api: &TestApi, id: i64) -> Value {
    api.get(&format!("/v1/subscriptions/{id}")).await.expect(200)
}

#[tokio::test]
async fn a_subscription_is_shown_with_its_health() {
    let api = TestApi::new().await;
    let id = api.verified_subscription("order.created", "hook").await;
    let new = shown(&api, id).await;
    let nothing = json!({"delivered": 0, "failed": 0, "dead_lettered": 0, "p95_ms": null});
    assert_eq!((&new["health"], &new["waiting"], &new["last_failure"]), (&nothing, &json!(0), &Value::Null));

    api.dead_letter("order.created", &json!(1)).await;
    api.event("order.created", &json!(2)).await;
    api.route().await;
    assert_eq!(shown(&api, id).await["waiting"], 1);
    api.attempt_all(&Outcome::Delivered).await;
    let item = shown(&api, id).await;
    assert_eq!(
        item["health"],
        json!({"delivered": 1, "failed": 1, "dead_lettered": 1, "p95_ms": item["health"]["p95_ms"]})
    );
    assert!((11..=12).contains(&item["health"]["p95_ms"].as_u64().unwrap()), "{item}");
    assert_eq!(item["waiting"], 0);
    let failure = &item["last_failure"];
    let letter = api.get("/v1/dead-letters").await.expect(200)["items"][0].clone();
    assert_eq!(
        failure,
        &json!({
            "saga_id": letter["saga_id"], "error_code": "HTTP_503", "response_status": 503, "at": failure["at"],
        })
    );
    assert!(failure["at"].as_str().unwrap().ends_with('Z'));
    let listed = api.get("/v1/subscriptions").await.expect(200)["items"][0].clone();
    for name in ["health", "waiting", "last_failure"] {
        assert!(listed.get(name).is_none(), "lists are short: {name}");
        let problem = api.patch(&format!("/v1/subscriptions/{id}"), &json!({name: null})).await.expect(422);
        assert_eq!(problem["errors"], json!([{"field": name, "detail": "is read-only"}]));
    }
}

/// Names inside this server's network stay unknown to those who see one tenant.
#[tokio::test]
async fn a_tenant_does_not_learn_that_an_address_was_blocked() {
    let api = TestApi::new().await;
    let id = api.verified_subscription("order.created", "hook").await;
    api.event("order.created", &json!(1)).await;
    api.route().await;
    api.attempt_all(&Outcome::Failed(ErrorCode::BLOCKED_ADDRESS)).await;
    assert_eq!(shown(&api, id).await["last_failure"]["error_code"], "BLOCKED_ADDRESS");
    let bound = api.key_of("default").await;
    let seen = api.as_key(&bound, "GET", &format!("/v1/subscriptions/{id}"), None).await.expect(200);
    assert_eq!(seen["last_failure"]["error_code"], "DNS_FAILED");
}

#[tokio::test]
async fn a_held_delivery_says_why_it_is_held() {
    let api = TestApi::new().await;
    let id = api.verified_subscription("order.created", "hook").await;
    api.event("order.created", &json!(1)).await;
    api.route().await;
    let open =
        async || api.get("/v1/deliveries?status=Pending").await.expect(200)["items"][0]["saga_id"].clone();
    let said = async || {
        let delivery = api.get(&format!("/v1/deliveries/{}", open().await)).await.expect(200);
        delivery["explanation"].as_str().unwrap().to_owned()
    };
    let path = format!("/v1/subscriptions/{id}");
    api.patch(&path, &json!({"active": false})).await.expect(200);
    let text = said().await;
    assert!(text.contains("is held because the subscription is paused, and is sent once"), "{text}");

    let moved = json!({"active": true, "callback_url": "https://moved.example/"});
    api.patch(&path, &moved).await.expect(200);
    let text = said().await;
    assert!(text.contains("because the callback URL of the subscription is not verified"), "{text}");

    api.verify_all().await;
    assert!(!said().await.contains("held"));
    api.attempt_all(&Outcome::Failed(ErrorCode::http(410))).await;
    let gone = api.stores.caretaker.gone(10).await.unwrap();
    api.event("order.created", &json!(2)).await;
    api.route().await;
    assert_eq!(api.stores.caretaker.disable(&gone).await.unwrap().len(), 1);
    let text = said().await;
    assert!(
        text.contains("because the subscription was disabled (its endpoint returned 410 Gone)"),
        "{text}"
    );

    api.raw("DELETE", &path, &[], "").await;
    let text = said().await;
    assert!(
        text.ends_with("; it ends without another attempt because the subscription was deleted."),
        "{text}"
    );
}
