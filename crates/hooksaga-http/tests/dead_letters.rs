//! `/v1/dead-letters`.

use crate::support::TestApi;
use hooksaga_store::Stage;
use serde_json::json;

#[tokio::test]
async fn a_dead_letter_is_listed_and_shown_with_its_payload() {
    let api = TestApi::new().await;
    let subscription = api.verified_subscription("t", "hook").await;
    let id = api.dead_letter("t", &json!({"a": [1, 2]})).await;
    let page = api.get("/v1/dead-letters").await.expect(200);
    let item = page["items"][0].clone();
    assert_eq!(item["id"], id);
    assert_eq!(item["subscription_id"], subscription);
    assert_eq!(item["event_type"], "t");
    assert_eq!(item["final_error_code"], "HTTP_503");
    assert!(item["requeued_saga_id"].is_null());
    assert!(item.get("payload").is_none());
    let shown = api.get(&format!("/v1/dead-letters/{id}")).await;
    assert!(shown.text().contains(r#""payload":{"a":[1,2]}"#));
    let mut expected = item;
    expected["payload"] = json!({"a": [1, 2]});
    assert_eq!(shown.expect(200), expected);
}

#[tokio::test]
async fn dead_letters_are_filtered() {
    let api = TestApi::new().await;
    let first = api.verified_subscription("a", "1").await;
    let second = api.verified_subscription("b", "2").await;
    let older = api.dead_letter("a", &json!(1)).await;
    let newer = api.dead_letter("b", &json!(1)).await;
    api.post_nothing(&format!("/v1/dead-letters/{older}/requeue")).await.expect(201);
    for (query, expected) in [
        (String::new(), vec![newer, older]),
        (format!("?subscription_id={first}"), vec![older]),
        (format!("?subscription_id={second}"), vec![newer]),
        ("?event_type=b".to_owned(), vec![newer]),
        ("?final_error_code=HTTP_503".to_owned(), vec![newer, older]),
        ("?final_error_code=TIMEOUT".to_owned(), vec![]),
        ("?requeued=true".to_owned(), vec![older]),
        ("?requeued=false".to_owned(), vec![newer]),
        ("?created_before=2020-01-01T00:00:00Z".to_owned(), vec![]),
        ("?created_after=2020-01-01T00:00:00Z".to_owned(), vec![newer, older]),
    ] {
        let page = api.get(&format!("/v1/dead-letters{query}")).await.expect(200);
        let found: Vec<_> =
            page["items"].as_array().unwrap().iter().map(|item| item["id"].as_i64().unwrap()).collect();
        assert_eq!(found, expected, "{query}");
    }
    for query in
        ["requeued=1", "final_error_code=", "final_error_code=a%20b", "status=Pending", "created_after=0"]
    {
        api.get(&format!("/v1/dead-letters?{query}")).await.expect(422);
    }
}

#[tokio::test]
async fn requeueing_twice_is_once() {
    let api = TestApi::new().await;
    api.verified_subscription("t", "hook").await;
    let id = api.dead_letter("t", &json!(1)).await;
    while api.was_woken(Stage::Schedule).await {}
    let path = format!("/v1/dead-letters/{id}/requeue");
    let response = api.post_nothing(&path).await;
    let requeued = response.expect(201);
    assert_eq!(requeued["generation"], 1);
    assert_eq!(requeued.as_object().unwrap().len(), 2);
    assert_eq!(response.header("location"), format!("/v1/deliveries/{}", requeued["saga_id"]));
    assert!(api.was_woken(Stage::Schedule).await);
    assert_eq!(api.post_nothing(&path).await.expect(200), requeued);
    assert_eq!(api.post(&path, &json!({})).await.expect(200), requeued);
    let letter = api.get(&format!("/v1/dead-letters/{id}")).await.expect(200);
    assert_eq!(letter["requeued_saga_id"], requeued["saga_id"]);
    let delivery = api.get(response.header("location")).await.expect(200);
    assert_eq!((&delivery["status"], &delivery["attempt_count"]), (&json!("Pending"), &json!(0)));
    assert_eq!(delivery["max_retry_limit"], 1);
}

#[tokio::test]
async fn a_requeue_needs_a_deliverable_subscription() {
    let api = TestApi::new().await;
    let subscription = api.verified_subscription("t", "hook").await;
    let id = api.dead_letter("t", &json!(1)).await;
    let path = format!("/v1/subscriptions/{subscription}");
    api.patch(&path, &json!({"active": false})).await.expect(200);
    api.post_nothing(&format!("/v1/dead-letters/{id}/requeue")).await.expect(409);
    api.patch(&path, &json!({"active": true, "callback_url": "https://example.com/new"})).await.expect(200);
    api.post_nothing(&format!("/v1/dead-letters/{id}/requeue")).await.expect(409);
    api.verify_all().await;
    api.post_nothing(&format!("/v1/dead-letters/{id}/requeue")).await.expect(201);
    api.post_nothing("/v1/dead-letters/999/requeue").await.expect(404);
    api.post_nothing("/v1/dead-letters/abc/requeue").await.expect(400);
    api.post(&format!("/v1/dead-letters/{id}/requeue"), &json!({"force": true})).await.expect(422);
}

#[tokio::test]
async fn many_are_requeued_by_filter() {
    let api = TestApi::new().await;
    let kept = api.verified_subscription("a", "1").await;
    let paused = api.verified_subscription("b", "2").await;
    for event_type in ["a", "a", "a", "b", "b"] {
        api.event(event_type, &json!(1)).await;
    }
    api.fail_all().await;
    api.patch(&format!("/v1/subscriptions/{paused}"), &json!({"active": false})).await.expect(200);

    let part = |requeued: u64, skipped: u64, complete: bool| json!({"matched": requeued + skipped, "requeued": requeued, "skipped": skipped, "complete": complete});
    let tally = |requeued: u64, skipped: u64| part(requeued, skipped, true);
    let path = "/v1/dead-letters/requeue";
    let only = |event_type: &str| json!({"filter": {"event_type": event_type}});
    let again = json!({"filter": {"requeued": true}});
    assert_eq!(api.post(path, &again).await.invalid_fields(), ["filter.requeued"]);
    assert_eq!(api.post(path, &only("none")).await.expect(200), tally(0, 0));
    let dry = json!({"filter": {"event_type": "a"}, "dry_run": true});
    assert_eq!(api.post(path, &dry).await.expect(200), tally(3, 0));
    while api.was_woken(Stage::Schedule).await {}
    let some = json!({"filter": {"subscription_id": kept}, "limit": 2});
    assert_eq!(api.post(path, &some).await.expect(200), part(2, 0, false));
    assert!(api.was_woken(Stage::Schedule).await);
    assert_eq!(api.post(path, &only("b")).await.expect(200), tally(0, 2));
    let all = json!({"filter": {}, "dry_run": false, "limit": 10_000});
    assert_eq!(api.post(path, &all).await.expect(200), tally(1, 2));
    assert_eq!(api.post(path, &all).await.expect(200), tally(0, 2));
}

#[tokio::test]
async fn a_requeue_of_many_says_what_is_wrong_with_it() {
    let api = TestApi::new().await;
    for (body, fields) in [
        (json!({}), vec!["filter"]),
        (json!({"filter": null}), vec!["filter"]),
        (json!({"filter": []}), vec!["filter"]),
        (json!({"filter": {}, "limit": 0}), vec!["limit"]),
        (json!({"filter": {}, "limit": 10_001}), vec!["limit"]),
        (json!({"filter": {}, "dry_run": "yes"}), vec!["dry_run"]),
        (json!({"filter": {}, "all": true}), vec!["all"]),
        (
            json!({"filter": {
                "subscription_id": 0, "event_type": "a b", "final_error_code": "", "requeued": 1,
                "created_after": "x", "created_before": 1, "status": null,
            }}),
            vec![
                "filter.created_after",
                "filter.created_before",
                "filter.event_type",
                "filter.final_error_code",
                "filter.requeued",
                "filter.status",
                "filter.subscription_id",
            ],
        ),
    ] {
        assert_eq!(api.post("/v1/dead-letters/requeue", &body).await.invalid_fields(), fields, "{body}");
    }
    for limit in [1, 10_000] {
        api.post("/v1/dead-letters/requeue", &json!({"filter": {}, "limit": limit})).await.expect(200);
    }
    let nulls = json!({
        "filter": {
            "tenant": null, "subscription_id": null, "event_type": null, "final_error_code": null,
            "requeued": null, "created_after": null, "created_before": null,
        },
        "limit": null,
        "dry_run": null,
    });
    api.post("/v1/dead-letters/requeue", &nulls).await.expect(200);
    api.post_text("/v1/dead-letters/requeue", "").await.expect(400);
    api.raw("POST", "/v1/dead-letters/requeue", &[], "{}").await.expect(415);
    api.post_text("/v1/dead-letters/requeue", " ".repeat(70_000)).await.expect(413);
}
