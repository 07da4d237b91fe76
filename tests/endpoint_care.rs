//! Care for endpoints: deletion, request headers, trusted endpoints, test events.

use crate::support::*;

on_every_back_end! {
    the_open_deliveries_of_a_deleted_subscription_end_as_dead_letters,
    headers_arrive_with_challenges_and_deliveries,
    a_trusted_endpoint_gets_deliveries_without_a_challenge,
    a_test_event_arrives_and_nobody_else_gets_it,
}

async fn delete(api: &Api, id: i64) -> u16 {
    api.send("DELETE", &format!("/v1/subscriptions/{id}"), &[], b"").await.status
}

async fn the_open_deliveries_of_a_deleted_subscription_end_as_dead_letters(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (id, _) = api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Status(503)]);
    // One waits for its retry, which a deleted subscription ends when it is due.
    let failing = api.event("t", &json!(1)).await;
    receiver.wait_for("/in", 1, PATIENCE).await;
    let path = format!("/v1/subscriptions/{id}");
    api.patch(&path, &json!({"active": false})).await.expect(200);
    let seen = receiver.deliveries("/in").len();
    api.post(&format!("{path}/rotate-secret"), &json!({})).await.expect(200);
    assert_eq!(delete(&api, id).await, 204);
    assert_eq!(delete(&api, id).await, 404);
    for what in ["subscription verified", "signing secret rotated", "subscription deleted"] {
        let said = eventually("the log says so", || async { server.said(what).pop() }).await;
        assert_eq!(said["tenant"], "default", "{said}");
    }
    let ended = api.delivery_with_status(failing, "DeadLettered").await;
    assert_eq!(ended["final_error_code"], "SUBSCRIPTION_DELETED");
    let last = ended["attempts"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["error_code"], &last["started_at"]), (&json!("SUBSCRIPTION_DELETED"), &json!(null)));
    assert!(receiver.deliveries("/in").len() <= seen + 1, "at most what was in flight");
    assert_eq!(api.get(&path).await.status, 404);
    let letter = eventually("the letter is stored", || async {
        let letters = api.get("/v1/dead-letters").await.expect(200)["items"].clone();
        letters.get(0).cloned()
    })
    .await;
    api.post(&format!("/v1/dead-letters/{}/requeue", letter["id"]), &json!({})).await.expect(409);

    // Its place is free, and what comes next is delivered.
    let (again, _) = api.verified_subscription("t", &receiver.url("/in")).await;
    assert_ne!(again, id);
    receiver.answer("/in", [Behaviour::Status(204)]);
    let good = api.event("t", &json!(2)).await;
    api.delivery_with_status(good, "Completed").await;
}

async fn headers_arrive_with_challenges_and_deliveries(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let headers = json!({"Authorization": "Bearer hush", "X-Tenant": "a b"});
    let body = json!({"event_type": "t", "callback_url": receiver.url("/in"), "headers": headers});
    let created = api.post("/v1/subscriptions", &body).await.expect(201);
    assert_eq!(created["headers"], json!(["authorization", "x-tenant"]));
    let id = created["id"].as_i64().unwrap();
    eventually("it is verified", || async { (api.subscription(id).await["verified"] == true).then_some(()) })
        .await;
    let event = api.event("t", &json!(1)).await;
    api.delivery_with_status(event, "Completed").await;
    for arrived in [receiver.challenges("/in").remove(0), receiver.deliveries("/in").remove(0)] {
        assert_eq!(arrived.header("authorization"), Some("Bearer hush"));
        assert_eq!(arrived.header("x-tenant"), Some("a b"));
        assert!(signed_by(&arrived, created["secret"].as_str().unwrap()));
    }
    // Another port is another origin.
    let elsewhere = Receiver::start().await;
    let moved = api
        .patch(&format!("/v1/subscriptions/{id}"), &json!({"callback_url": elsewhere.url("/in")}))
        .await
        .expect(200);
    assert_eq!(moved["headers"], json!([]));
    eventually("it is verified", || async { (api.subscription(id).await["verified"] == true).then_some(()) })
        .await;
    let event = api.event("t", &json!(2)).await;
    api.delivery_with_status(event, "Completed").await;
    for arrived in [elsewhere.challenges("/in").remove(0), elsewhere.deliveries("/in").remove(0)] {
        assert_eq!(arrived.header("authorization"), None);
    }
    assert!(server.said("hush").is_empty(), "no line of the log shows a value");
}

async fn a_trusted_endpoint_gets_deliveries_without_a_challenge(installation: Installation) {
    let installation = installation.with("HOOKSAGA_CALLBACKS_ALLOW_TRUSTED", "true");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    receiver.answer_challenge("/in", [Behaviour::Status(404)]);
    let body = json!({"event_type": "t", "callback_url": receiver.url("/in")});
    let id = api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap();
    eventually("it was asked", || async { (!receiver.challenges("/in").is_empty()).then_some(()) }).await;
    // Otherwise the result of that check comes too late, and is dropped.
    eventually("the result is written", || async { server.said("not verified yet").pop() }).await;
    let asked = receiver.challenges("/in").len();
    api.post(&format!("/v1/subscriptions/{id}/verify"), &json!({"trusted": true})).await.expect(202);
    let now = eventually("it is trusted", || async {
        let now = api.subscription(id).await;
        (now["verified"] == true).then_some(now)
    })
    .await;
    for what in ["not verified yet", "marked as trusted"] {
        let said = eventually("the log says so", || async { server.said(what).pop() }).await;
        assert_eq!((&said["tenant"], &said["subscription_id"]), (&json!("default"), &json!(id)), "{said}");
    }
    assert_eq!(now["verification"]["trusted"]["by"], "root");
    assert_eq!(now["verification"]["status"], "verified");
    let event = api.event("t", &json!(1)).await;
    api.delivery_with_status(event, "Completed").await;
    assert_eq!(receiver.challenges("/in").len(), asked, "nobody asked it again");
}

async fn a_test_event_arrives_and_nobody_else_gets_it(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (id, secret) = api.verified_subscription("rare", &receiver.url("/mine")).await;
    api.verified_subscription("*", &receiver.url("/all")).await;
    let sent = api.post(&format!("/v1/subscriptions/{id}/test"), &json!({})).await.expect(201);
    let done = api.saga_with_status(sent["saga_id"].as_i64().unwrap(), "Completed").await;
    assert_eq!((&done["event_id"], &done["subscription_id"]), (&sent["event_id"], &json!(id)));
    let arrived = receiver.deliveries("/mine").remove(0);
    assert_eq!(arrived.header("hooksaga-event-type"), Some("hooksaga.test"));
    assert!(signed_by(&arrived, &secret));
    // A marker behind it: once that has arrived, the test event would have, too.
    let marker = api.event("other", &json!(1)).await;
    api.delivery_with_status(marker, "Completed").await;
    assert_eq!(receiver.deliveries("/all").len(), 1);
}
