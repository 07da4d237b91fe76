//! The good way: from an event to a delivered webhook.

use crate::support::*;

on_every_back_end! {
    an_event_is_delivered_signed_and_byte_for_byte,
    an_event_sent_twice_is_stored_and_delivered_once,
    an_event_is_delivered_to_every_matching_subscription_and_no_other,
    an_event_posted_right_after_verification_is_delivered,
    connections_are_reused,
    the_log_tells_the_story_of_one_delivery,
    a_rotated_secret_signs_beside_the_old_one,
    metrics_count_every_stage,
}

async fn an_event_is_delivered_signed_and_byte_for_byte(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let (api, url) = (server.api(), receiver.url("/in"));
    let (_, secret) = api.verified_subscription("order.created", &url).await;

    let payload = "{ \"b\": 1, \"a\" :1.0e400,\"a\":\"\\u0000\\ud800\", \"é\":[ ] }";
    let body = format!(r#"{{"event_type":"order.created","payload":{payload},"external_id":"order-1"}}"#);
    let headers = [("content-type", "application/json"), ("x-correlation-id", "trace-42")];
    let created = api.send("POST", "/v1/events", &headers, body.as_bytes()).await.expect(201);
    assert_eq!(created["correlation_id"], "trace-42");
    assert_eq!(created["duplicate"], false);

    let arrived = receiver.wait_for("/in", 1, PATIENCE).await.remove(0);
    assert_eq!(arrived.method, "POST");
    assert_eq!(arrived.text(), payload);
    assert!(signed_by(&arrived, &secret));
    let expected_id = format!("evt_{}", created["id"]);
    for (name, value) in [
        ("content-type", "application/json"),
        ("user-agent", concat!("hooksaga/", env!("CARGO_PKG_VERSION"))),
        ("webhook-id", &expected_id),
        ("hooksaga-event-type", "order.created"),
        ("hooksaga-correlation-id", "trace-42"),
        ("hooksaga-attempt", "1"),
    ] {
        assert_eq!(arrived.header(name), Some(value), "{name}");
    }

    let id = created["id"].as_i64().unwrap();
    let saga = api.delivery_with_status(id, "Completed").await;
    assert_eq!(
        (&saga["attempt_count"], &saga["generation"], &saga["held"]),
        (&json!(1), &json!(0), &json!(false))
    );
    assert_eq!(saga["attempts"][0]["response_status"], 200);
    let stored = api.get(&format!("/v1/events/{id}")).await;
    assert!(stored.text().contains(payload), "the payload is shown as it came: {}", stored.text());
    assert_eq!(server.terminate().await, Some(0));
}

async fn an_event_sent_twice_is_stored_and_delivered_once(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;

    let event = json!({"event_type": "t", "payload": {"n": 1}, "external_id": "once"});
    let first = api.post("/v1/events", &event).await.expect(201);
    let again = api.post("/v1/events", &event).await.expect(200);
    assert_eq!((&again["id"], &again["duplicate"]), (&first["id"], &json!(true)));
    assert_eq!(again["correlation_id"], first["correlation_id"]);
    let other = json!({"event_type": "t", "payload": {"n": 2}, "external_id": "once"});
    api.post("/v1/events", &other).await.expect(409);

    // A marker behind it: once that has arrived, a second delivery of the first would have, too.
    api.delivery_with_status(first["id"].as_i64().unwrap(), "Completed").await;
    let marker = api.event("t", &json!("marker")).await;
    api.delivery_with_status(marker, "Completed").await;
    assert_eq!(receiver.deliveries("/in").len(), 2);
}

async fn an_event_is_delivered_to_every_matching_subscription_and_no_other(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    for path in ["/a", "/b", "/c"] {
        api.verified_subscription("order.paid", &receiver.url(path)).await;
    }
    api.verified_subscription("Order.paid", &receiver.url("/other-case")).await;
    let inactive = json!({"event_type": "order.paid", "callback_url": receiver.url("/off"), "active": false});
    api.post("/v1/subscriptions", &inactive).await.expect(201);
    receiver.answer_challenge("/unverified", [Behaviour::Status(500)]);
    let unverified = json!({"event_type": "order.paid", "callback_url": receiver.url("/unverified")});
    api.post("/v1/subscriptions", &unverified).await.expect(201);

    let id = api.event("order.paid", &json!(1)).await;
    let deliveries = api.deliveries(id).await;
    assert_eq!(deliveries.len(), 3);
    for path in ["/a", "/b", "/c"] {
        receiver.wait_for(path, 1, PATIENCE).await;
    }
    for path in ["/other-case", "/off", "/unverified"] {
        assert!(receiver.deliveries(path).is_empty(), "{path}");
    }
}

async fn an_event_posted_right_after_verification_is_delivered(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    for round in 0..5 {
        let (kind, path) = (format!("t{round}"), format!("/{round}"));
        api.verified_subscription(&kind, &receiver.url(&path)).await;
        api.event(&kind, &json!(round)).await;
        receiver.wait_for(&path, 1, PATIENCE).await;
    }
}

async fn connections_are_reused(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    for number in 0..20 {
        let id = api.event("t", &json!(number)).await;
        api.delivery_with_status(id, "Completed").await;
    }
    assert!(receiver.connections() <= 3, "{} connections for 20 deliveries", receiver.connections());
}

async fn the_log_tells_the_story_of_one_delivery(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Status(500), Behaviour::Status(200)]);
    let headers = [("content-type", "application/json"), ("x-correlation-id", "story-7")];
    let created =
        api.send("POST", "/v1/events", &headers, br#"{"event_type":"t","payload":1}"#).await.expect(201);
    let saga = api.delivery_with_status(created["id"].as_i64().unwrap(), "Completed").await;

    let story = || server.log().into_iter().filter(|record| record["correlation_id"] == "story-7");
    // The log is written a little behind.
    let expected = [("ingest", 1), ("router", 1), ("schedule", 2), ("worker", 2), ("apply", 2)];
    eventually("every stage has logged, for the failed attempt and the good one", || async {
        let logged = |stage| story().filter(|record| record["stage"] == stage).count();
        expected.iter().all(|(stage, records)| logged(*stage) >= *records).then_some(())
    })
    .await;
    for record in story() {
        assert!(record["delivery_status"].is_string(), "{record}");
        if !record["saga_id"].is_null() {
            assert_eq!(record["saga_id"], saga["saga_id"], "{record}");
        }
    }
    assert!(story().any(|record| record["job_id"] == saga["attempts"][0]["job_id"]));
}

async fn a_rotated_secret_signs_beside_the_old_one(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (id, old) = api.verified_subscription("t", &receiver.url("/in")).await;
    let rotated = api.post(&format!("/v1/subscriptions/{id}/rotate-secret"), &json!({})).await.expect(200);
    let new = rotated["secret"].as_str().unwrap();
    api.event("t", &json!(1)).await;
    let arrived = receiver.wait_for("/in", 1, PATIENCE).await.remove(0);
    assert!(signed_by(&arrived, &old) && signed_by(&arrived, new));
    assert_eq!(arrived.header("webhook-signature").unwrap().split(' ').count(), 2);
}

async fn metrics_count_every_stage(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (subscription, _) = api.verified_subscription("t", &receiver.url("/in")).await;
    let id = api.event("t", &json!(1)).await;
    api.delivery_with_status(id, "Completed").await;
    let metrics = server.api_with(None).get("/metrics").await;
    assert_eq!(metrics.status, 200);
    for name in [
        "hooksaga_events_ingested_total",
        "hooksaga_events_routed_total",
        "hooksaga_jobs_scheduled_total",
        "hooksaga_attempts_total",
        "hooksaga_queue_depth",
        "hooksaga_oldest_due_seconds",
    ] {
        assert!(metrics.text().contains(name), "{name} is missing:\n{}", metrics.text());
    }
    let expected = json!([
        {"subscription_id": subscription, "delivered": 1, "failed": 0, "dead_lettered": 0}
    ]);
    eventually("the statistics count it as delivered", || async {
        let stats = api.get("/v1/stats").await.expect(200);
        let minutes = stats["per_minute"].as_array().unwrap();
        let delivered: Vec<_> = minutes.iter().map(|minute| &minute["delivered"]).collect();
        (stats["per_subscription"] == expected && delivered == [&json!(1)]).then_some(())
    })
    .await;
}
