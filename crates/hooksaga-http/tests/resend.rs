//! `POST /v1/deliveries/{saga_id}/resend`.

use crate::support::TestApi;
use hooksaga_saga::Outcome;
use hooksaga_store::Stage;
use serde_json::json;

/// A delivery of a new event to a new subscription; its path, and the subscription's.
async fn pending(api: &TestApi) -> (String, String) {
    let subscription = api.verified_subscription("t", "hook").await;
    api.event("t", &json!(1)).await;
    api.route().await;
    let page = api.get("/v1/deliveries").await.expect(200);
    (format!("/v1/deliveries/{}", page["items"][0]["saga_id"]), format!("/v1/subscriptions/{subscription}"))
}

#[tokio::test]
async fn a_delivery_that_has_ended_is_sent_again_once() {
    let api = TestApi::new().await;
    let (delivery, _) = pending(&api).await;
    let path = format!("{delivery}/resend");
    let open = api.post_nothing(&path).await.expect(409);
    assert_eq!(open["type"], "urn:hooksaga:problem:still-open");
    api.attempt_all(&Outcome::Delivered).await;
    let before = api.get(&delivery).await.expect(200);
    assert_eq!(before["status"], "Completed");
    while api.was_woken(Stage::Schedule).await {}

    let response = api.post_nothing(&path).await;
    let resent = response.expect(201);
    assert_eq!((&resent["generation"], resent.as_object().unwrap().len()), (&json!(1), 2));
    assert_eq!(response.header("location"), format!("/v1/deliveries/{}", resent["saga_id"]));
    assert!(api.was_woken(Stage::Schedule).await);
    assert_eq!(api.post_nothing(&path).await.expect(200), resent, "twice is once");
    assert_eq!(api.post(&path, &json!({})).await.expect(200), resent);
    assert_eq!(api.get(&delivery).await.expect(200), before, "the old one is not touched");
    let next = api.get(response.header("location")).await.expect(200);
    assert_eq!((&next["status"], &next["generation"]), (&json!("Pending"), &json!(1)));

    // And so on: what was sent again can be sent again.
    api.attempt_all(&Outcome::Delivered).await;
    let third = api.post_nothing(&format!("{}/resend", response.header("location"))).await.expect(201);
    assert_eq!(third["generation"], 2);
    assert_eq!(api.post_nothing(&path).await.expect(200), resent, "not the latest");
}

#[tokio::test]
async fn a_dead_delivery_and_its_letter_lead_to_the_same_one() {
    let api = TestApi::new().await;
    api.verified_subscription("t", "hook").await;
    for by_letter_first in [true, false] {
        let letter = api.dead_letter("t", &json!(1)).await;
        let saga = &api.get(&format!("/v1/dead-letters/{letter}")).await.expect(200)["saga_id"];
        let mut paths =
            [format!("/v1/dead-letters/{letter}/requeue"), format!("/v1/deliveries/{saga}/resend")];
        if !by_letter_first {
            paths.reverse();
        }
        let first = api.post_nothing(&paths[0]).await.expect(201);
        assert_eq!(api.post_nothing(&paths[1]).await.expect(200), first);
        let shown = api.get(&format!("/v1/dead-letters/{letter}")).await.expect(200);
        assert_eq!(shown["requeued_saga_id"], first["saga_id"]);
        api.attempt_all(&Outcome::Delivered).await;
    }
}

#[tokio::test]
async fn a_resend_needs_a_deliverable_subscription_and_a_delivery() {
    let api = TestApi::new().await;
    let (delivery, subscription) = pending(&api).await;
    let path = format!("{delivery}/resend");
    api.attempt_all(&Outcome::Delivered).await;
    api.patch(&subscription, &json!({"active": false})).await.expect(200);
    let problem = api.post_nothing(&path).await.expect(409);
    assert_eq!(problem["type"], "urn:hooksaga:problem:not-deliverable");
    let moved = json!({"active": true, "callback_url": "https://example.com/new"});
    api.patch(&subscription, &moved).await.expect(200);
    api.post_nothing(&path).await.expect(409);
    api.verify_all().await;
    api.post_nothing(&path).await.expect(201);
    api.patch(&subscription, &json!({"active": false})).await.expect(200);
    api.post_nothing(&path).await.expect(200);

    api.post_nothing("/v1/deliveries/999/resend").await.expect(404);
    api.post_nothing("/v1/deliveries/abc/resend").await.expect(400);
    api.post(&path, &json!({"force": true})).await.expect(422);
    api.post_nothing(&format!("{path}?force=true")).await.expect(422);
}
