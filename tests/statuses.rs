//! Every documented status of every route.

use crate::support::*;

on_every_back_end! {
    every_route_answers_every_documented_status,
    every_route_wants_its_own_scope,
    errors_are_problem_documents,
    lists_are_complete_page_by_page,
    too_large_is_413_at_the_exact_byte,
    a_batch_is_all_valid_or_nothing,
}

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

async fn every_route_answers_every_documented_status(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (subscription, _) = api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Status(500)]);
    let event = api.event("t", &json!(1)).await;
    let saga = api.delivery_with_status(event, "DeadLettered").await["saga_id"].as_i64().unwrap();
    let letter = eventually("the letter", || async {
        api.get("/v1/dead-letters").await.expect(200)["items"][0]["id"].as_i64()
    })
    .await;
    let url = receiver.url("/in");
    let other_url = receiver.url("/other");
    let taken = json!({"event_type": "t", "callback_url": url}).to_string();
    let free = json!({"event_type": "t", "callback_url": other_url}).to_string();

    let cases: &[(&str, &str, &str, u16)] = &[
        ("POST", "/v1/events", r#"{"event_type":"t","payload":1,"external_id":"x"}"#, 201),
        ("POST", "/v1/events", r#"{"event_type":"t","payload":1,"external_id":"x"}"#, 200),
        ("POST", "/v1/events", r#"{"event_type":"t","payload":2,"external_id":"x"}"#, 409),
        ("POST", "/v1/events", r#"{"event_type":"t","payload":null}"#, 201),
        ("POST", "/v1/events", "{", 400),
        ("POST", "/v1/events", r#"{"event_type":"t"}"#, 422),
        ("POST", "/v1/events", r#"{"event_type":"bad type","payload":1}"#, 422),
        ("POST", "/v1/events", r#"{"event_type":"t","payload":1,"external_id":""}"#, 422),
        ("POST", "/v1/events", r#"{"event_type":"t","payload":1,"surplus":1}"#, 422),
        ("DELETE", "/v1/events", "", 405),
        ("POST", "/v1/events/batch", r#"{"events":[{"event_type":"t","payload":1}]}"#, 200),
        ("POST", "/v1/events/batch", r#"{"events":[]}"#, 422),
        ("POST", "/v1/events/batch", "nonsense", 400),
        ("GET", "/v1/events", "", 200),
        ("GET", "/v1/events?event_type=t&limit=500", "", 200),
        ("GET", "/v1/events?limit=0", "", 422),
        ("GET", "/v1/events?limit=501", "", 422),
        ("GET", "/v1/events?unknown=1", "", 422),
        ("GET", "/v1/events?cursor=!!", "", 400),
        ("GET", &format!("/v1/events/{event}"), "", 200),
        ("GET", "/v1/events/999999", "", 404),
        ("GET", "/v1/events/abc", "", 400),
        ("POST", "/v1/subscriptions", &free, 201),
        ("POST", "/v1/subscriptions", &taken, 409),
        ("POST", "/v1/subscriptions", r#"{"event_type":"t","callback_url":"ftp://example.com/"}"#, 422),
        ("POST", "/v1/subscriptions", r#"{"event_type":"t","callback_url":"https://u:p@example.com/"}"#, 422),
        ("POST", "/v1/subscriptions", r#"{"event_type":"t","callback_url":"https://example.com/#x"}"#, 422),
        ("POST", "/v1/subscriptions", r#"{"event_type":"t"}"#, 422),
        ("GET", "/v1/subscriptions?active=true&verified=true&event_type=t", "", 200),
        ("GET", "/v1/subscriptions?active=maybe", "", 422),
        ("GET", &format!("/v1/subscriptions/{subscription}"), "", 200),
        ("GET", "/v1/subscriptions/999999", "", 404),
        ("PATCH", &format!("/v1/subscriptions/{subscription}"), r#"{"max_retry_limit":7}"#, 200),
        ("PATCH", &format!("/v1/subscriptions/{subscription}"), r#"{"max_retry_limit":0}"#, 422),
        ("PATCH", &format!("/v1/subscriptions/{subscription}"), r#"{"max_retry_limit":101}"#, 422),
        ("PATCH", &format!("/v1/subscriptions/{subscription}"), r#"{"verified":true}"#, 422),
        (
            "PATCH",
            &format!("/v1/subscriptions/{subscription}"),
            &format!(r#"{{"callback_url":"{other_url}"}}"#),
            409,
        ),
        ("PATCH", "/v1/subscriptions/999999", r#"{"active":true}"#, 404),
        ("POST", &format!("/v1/subscriptions/{subscription}/verify"), "", 202),
        ("POST", "/v1/subscriptions/999999/verify", "", 404),
        ("POST", &format!("/v1/subscriptions/{subscription}/rotate-secret"), "", 200),
        ("POST", "/v1/subscriptions/999999/rotate-secret", "", 404),
        ("GET", "/v1/deliveries?status=DeadLettered&event_type=t", "", 200),
        ("GET", "/v1/deliveries?status=Strange", "", 422),
        (
            "GET",
            "/v1/deliveries?created_after=2020-01-01T00:00:00Z&created_before=2100-01-01T00:00:00Z",
            "",
            200,
        ),
        ("GET", "/v1/deliveries?created_after=yesterday", "", 422),
        ("GET", &format!("/v1/deliveries/{saga}"), "", 200),
        ("GET", "/v1/deliveries/999999", "", 404),
        ("GET", "/v1/deliveries/-1", "", 400),
        ("GET", "/v1/dead-letters?final_error_code=HTTP_500&requeued=false", "", 200),
        ("GET", "/v1/dead-letters?requeued=perhaps", "", 422),
        ("GET", &format!("/v1/dead-letters/{letter}"), "", 200),
        ("GET", "/v1/dead-letters/999999", "", 404),
        ("POST", "/v1/dead-letters/999999/requeue", "", 404),
        ("POST", &format!("/v1/dead-letters/{letter}/requeue"), "", 201),
        ("POST", &format!("/v1/dead-letters/{letter}/requeue"), "", 200),
        ("POST", "/v1/dead-letters/requeue", r#"{"filter":{}}"#, 200),
        ("POST", "/v1/dead-letters/requeue", r#"{}"#, 422),
        ("POST", "/v1/dead-letters/requeue", r#"{"filter":{"surplus":1}}"#, 422),
        ("POST", "/v1/dead-letters/requeue", r#"{"filter":{},"limit":10001}"#, 422),
        ("GET", "/v1/stats", "", 200),
        ("GET", "/v1/stats?x=1", "", 422),
        ("GET", "/v1/audit?action=subscription.change", "", 200),
        ("GET", "/v1/audit?action=", "", 422),
        ("GET", "/healthz", "", 200),
        ("GET", "/readyz", "", 200),
        ("GET", "/metrics", "", 200),
        ("GET", "/openapi.json", "", 200),
        ("GET", "/docs", "", 200),
        ("GET", "/v1/nothing", "", 404),
        ("PUT", "/v1/stats", "", 405),
    ];
    for (method, path, body, status) in cases {
        let headers = if body.is_empty() { &[] } else { JSON };
        let answer = api.send(method, path, headers, body.as_bytes()).await;
        assert_eq!(answer.status, *status, "{method} {path} {body}: {}", answer.text());
    }
    let wrong_type = api.send("POST", "/v1/events", &[("content-type", "text/plain")], b"{}").await;
    assert_eq!(wrong_type.status, 415);
    assert_eq!(api.get("/openapi.json").await.json()["openapi"].as_str().unwrap().split_at(3).0, "3.1");
}

async fn every_route_wants_its_own_scope(installation: Installation) {
    let server = installation.serve().await;
    let mut keys = Vec::new();
    for scope in ["ingest", "admin", "operator", "read"] {
        let made = run(&installation, &["keys", "create", "--name", scope, "--scopes", scope]).await;
        let output = String::from_utf8(made.stdout).unwrap();
        let key = output.split_whitespace().find(|word| word.starts_with("hsk_")).unwrap().to_owned();
        keys.push((scope, key));
    }
    let routes = [
        ("POST", "/v1/events", "ingest"),
        ("POST", "/v1/events/batch", "ingest"),
        ("GET", "/v1/events", "read"),
        ("GET", "/v1/events/1", "read"),
        ("POST", "/v1/subscriptions", "admin"),
        ("GET", "/v1/subscriptions", "read"),
        ("GET", "/v1/subscriptions/1", "read"),
        ("PATCH", "/v1/subscriptions/1", "admin"),
        ("POST", "/v1/subscriptions/1/verify", "admin"),
        ("POST", "/v1/subscriptions/1/rotate-secret", "admin"),
        ("GET", "/v1/deliveries", "read"),
        ("GET", "/v1/deliveries/1", "read"),
        ("GET", "/v1/dead-letters", "read"),
        ("GET", "/v1/dead-letters/1", "read"),
        ("POST", "/v1/dead-letters/1/requeue", "operator"),
        ("POST", "/v1/dead-letters/requeue", "operator"),
        ("GET", "/v1/stats", "read"),
        ("GET", "/v1/audit", "admin"),
    ];
    for (method, path, needed) in routes {
        let body: &[u8] = if method == "GET" { b"" } else { b"{}" };
        for (scope, key) in &keys {
            let status = server.api_with(Some(key)).send(method, path, JSON, body).await.status;
            assert_eq!(status == 403, *scope != needed, "{method} {path} with {scope}: {status}");
        }
        for key in [None, Some("hsk_unknown")] {
            let answer = server.api_with(key).send(method, path, JSON, body).await;
            assert_eq!(answer.status, 401, "{method} {path}");
        }
    }
    let listed = run(&installation, &["keys", "list"]).await;
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(keys.iter().all(|(_, key)| !listed.contains(key.as_str())), "a key is shown once");
    let id = listed.lines().find(|line| line.contains("ingest")).unwrap().split_whitespace().next().unwrap();
    let revoked = run(&installation, &["keys", "revoke", id]).await;
    assert_eq!(revoked.status.code(), Some(0), "{revoked:?}");
    eventually("the revoked key stops working", || async {
        let (_, key) = &keys[0];
        (server.api_with(Some(key)).post("/v1/events", &json!({})).await.status == 401).then_some(())
    })
    .await;
}

async fn errors_are_problem_documents(installation: Installation) {
    let server = installation.serve().await;
    let api = server.api();
    let body = br#"{"event_type":"no blanks","external_id":"","surplus":1}"#;
    let answer = api.send("POST", "/v1/events", JSON, body).await;
    assert!(answer.header("content-type").unwrap().starts_with("application/problem+json"));
    let problem = answer.expect(422);
    for member in ["type", "title", "detail"] {
        assert!(problem[member].is_string(), "{member}: {problem}");
    }
    assert_eq!(problem["status"], 422);
    let fields: Vec<_> = problem["errors"].as_array().unwrap().iter().map(|error| &error["field"]).collect();
    for field in ["event_type", "external_id", "payload", "surplus"] {
        assert!(fields.contains(&&json!(field)), "{field}: {problem}");
    }
    for answer in [
        api.get("/v1/nothing").await,
        api.send("PUT", "/v1/stats", &[], b"").await,
        server.api_with(None).get("/v1/stats").await,
        api.get("/v1/events/zero").await,
    ] {
        assert!(answer.header("content-type").unwrap().starts_with("application/problem+json"), "{answer:?}");
        assert_eq!(answer.json()["status"], answer.status);
    }
}

async fn lists_are_complete_page_by_page(installation: Installation) {
    let server = installation.serve().await;
    let api = server.api();
    let events: Vec<_> = (0..25).map(|n| json!({"event_type": "t", "payload": n})).collect();
    api.post("/v1/events/batch", &json!({"events": events})).await.expect(200);
    let (mut seen, mut path) = (Vec::new(), "/v1/events?limit=10".to_owned());
    loop {
        let page = api.get(&path).await.expect(200);
        seen.extend(page["items"].as_array().unwrap().iter().map(|event| event["id"].as_i64().unwrap()));
        api.event("t", &json!("new ones do not disturb")).await;
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/v1/events?limit=10&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 25);
    assert!(seen.is_sorted_by(|newer, older| newer > older), "newest first: {seen:?}");
}

async fn too_large_is_413_at_the_exact_byte(installation: Installation) {
    let installation = installation.with("HOOKSAGA_MAX_PAYLOAD_BYTES", "1000");
    let server = installation.serve().await;
    let api = server.api();
    for (size, status) in [(1000, 201), (1001, 413), (100_000, 413)] {
        let payload = format!("\"{}\"", "x".repeat(size - 2));
        let body = format!(r#"{{"event_type":"t","payload":{payload}}}"#);
        let answer = api.send("POST", "/v1/events", JSON, body.as_bytes()).await;
        assert_eq!(answer.status, status, "{size} bytes: {}", answer.text());
    }
}

async fn a_batch_is_all_valid_or_nothing(installation: Installation) {
    let server = installation.serve().await;
    let api = server.api();
    let good = json!({"event_type": "t", "payload": 1, "external_id": "a"});
    let bad = json!({"event_type": "", "payload": 1});
    let problem = api.post("/v1/events/batch", &json!({"events": [good, bad]})).await.expect(422);
    assert!(problem["errors"][0]["field"].as_str().unwrap().contains('1'), "which one: {problem}");
    assert_eq!(api.get("/v1/events").await.expect(200)["items"], json!([]));

    let conflict = json!({"event_type": "t", "payload": 2, "external_id": "a"});
    let answer = api.post("/v1/events/batch", &json!({"events": [good, conflict, good]})).await.expect(200);
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results[0]["duplicate"], false);
    assert!(results[1]["error"].is_object(), "{answer}");
    assert_eq!((&results[2]["duplicate"], &results[2]["id"]), (&json!(true), &results[0]["id"]));
    let many: Vec<_> = (0..1001).map(|n| json!({"event_type": "t", "payload": n})).collect();
    api.post("/v1/events/batch", &json!({"events": many})).await.expect(422);
}
