//! `/v1/events/batch`.

use crate::support::{MAX_BATCH, MAX_PAYLOAD, TestApi};
use serde_json::{Value, json};

async fn stored(api: &TestApi) -> usize {
    api.get("/v1/events?limit=500").await.expect(200)["items"].as_array().unwrap().len()
}

#[tokio::test]
async fn results_come_in_order_with_duplicates_and_conflicts_in_place() {
    let api = TestApi::new().await;
    let original = json!({"event_type": "t", "payload": 1, "external_id": "x"});
    let first = api.post("/v1/events", &original).await.expect(201);
    let body = json!({"events": [
        {"event_type": "a", "payload": null},
        original,
        {"event_type": "t", "payload": 2, "external_id": "x"},
        {"event_type": "b", "payload": [], "external_id": "y"},
        {"event_type": "b", "payload": [], "external_id": "y"},
    ]})
    .to_string();
    let headers = [("content-type", "application/json"), ("x-correlation-id", "batch-7")];
    let response = api.raw("POST", "/v1/events/batch", &headers, body).await.expect(200);
    let results = response["results"].as_array().unwrap();
    assert_eq!(results.len(), 5);
    assert_eq!(results[0]["event_type"], "a");
    assert_eq!(results[0]["duplicate"], false);
    assert_eq!(results[0]["correlation_id"], "batch-7");
    assert_eq!(results[1]["id"], first["id"]);
    assert_eq!(results[1]["duplicate"], true);
    let error = &results[2]["error"];
    assert_eq!(error["status"], 409);
    assert_eq!(error["existing_id"], first["id"]);
    assert!(error["type"].is_string() && error["title"].is_string() && error["detail"].is_string());
    assert!(results[2].get("id").is_none());
    assert_eq!(results[3]["duplicate"], false);
    assert_eq!(results[4]["id"], results[3]["id"]);
    assert_eq!(results[4]["duplicate"], true);
    assert_eq!(stored(&api).await, 3);
}

#[tokio::test]
async fn nothing_is_stored_if_any_is_invalid() {
    let api = TestApi::new().await;
    let body = json!({"events": [
        {"event_type": "ok", "payload": 1},
        {"event_type": "not ok", "payload": 1},
        7,
        {"payload": 1, "color": "red", "event_type": "ok", "external_id": ""},
        {},
    ]});
    assert_eq!(
        api.post("/v1/events/batch", &body).await.invalid_fields(),
        [
            "events[1].event_type",
            "events[2]",
            "events[3].color",
            "events[3].external_id",
            "events[4].event_type",
            "events[4].payload"
        ]
    );
    assert_eq!(stored(&api).await, 0);
}

#[tokio::test]
async fn a_batch_has_1_to_1000_events() {
    let api = TestApi::new().await;
    let batch = |count: usize| json!({"events": vec![json!({"event_type": "t", "payload": 1}); count]});
    assert_eq!(api.post("/v1/events/batch", &batch(0)).await.invalid_fields(), ["events"]);
    let response = api.post("/v1/events/batch", &batch(1000)).await.expect(200);
    let results = response["results"].as_array().unwrap();
    assert_eq!(results.len(), 1000);
    assert_ne!(results[0]["correlation_id"], results[1]["correlation_id"]);
    assert_eq!(api.post("/v1/events/batch", &batch(1001)).await.invalid_fields(), ["events"]);
    // Elements beyond the limit are not even looked at.
    let many = format!("{{\"events\":[{}1]}}", "1,".repeat(200_000));
    assert_eq!(api.post_text("/v1/events/batch", many).await.invalid_fields(), ["events"]);
}

#[tokio::test]
async fn faults_of_the_envelope_are_named() {
    let api = TestApi::new().await;
    for (body, fields) in [
        (json!({}), vec!["events"]),
        (json!({"events": {}}), vec!["events"]),
        (json!({"events": null}), vec!["events"]),
        (json!([]), vec!["body"]),
        (json!({"events": [{"event_type": "t", "payload": 1}], "more": 1}), vec!["more"]),
    ] {
        assert_eq!(api.post("/v1/events/batch", &body).await.invalid_fields(), fields, "{body}");
    }
    let bad_header = [("content-type", "application/json"), ("x-correlation-id", "")];
    let body = json!({"events": [{"event_type": "t", "payload": 1}]}).to_string();
    let response = api.raw("POST", "/v1/events/batch", &bad_header, body).await;
    assert_eq!(response.invalid_fields(), ["x-correlation-id"]);
    api.post_text("/v1/events/batch", "{\"events\":[}").await.expect(400);
    api.raw("POST", "/v1/events/batch", &[], "{}").await.expect(415);
    assert_eq!(stored(&api).await, 0);
}

#[tokio::test]
async fn sizes_are_limited_per_payload_and_in_all() {
    let api = TestApi::new().await;
    let event = |length: usize| json!({"event_type": "t", "payload": "p".repeat(length - 2)});
    let body = json!({"events": [event(MAX_PAYLOAD), event(MAX_PAYLOAD + 1)]});
    assert_eq!(api.post("/v1/events/batch", &body).await.faulty_fields(413), ["events[1].payload"]);

    let events: Value = vec![event(MAX_PAYLOAD); 200].into();
    let text = json!({"events": events}).to_string();
    let padded = |length: usize| format!("{text}{}", " ".repeat(length - text.len()));
    api.post_text("/v1/events/batch", padded(MAX_BATCH + 1)).await.expect(413);
    assert_eq!(stored(&api).await, 0);
    api.post_text("/v1/events/batch", padded(MAX_BATCH)).await.expect(200);
    assert_eq!(stored(&api).await, 200);
}
