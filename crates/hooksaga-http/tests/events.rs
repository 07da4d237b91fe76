//! `/v1/events`.

use crate::support::{MAX_PAYLOAD, TestApi};
use hooksaga_store::Stage;
use serde_json::json;

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn an_event_is_stored_and_returned() {
    let api = TestApi::new().await;
    let body = json!({"event_type": "order.created", "payload": {"n": 1}, "external_id": "x-1"}).to_string();
    let response = api.raw("POST", "/v1/events", &[JSON, ("x-correlation-id", "c-1")], body).await;
    let event = response.expect(201);
    assert_eq!(response.header("content-type"), "application/json");
    assert_eq!(response.header("location"), format!("/v1/events/{}", event["id"]));
    assert_eq!(event["event_type"], "order.created");
    assert_eq!(event["tenant"], "default");
    assert_eq!(event["external_id"], "x-1");
    assert_eq!(event["correlation_id"], "c-1");
    assert_eq!(event["duplicate"], false);
    assert_eq!(event.as_object().unwrap().len(), 7);
    let created_at = event["created_at"].as_str().unwrap();
    assert_eq!(created_at.len(), "2026-01-31T12:00:00.123456Z".len());
    assert!(created_at.ends_with('Z'));
    assert!(api.was_woken(Stage::Router).await);
}

#[tokio::test]
async fn ids_are_generated_when_absent() {
    let api = TestApi::new().await;
    let mut seen = Vec::new();
    for body in [
        json!({"event_type": "t", "payload": 1}),
        json!({"event_type": "t", "payload": 1, "external_id": null}),
    ] {
        let event = api.post("/v1/events", &body).await.expect(201);
        assert!(event["external_id"].is_null());
        let id = event["correlation_id"].as_str().unwrap().to_owned();
        assert!((1..=100).contains(&id.len()));
        seen.push(id);
    }
    assert_ne!(seen[0], seen[1]);
}

#[tokio::test]
async fn the_same_again_is_the_original_and_other_content_a_conflict() {
    let api = TestApi::new().await;
    let body = json!({"event_type": "t", "payload": {"a": 1}, "external_id": "x"});
    let first = api
        .raw("POST", "/v1/events", &[JSON, ("x-correlation-id", "one")], body.to_string())
        .await
        .expect(201);
    let second = api
        .raw("POST", "/v1/events", &[JSON, ("x-correlation-id", "two")], body.to_string())
        .await
        .expect(200);
    assert_eq!(second["duplicate"], true);
    for member in ["id", "event_type", "external_id", "correlation_id", "created_at"] {
        assert_eq!(first[member], second[member], "{member}");
    }
    for other in [
        json!({"event_type": "u", "payload": {"a": 1}, "external_id": "x"}),
        json!({"event_type": "t", "payload": {"a": 2}, "external_id": "x"}),
    ] {
        let problem = api.post("/v1/events", &other).await.expect(409);
        assert_eq!(problem["existing_id"], first["id"]);
    }
    // The same value, but not the same bytes.
    let response =
        api.post_text("/v1/events", r#"{"event_type":"t","payload":{"a": 1},"external_id":"x"}"#).await;
    response.expect(409);
    assert_eq!(api.get("/v1/events").await.expect(200)["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn payloads_come_back_byte_for_byte() {
    let api = TestApi::new().await;
    for payload in [
        "null",
        "true",
        "0",
        "-0.0",
        "1.0e+2",
        "123456789012345678901234567890.10",
        "\"\"",
        "[]",
        "{}",
        "{ \"b\" :\t1,\n\"a\":[ 1 ,2 ] , \"b\":2}",
        "\"\\u00e9 é \\/ / \\ud83d\\ude00 😀\"",
        "\"\\ud800 lone, \\u0000 null\"",
        "\"\u{2028}\u{7f}\"",
    ] {
        let body = format!("{{\"payload\" : {payload} , \"event_type\":\"t\"}}");
        let id = api.post_text("/v1/events", body).await.expect(201)["id"].clone();
        let response = api.get(&format!("/v1/events/{id}")).await;
        assert_eq!(response.status, 200);
        assert!(
            response.text().contains(&format!("\"payload\":{payload},\"routed\"")),
            "{}",
            response.text()
        );
    }
}

#[tokio::test]
async fn every_fault_is_named_at_once() {
    let api = TestApi::new().await;
    let body = r#"{"event_type":"a b","external_id":"","color":1,"verified":true}"#;
    let response = api.raw("POST", "/v1/events", &[JSON, ("x-correlation-id", "a b")], body).await;
    assert_eq!(
        response.invalid_fields(),
        ["color", "event_type", "external_id", "payload", "verified", "x-correlation-id"]
    );
    assert_eq!(api.post_text("/v1/events", "{}").await.invalid_fields(), ["event_type", "payload"]);
    for (body, field) in [
        (r#"{"event_type":1,"payload":1}"#, "event_type"),
        (r#"{"event_type":null,"payload":1}"#, "event_type"),
        (r#"{"event_type":["t"],"payload":1}"#, "event_type"),
        (r#"{"event_type":"\ud800","payload":1}"#, "event_type"),
        (r#"{"event_type":"t","payload":1,"external_id":7}"#, "external_id"),
        (r#"{"event_type":"t","payload":1,"payload":1}"#, "payload"),
        (r#"{"event_type":"t","event_type":"t","payload":1}"#, "event_type"),
        (r#"{"event_type":"t","event\u005ftype":"t","payload":1}"#, "event_type"),
        (r#"{"event_type":"t","payload":1,"Payload":1}"#, "Payload"),
        (r#"{"event_type":"t","payload":1,"correlation_id":"c"}"#, "correlation_id"),
        (r#"{"event_type":"t","payload":1,"":1}"#, ""),
    ] {
        assert_eq!(api.post_text("/v1/events", body).await.invalid_fields(), [field], "{body}");
    }
    assert!(api.get("/v1/events").await.expect(200)["items"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn limits_hold_at_their_edges() {
    let api = TestApi::new().await;
    let allowed = "AZaz09_.:-";
    let body =
        |event_type: &str, id: &str| json!({"event_type": event_type, "payload": 1, "external_id": id});
    for (event_type, external_id, fields) in [
        (allowed.to_owned(), "!~".to_owned(), vec![]),
        ("t".repeat(100), "i".repeat(200), vec![]),
        ("t".repeat(101), "i".repeat(201), vec!["event_type", "external_id"]),
        (String::new(), String::new(), vec!["event_type", "external_id"]),
        ("a/b".to_owned(), "a b".to_owned(), vec!["event_type", "external_id"]),
        ("é".to_owned(), "é".to_owned(), vec!["event_type", "external_id"]),
        ("t\n".to_owned(), "\t".to_owned(), vec!["event_type", "external_id"]),
        ("t\0".to_owned(), "\u{7f}".to_owned(), vec!["event_type", "external_id"]),
    ] {
        let response = api.post("/v1/events", &body(&event_type, &external_id)).await;
        if fields.is_empty() {
            response.expect(201);
        } else {
            assert_eq!(response.invalid_fields(), fields, "{event_type:?}");
        }
    }
    for (id, status) in
        [("c".repeat(100), 201), ("c".repeat(101), 422), (String::new(), 422), ("a b".to_owned(), 422)]
    {
        let headers = [JSON, ("x-correlation-id", id.as_str())];
        api.raw("POST", "/v1/events", &headers, r#"{"event_type":"t","payload":1}"#).await.expect(status);
    }
    let twice = [JSON, ("x-correlation-id", "a"), ("x-correlation-id", "b")];
    let response = api.raw("POST", "/v1/events", &twice, r#"{"event_type":"t","payload":1}"#).await;
    assert_eq!(response.invalid_fields(), ["x-correlation-id"]);
}

#[tokio::test]
async fn nesting_is_allowed_to_128_and_deep_input_is_harmless() {
    let api = TestApi::new().await;
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let event = |payload: &str| format!(r#"{{"event_type":"t","payload":{payload}}}"#);
    api.post_text("/v1/events", event(&nested(128))).await.expect(201);
    assert_eq!(api.post_text("/v1/events", event(&nested(129))).await.invalid_fields(), ["payload"]);
    let objects = format!("{}1{}", r#"{"a":"#.repeat(129), "}".repeat(129));
    assert_eq!(api.post_text("/v1/events", event(&objects)).await.invalid_fields(), ["payload"]);

    let api = TestApi::with(|parts| parts.max_payload_bytes = 10_000_000).await;
    let deep = nested(4_000_000);
    assert_eq!(api.post_text("/v1/events", event(&deep)).await.invalid_fields(), ["payload"]);
    api.post_text("/v1/events", deep.clone()).await.expect(422);
    api.post_text("/v1/events", "[".repeat(4_000_000)).await.expect(400);
    api.post_text("/v1/events", "{\"a\":".repeat(1_000_000)).await.expect(400);
    let as_type = format!(r#"{{"event_type":{deep},"payload":1}}"#);
    assert_eq!(api.post_text("/v1/events", as_type).await.invalid_fields(), ["event_type"]);
}

#[tokio::test]
async fn the_payload_limit_counts_its_own_bytes() {
    let api = TestApi::new().await;
    let event = |length: usize| {
        format!(
            r#"{{  "event_type":"t","external_id":"x-{length}","payload":   "{}"   }}"#,
            "p".repeat(length - 2)
        )
    };
    api.post_text("/v1/events", event(MAX_PAYLOAD)).await.expect(201);
    assert_eq!(api.post_text("/v1/events", event(MAX_PAYLOAD + 1)).await.faulty_fields(413), ["payload"]);
    // Bytes, not characters.
    let body = format!(r#"{{"event_type":"t","payload":"{}"}}"#, "é".repeat(MAX_PAYLOAD / 2));
    assert_eq!(api.post_text("/v1/events", body).await.faulty_fields(413), ["payload"]);
    // With another fault it is one fault among several.
    let body = event(MAX_PAYLOAD + 1).replace("event_type", "kind");
    assert_eq!(api.post_text("/v1/events", body).await.invalid_fields(), ["event_type", "kind", "payload"]);
    // A body that cannot hold an allowed event is not read to its end.
    api.post_text("/v1/events", event(MAX_PAYLOAD + 100_000)).await.expect(413);
    let response =
        api.raw("POST", "/v1/events", &[JSON, ("content-length", "99999999999999999999")], "{}").await;
    assert!(response.status < 500);
}

#[tokio::test]
async fn bodies_that_are_not_json_are_told_apart() {
    let api = TestApi::new().await;
    for body in [
        &b""[..],
        b" ",
        b"{",
        b"nope",
        b"{'event_type':'t'}",
        b"{\"event_type\":\"t\",\"payload\":1,}",
        b"{\"event_type\":\"t\",\"payload\":1} x",
        b"{\"event_type\":\"t\",\"payload\":01}",
        b"{\"event_type\":\"t\",\"payload\":NaN}",
        b"{\"event_type\":\"t\",\"payload\":\"\n\"}",
        b"{\"event_type\":\"t\",\"payload\":\"\xff\"}",
        b"{\"event_type\":\"t\",\"payload\":\"\xed\xa0\x80\"}",
        b"\xef\xbb\xbf{\"event_type\":\"t\",\"payload\":1}",
    ] {
        api.post_text("/v1/events", body).await.expect(400);
    }
    for body in ["1", "[]", "null", "\"text\"", "[{}]"] {
        assert_eq!(api.post_text("/v1/events", body).await.invalid_fields(), ["body"]);
    }
    let good = r#"{"event_type":"t","payload":1}"#;
    for content_type in
        ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/x+json"]
    {
        api.raw("POST", "/v1/events", &[("content-type", content_type)], good).await.expect(201);
    }
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "json", "", "application/jsonp"] {
        api.raw("POST", "/v1/events", &[("content-type", content_type)], good).await.expect(415);
    }
    api.raw("POST", "/v1/events", &[], good).await.expect(415);
    for (encoding, status) in [("identity", 201), ("Identity", 201), ("gzip", 415), ("identity, br", 415)] {
        let headers = [("content-type", "application/json"), ("content-encoding", encoding)];
        let response = api.raw("POST", "/v1/events", &headers, good).await;
        assert_eq!(response.status, status, "{encoding}");
        if status == 415 {
            assert_eq!(response.header("accept-encoding"), "identity");
        }
    }
}

#[tokio::test]
async fn an_event_is_shown_with_its_deliveries() {
    let api = TestApi::new().await;
    let subscription = api.verified_subscription("t", "hook").await;
    let id = api.event("t", &json!({"a": 1})).await;
    let event = api.get(&format!("/v1/events/{id}")).await.expect(200);
    assert_eq!(event["routed"], false);
    assert_eq!(event["deliveries"], json!([]));
    api.route().await;
    let event = api.get(&format!("/v1/events/{id}")).await.expect(200);
    assert_eq!(event["id"], id);
    assert_eq!(event["event_type"], "t");
    assert_eq!(event["payload"], json!({"a": 1}));
    assert_eq!(event["routed"], true);
    assert_eq!(event["deliveries"][0]["subscription_id"], subscription);
    assert_eq!(event["deliveries"][0]["status"], "Pending");
    assert_eq!(event["unmatched"], json!({"paused": 0, "disabled": 0, "unverified": 0}));
    assert_eq!(event.as_object().unwrap().len(), 10);
}

#[tokio::test]
async fn events_are_filtered() {
    let api = TestApi::new().await;
    for (event_type, external_id, correlation_id) in [("a", "1", "x"), ("a", "2", "y"), ("b", "3", "x")] {
        let body = json!({"event_type": event_type, "payload": 0, "external_id": external_id});
        let headers = [JSON, ("x-correlation-id", correlation_id)];
        api.raw("POST", "/v1/events", &headers, body.to_string()).await.expect(201);
    }
    for (query, ids) in [
        ("", vec!["3", "2", "1"]),
        ("?event_type=a", vec!["2", "1"]),
        ("?external_id=3", vec!["3"]),
        ("?correlation_id=x", vec!["3", "1"]),
        ("?correlation_id=x&event_type=a", vec!["1"]),
        ("?event_type=A", vec![]),
    ] {
        let page = api.get(&format!("/v1/events{query}")).await.expect(200);
        let found: Vec<_> = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["external_id"].as_str().unwrap())
            .collect();
        assert_eq!(found, ids, "{query}");
        assert!(page["items"].as_array().unwrap().iter().all(|item| item.get("payload").is_none()));
    }
}

#[tokio::test]
async fn events_are_filtered_by_time() {
    let api = TestApi::new().await;
    let (older, newer) = (api.event("t", &json!(1)).await, api.event("t", &json!(2)).await);
    let created = api.get(&format!("/v1/events/{newer}")).await.expect(200)["created_at"].clone();
    let created = created.as_str().unwrap();
    for (query, expected) in [
        ("created_after=2020-01-01T00:00:00Z".to_owned(), vec![newer, older]),
        ("created_before=2020-01-01T00:00:00Z".to_owned(), vec![]),
        (format!("created_after={created}"), vec![newer]),
        (format!("created_before={created}"), vec![older]),
        (format!("created_after={created}&created_before={created}"), vec![]),
        (format!("created_after={created}&event_type=u"), vec![]),
    ] {
        let page = api.get(&format!("/v1/events?{query}")).await.expect(200);
        let found: Vec<_> =
            page["items"].as_array().unwrap().iter().map(|item| item["id"].as_i64().unwrap()).collect();
        assert_eq!(found, expected, "{query}");
    }
    for field in ["created_after", "created_before"] {
        let response = api.get(&format!("/v1/events?{field}=yesterday")).await;
        assert_eq!(response.invalid_fields(), [field]);
    }
}
