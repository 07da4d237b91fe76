//! Failures: backing off, giving up, requeueing.

use crate::support::*;

on_every_back_end! {
    a_failing_delivery_is_retried_until_it_succeeds,
    an_endpoint_says_when_it_is_tried_again,
    retries_end_as_a_dead_letter_and_a_requeue_delivers_it,
    many_dead_letters_are_requeued_by_filter,
    a_subscription_has_its_own_limit,
    a_job_whose_lease_ran_out_is_delivered_by_another,
}

async fn a_failing_delivery_is_retried_until_it_succeeds(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Status(503), Behaviour::Status(404), Behaviour::Status(204)]);
    let id = api.event("t", &json!(1)).await;

    let saga = api.delivery_with_status(id, "Completed").await;
    assert_eq!(saga["attempt_count"], 3);
    assert_eq!(saga["final_error_code"], "HTTP_404", "the last failure stays visible");
    let codes: Vec<_> =
        saga["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["error_code"]).collect();
    assert_eq!(codes, [&json!("HTTP_503"), &json!("HTTP_404"), &json!(null)]);
    assert!(saga["attempts"][0]["response_excerpt"].as_str().unwrap().contains("503"));
    let arrived = receiver.deliveries("/in");
    let attempts: Vec<_> =
        arrived.iter().map(|arrival| arrival.header("hooksaga-attempt").unwrap()).collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    let ids: Vec<_> = arrived.iter().map(|arrival| arrival.header("webhook-id").unwrap()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "the same on every attempt");
    // base_delay is 50 ms in these tests: at least 50 ms and then at least 100 ms lie between them.
    assert!(arrived[1].at - arrived[0].at >= Duration::from_millis(50));
    assert!(arrived[2].at - arrived[1].at >= Duration::from_millis(100));
}

/// Without `Retry-After`, the second attempt would be 50 ms after the first.
async fn an_endpoint_says_when_it_is_tried_again(installation: Installation) {
    let installation = installation.with("HOOKSAGA_RETRY_MAX_DELAY", "1h");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::RetryAfter(429, "2".to_owned()), Behaviour::Status(200)]);
    let id = api.event("t", &json!(1)).await;
    let saga = api.delivery_with_status(id, "Completed").await;
    assert_eq!((&saga["attempt_count"], &saga["final_error_code"]), (&json!(2), &json!("HTTP_429")));
    let arrived = receiver.deliveries("/in");
    assert_eq!(arrived.len(), 2);
    let waited = arrived[1].at - arrived[0].at;
    assert!(waited >= Duration::from_secs(2), "{waited:?}");
    assert!(waited < Duration::from_secs(10), "2 s, and what a busy machine needs: {waited:?}");
}

async fn retries_end_as_a_dead_letter_and_a_requeue_delivers_it(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (subscription, _) = api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Status(500)]);
    let id = api.event("t", &json!({"keep": "me"})).await;

    let dead = api.delivery_with_status(id, "DeadLettered").await;
    assert_eq!((&dead["attempt_count"], &dead["final_error_code"]), (&json!(3), &json!("HTTP_500")));
    assert_eq!(receiver.deliveries("/in").len(), 3);
    let letter = eventually("the letter is written", || async {
        api.get("/v1/dead-letters").await.expect(200)["items"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!((&letter["saga_id"], &letter["requeued_saga_id"]), (&dead["saga_id"], &json!(null)));
    let path = format!("/v1/dead-letters/{}", letter["id"]);
    assert_eq!(api.get(&path).await.expect(200)["payload"], json!({"keep": "me"}));

    // Not while the subscription is paused.
    api.patch(&format!("/v1/subscriptions/{subscription}"), &json!({"active": false})).await.expect(200);
    api.post(&format!("{path}/requeue"), &json!({})).await.expect(409);
    api.patch(&format!("/v1/subscriptions/{subscription}"), &json!({"active": true})).await.expect(200);

    receiver.answer("/in", [Behaviour::Status(200)]);
    let requeued = api.post(&format!("{path}/requeue"), &json!({})).await.expect(201);
    assert_eq!(requeued["generation"], 1);
    let again = api.post(&format!("{path}/requeue"), &json!({})).await.expect(200);
    assert_eq!(again["saga_id"], requeued["saga_id"]);
    let saga = api.saga_with_status(requeued["saga_id"].as_i64().unwrap(), "Completed").await;
    assert_eq!(saga["attempt_count"], 1);
    assert_eq!(receiver.deliveries("/in").len(), 4);
    assert_eq!(api.get(&path).await.expect(200)["requeued_saga_id"], requeued["saga_id"]);
    let unchanged = api.get(&format!("/v1/deliveries/{}", dead["saga_id"])).await.expect(200);
    assert_eq!(unchanged, dead, "the dead saga and its jobs never change");
}

async fn many_dead_letters_are_requeued_by_filter(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (first, _) = api.verified_subscription("t", &receiver.url("/a")).await;
    let (second, _) = api.verified_subscription("t", &receiver.url("/b")).await;
    for path in ["/a", "/b"] {
        receiver.answer(path, [Behaviour::Status(500)]);
    }
    for number in 0..5 {
        api.event("t", &json!(number)).await;
    }
    eventually("ten letters", || async {
        let letters = api.get("/v1/dead-letters?limit=500").await.expect(200);
        (letters["items"].as_array().unwrap().len() == 10).then_some(())
    })
    .await;
    receiver.answer("/a", [Behaviour::Status(200)]);
    receiver.answer("/b", [Behaviour::Status(200)]);

    api.post("/v1/dead-letters/requeue", &json!({})).await.expect(422);
    let dry = api.post("/v1/dead-letters/requeue", &json!({"filter": {}, "dry_run": true})).await.expect(200);
    assert_eq!(dry["matched"], 10);
    let one = json!({"filter": {"subscription_id": first}, "limit": 3});
    let answer = api.post("/v1/dead-letters/requeue", &one).await.expect(200);
    assert_eq!((&answer["requeued"], &answer["skipped"]), (&json!(3), &json!(0)));
    api.patch(&format!("/v1/subscriptions/{second}"), &json!({"active": false})).await.expect(200);
    let answer = api.post("/v1/dead-letters/requeue", &json!({"filter": {}})).await.expect(200);
    assert_eq!((&answer["requeued"], &answer["skipped"]), (&json!(2), &json!(5)));
    receiver.wait_for("/a", 3 * 5 + 5, PATIENCE).await;
    let left = api.get("/v1/dead-letters?requeued=false").await.expect(200);
    assert_eq!(left["items"].as_array().unwrap().len(), 5);
}

async fn a_subscription_has_its_own_limit(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (id, _) = api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Status(500)]);
    api.patch(&format!("/v1/subscriptions/{id}"), &json!({"max_retry_limit": 1})).await.expect(200);
    let event = api.event("t", &json!(1)).await;
    let saga = api.delivery_with_status(event, "DeadLettered").await;
    assert_eq!((&saga["attempt_count"], &saga["max_retry_limit"]), (&json!(1), &json!(1)));
    let cleared =
        api.patch(&format!("/v1/subscriptions/{id}"), &json!({"max_retry_limit": null})).await.expect(200);
    assert_eq!(cleared["max_retry_limit"], json!(null));
    let event = api.event("t", &json!(2)).await;
    assert_eq!(api.delivery_with_status(event, "DeadLettered").await["attempt_count"], 3);
}

async fn a_job_whose_lease_ran_out_is_delivered_by_another(installation: Installation) {
    let installation = installation
        .with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "500ms")
        .with("HOOKSAGA_WORKER_LEASE_DURATION", "1s");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Hang, Behaviour::Status(200)]);
    let id = api.event("t", &json!(1)).await;
    receiver.wait_for("/in", 1, PATIENCE).await;
    server.kill().await; // before it could write the result

    let server = installation.serve().await;
    let saga = server.api().delivery_with_status(id, "Completed").await;
    assert_eq!(saga["attempt_count"], 1, "the lost attempt is the same job, done again");
    assert_eq!(saga["attempts"][0]["lease_resets"], 1);
    assert_eq!(receiver.deliveries("/in").len(), 2);
}
