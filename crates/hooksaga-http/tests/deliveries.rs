//! `/v1/deliveries` and `/v1/stats`.

use crate::support::TestApi;
use hooksaga_saga::{ErrorCode, Outcome};
use serde_json::{Value, json};

fn ids(page: &Value) -> Vec<i64> {
    page["items"].as_array().unwrap().iter().map(|item| item["saga_id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn a_delivery_is_shown_with_its_attempts() {
    let api = TestApi::new().await;
    let subscription = api.verified_subscription("t", "hook").await;
    api.patch(&format!("/v1/subscriptions/{subscription}"), &json!({"max_retry_limit": 3})).await.expect(200);
    let event = api.event("t", &json!(1)).await;
    api.route().await;
    api.attempt_all(&Outcome::Failed(ErrorCode::http(503))).await;

    let page = api.get("/v1/deliveries").await.expect(200);
    let item = &page["items"][0];
    assert!(page["next_cursor"].is_null());
    assert_eq!(item["tenant"], "default");
    assert_eq!(item["event_id"], event);
    assert_eq!(item["subscription_id"], subscription);
    assert_eq!(item["generation"], 0);
    assert_eq!(item["status"], "PendingRetry");
    assert_eq!(item["attempt_count"], 1);
    assert_eq!(item["max_retry_limit"], 3);
    assert_eq!(item["final_error_code"], "HTTP_503");
    assert_eq!(item["held"], false);
    assert!(item["next_attempt_at"].as_str() > item["created_at"].as_str());
    assert_eq!((&item["event_type"], &item["external_id"]), (&json!("t"), &Value::Null));
    let shown = api.get(&format!("/v1/events/{event}")).await.expect(200);
    assert_eq!(item["correlation_id"], shown["correlation_id"]);
    assert_eq!(shown["deliveries"][0], *item, "also as part of its event");
    assert_eq!(item["callback_url"], "https://example.com/hook");
    assert_eq!(item["last_response_status"], 503);
    let list = api.get("/v1/deliveries").await;
    let text = list.text();
    let order = [
        "saga_id",
        "tenant",
        "event_id",
        "event_type",
        "external_id",
        "correlation_id",
        "subscription_id",
        "callback_url",
        "generation",
        "status",
        "attempt_count",
        "max_retry_limit",
        "next_attempt_at",
        "final_error_code",
        "last_response_status",
        "created_at",
        "updated_at",
        "held",
    ];
    assert_eq!(item.as_object().unwrap().len(), order.len());
    let places: Vec<_> = order.iter().map(|name| text.find(&format!("\"{name}\":"))).collect();
    assert!(places.is_sorted() && places[0].is_some(), "{text}");

    let shown = api.get(&format!("/v1/deliveries/{}", item["saga_id"])).await.expect(200);
    for (name, value) in item.as_object().unwrap() {
        assert_eq!(&shown[name], value, "{name}");
    }
    let said = shown["explanation"].as_str().unwrap();
    assert!(said.starts_with("1 of 3 attempts failed, with HTTP_503 (") && said.ends_with("Z."), "{said}");
    assert!(item.get("explanation").is_none(), "lists are short");
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0]["status"], "Failed");
    assert_eq!(attempts[0]["response_status"], 503);
    assert_eq!(attempts[0]["error_code"], "HTTP_503");
    assert_eq!(attempts[0]["duration_ms"], 12);
    assert_eq!(attempts[0]["response_excerpt"], "try later");
    assert_eq!(attempts[0]["lease_resets"], 0);
    assert!(attempts[0]["job_id"].is_i64() && attempts[0]["attempt_at"].is_string());
    assert!(attempts[0]["started_at"].as_str() >= attempts[0]["attempt_at"].as_str());
    assert_eq!(attempts[0]["callback_url"], "https://example.com/hook");
    assert_eq!(attempts[0].as_object().unwrap().len(), 10);

    api.patch(&format!("/v1/subscriptions/{subscription}"), &json!({"active": false})).await.expect(200);
    assert_eq!(api.get("/v1/deliveries").await.expect(200)["items"][0]["held"], true);
}

#[tokio::test]
async fn deliveries_are_filtered() {
    let api = TestApi::new().await;
    let first = api.verified_subscription("a", "1").await;
    let second = api.verified_subscription("b", "2").await;
    let headers = [("content-type", "application/json"), ("x-correlation-id", "corr")];
    let body = json!({"event_type": "a", "payload": 1, "external_id": "ext"}).to_string();
    let event = api.raw("POST", "/v1/events", &headers, body).await.expect(201)["id"].clone();
    api.route().await;
    api.attempt_all(&Outcome::Delivered).await;
    api.event("b", &json!(1)).await;
    api.route().await;
    let all = ids(&api.get("/v1/deliveries").await.expect(200));
    assert_eq!(all.len(), 2);
    let (newer, older) = (vec![all[0]], vec![all[1]]);
    for (query, expected) in [
        ("status=Completed".to_owned(), older.clone()),
        ("status=Pending".to_owned(), newer.clone()),
        ("status=DeadLettered".to_owned(), vec![]),
        ("status=Completed&status=Pending".to_owned(), all.clone()),
        ("status=Completed&event_type=a&status=Completed".to_owned(), older.clone()),
        ("status=DeadLettered&status=InProgress".to_owned(), vec![]),
        (format!("subscription_id={first}"), older.clone()),
        (format!("subscription_id={second}"), newer.clone()),
        (format!("event_id={event}"), older.clone()),
        ("event_type=b".to_owned(), newer.clone()),
        ("external_id=ext".to_owned(), older.clone()),
        ("correlation_id=corr".to_owned(), older.clone()),
        ("correlation_id=corr&event_type=b".to_owned(), vec![]),
        ("created_after=2020-01-01T00:00:00Z".to_owned(), all.clone()),
        ("created_before=2020-01-01T00:00:00Z".to_owned(), vec![]),
        ("created_after=9999-12-31T23:59:59Z".to_owned(), vec![]),
        (
            "created_before=2999-01-01T00:00:00%2B01:00&created_after=0000-01-01T00:00:00Z".to_owned(),
            all.clone(),
        ),
    ] {
        let page = api.get(&format!("/v1/deliveries?{query}")).await.expect(200);
        assert_eq!(ids(&page), expected, "{query}");
    }
    // The bounds: at or after, and before.
    let created =
        api.get("/v1/deliveries").await.expect(200)["items"][0]["created_at"].as_str().unwrap().to_owned();
    assert_eq!(ids(&api.get(&format!("/v1/deliveries?created_after={created}")).await.expect(200)), newer);
    assert_eq!(ids(&api.get(&format!("/v1/deliveries?created_before={created}")).await.expect(200)), older);
}

#[tokio::test]
async fn filters_out_of_range_are_refused() {
    let api = TestApi::new().await;
    for (query, field) in [
        ("status=completed", "status"),
        ("status=", "status"),
        ("status=Pending&status=x", "status"),
        ("subscription_id=0", "subscription_id"),
        ("subscription_id=-1", "subscription_id"),
        ("subscription_id=x", "subscription_id"),
        ("event_id=1.5", "event_id"),
        ("event_id=99999999999999999999", "event_id"),
        ("event_type=", "event_type"),
        ("event_type=a%20b", "event_type"),
        ("external_id=%00", "external_id"),
        ("correlation_id=%FF", "correlation_id"),
        ("created_after=yesterday", "created_after"),
        ("created_before=2020-01-01", "created_before"),
        ("created_before=2020-01-01T00:00:00+01:00", "created_before"),
        ("held=true", "held"),
    ] {
        let response = api.get(&format!("/v1/deliveries?{query}")).await;
        assert_eq!(response.invalid_fields(), [field], "{query}");
    }
}

#[tokio::test]
async fn stats_count_what_happened() {
    let api = TestApi::new().await;
    let good = api.verified_subscription("good", "1").await;
    let bad = api.verified_subscription("bad", "2").await;
    api.event("good", &json!(1)).await;
    api.route().await;
    api.attempt_all(&Outcome::Delivered).await;
    api.dead_letter("bad", &json!(1)).await;
    let waiting = api.verified_subscription("waiting", "3").await;
    api.event("waiting", &json!(1)).await;
    api.route().await;
    api.patch(&format!("/v1/subscriptions/{waiting}"), &json!({"active": false})).await.expect(200);
    api.event("nobody", &json!(1)).await;

    let stats = api.get("/v1/stats").await.expect(200);
    assert_eq!(stats["open_deliveries"], json!({"Pending": 1, "InProgress": 0, "PendingRetry": 0}));
    assert_eq!(stats["held"], 1);
    assert_eq!(stats["queue_depths"]["unrouted_events"], 1);
    assert_eq!(stats["queue_depths"]["finished_jobs"], 0);
    assert!(stats["oldest_due_age_seconds"].is_number());
    assert!(stats["now"].is_string());
    let sum = |name: &str| -> u64 {
        stats["per_minute"].as_array().unwrap().iter().map(|minute| minute[name].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("delivered"), sum("failed"), sum("dead_lettered")), (1, 1, 1));
    assert_eq!(
        stats["per_subscription"],
        json!([
            {"subscription_id": good, "delivered": 1, "failed": 0, "dead_lettered": 0},
            {"subscription_id": bad, "delivered": 0, "failed": 1, "dead_lettered": 1},
        ])
    );
    assert_eq!(api.get("/v1/stats").await.expect(200)["now"], stats["now"], "read once a second at most");
}
