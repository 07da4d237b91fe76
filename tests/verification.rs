//! The verification handshake, and endpoints that fail it.

use crate::support::*;

on_every_back_end! {
    the_challenge_is_signed_and_named,
    the_challenge_as_plain_text_is_enough,
    endpoints_that_do_not_prove_themselves_stay_unverified,
    verification_can_be_asked_for_again,
    a_failed_reverification_does_not_unverify,
}

async fn create(api: &Api, url: &str) -> Value {
    api.post("/v1/subscriptions", &json!({"event_type": "t", "callback_url": url})).await.expect(201)
}

async fn checked(api: &Api, id: &Value) -> Value {
    eventually("a check has ended", || async {
        let subscription = api.subscription(id.as_i64().unwrap()).await;
        (!subscription["verification"]["checked_at"].is_null()).then_some(subscription)
    })
    .await
}

async fn the_challenge_is_signed_and_named(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let created = create(&api, &receiver.url("/in")).await;
    assert_eq!(
        (&created["verified"], &created["verification"]["status"]),
        (&json!(false), &json!("pending"))
    );
    let subscription = checked(&api, &created["id"]).await;
    assert_eq!(
        (&subscription["verified"], &subscription["verification"]["status"]),
        (&json!(true), &json!("verified"))
    );
    assert!(subscription["secret"].is_null(), "the secret is shown once");

    let challenge = receiver.challenges("/in").remove(0);
    assert!(signed_by(&challenge, created["secret"].as_str().unwrap()));
    assert_eq!(challenge.header("webhook-id").unwrap(), format!("ver_{}_1", created["id"]));
    let body: Value = serde_json::from_slice(&challenge.body).unwrap();
    assert_eq!((&body["type"], &body["subscription_id"]), (&json!("hooksaga.verification"), &created["id"]));
    assert!(body["challenge"].as_str().unwrap().len() >= 16);
}

async fn the_challenge_as_plain_text_is_enough(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    receiver.answer_challenge("/plain", [Behaviour::PlainChallenge]);
    let url = receiver.url("/plain");
    let created = create(&server.api(), &url).await;
    assert_eq!(checked(&server.api(), &created["id"]).await["verified"], true);
}

async fn endpoints_that_do_not_prove_themselves_stay_unverified(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let wrong = r#"{"challenge":"something else"}"#.to_owned();
    let cases = [
        ("/refused", Behaviour::Status(403), "HTTP_403"),
        ("/wrong", Behaviour::Body(200, wrong), "CHALLENGE_MISMATCH"),
        ("/echo", Behaviour::Echo, "CHALLENGE_MISMATCH"),
        ("/empty", Behaviour::Body(200, String::new()), "CHALLENGE_MISMATCH"),
        ("/redirect", Behaviour::Redirect(receiver.url("/good")), "REDIRECT"),
        ("/garbage", Behaviour::Garbage, "RESPONSE_INVALID"),
        ("/hang", Behaviour::Hang, "TIMEOUT"),
    ];
    let mut ids = Vec::new();
    for (path, behaviour, _) in cases.clone() {
        receiver.answer_challenge(path, [behaviour]);
        ids.push(create(&api, &receiver.url(path)).await["id"].clone());
    }
    for (id, (path, _, error)) in ids.iter().zip(cases) {
        let subscription = checked(&api, id).await;
        assert_eq!(subscription["verified"], false, "{path}");
        assert_eq!(subscription["verification"]["last_error"], error, "{path}");
    }
    assert!(receiver.challenges("/good").is_empty(), "no redirect is followed");
}

async fn verification_can_be_asked_for_again(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    receiver.answer_challenge("/in", [Behaviour::Status(500), Behaviour::AnswerChallenge]);
    let id = create(&api, &receiver.url("/in")).await["id"].clone();
    assert_eq!(checked(&api, &id).await["verification"]["last_error"], "HTTP_500");
    let asked = api.post(&format!("/v1/subscriptions/{id}/verify"), &json!({})).await;
    assert_eq!(asked.status, 202, "{}", asked.text());
    eventually("verified", || async {
        api.subscription(id.as_i64().unwrap()).await["verified"].as_bool().unwrap().then_some(())
    })
    .await;
}

async fn a_failed_reverification_does_not_unverify(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (id, _) = api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer_challenge("/in", [Behaviour::Status(500)]);
    let asked = api.post(&format!("/v1/subscriptions/{id}/verify"), &json!({})).await;
    assert_eq!(asked.status, 202);
    eventually("the second check has failed", || async {
        (api.subscription(id).await["verification"]["last_error"] == "HTTP_500").then_some(())
    })
    .await;
    assert_eq!(api.subscription(id).await["verified"], true);
    let event = api.event("t", &json!(1)).await;
    api.delivery_with_status(event, "Completed").await;
}
