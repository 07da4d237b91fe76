//! Pausing, resuming, and moving a subscription while deliveries are open.

use crate::support::*;

on_every_back_end! {
    a_paused_subscription_holds_its_deliveries_and_resumes_where_it_was,
    each_attempt_goes_to_the_current_url,
}

async fn a_paused_subscription_holds_its_deliveries_and_resumes_where_it_was(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (id, _) = api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Status(500)]);
    api.patch(&format!("/v1/subscriptions/{id}"), &json!({"max_retry_limit": 100})).await.expect(200);
    let event = api.event("t", &json!(1)).await;
    receiver.wait_for("/in", 2, PATIENCE).await;

    let path = format!("/v1/subscriptions/{id}");
    assert_eq!(api.patch(&path, &json!({"active": false})).await.expect(200)["active"], false);
    let saga_id = api.deliveries(event).await[0]["saga_id"].as_i64().unwrap();
    let held = eventually("the attempts stand still", || async {
        let before = api.get(&format!("/v1/deliveries/{saga_id}")).await.expect(200);
        let arrived = receiver.deliveries("/in").len();
        tokio::time::sleep(Duration::from_millis(500)).await; // more than the longest backoff of these tests
        (receiver.deliveries("/in").len() == arrived).then_some(before)
    })
    .await;
    assert_eq!(held["held"], true);
    eventually("the statistics count it as held", || async {
        (api.get("/v1/stats").await.expect(200)["held"] == 1).then_some(())
    })
    .await;
    let skipped = api.event("t", &json!("while paused")).await;
    assert!(api.deliveries(skipped).await.is_empty(), "a paused subscription gets no new sagas");

    receiver.answer("/in", [Behaviour::Status(200)]);
    api.patch(&path, &json!({"active": true})).await.expect(200);
    let saga = api.saga_with_status(saga_id, "Completed").await;
    assert_eq!(saga["held"], false);
    eventually("the statistics count nothing as held", || async {
        (api.get("/v1/stats").await.expect(200)["held"] == 0).then_some(())
    })
    .await;
    assert!(saga["attempt_count"].as_i64() >= held["attempt_count"].as_i64());
}

async fn each_attempt_goes_to_the_current_url(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (id, _) = api.verified_subscription("t", &receiver.url("/old")).await;
    receiver.answer("/old", [Behaviour::Status(500)]);
    api.patch(&format!("/v1/subscriptions/{id}"), &json!({"max_retry_limit": 100})).await.expect(200);
    let event = api.event("t", &json!(1)).await;
    receiver.wait_for("/old", 1, PATIENCE).await;

    let moved = json!({"callback_url": receiver.url("/new")});
    let answer = api.patch(&format!("/v1/subscriptions/{id}"), &moved).await.expect(200);
    assert_eq!((&answer["verified"], &answer["verification"]["status"]), (&json!(false), &json!("pending")));
    let saga = api.delivery_with_status(event, "Completed").await;
    assert_eq!(receiver.deliveries("/new").len(), 1, "{saga}");
    assert_eq!(receiver.challenges("/new").len(), 1);
}
