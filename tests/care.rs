//! Care for endpoints: those that are gone or keep failing are disabled, and operators are told.

use crate::support::*;
use std::{collections::BTreeSet, sync::Arc, time::Instant};
use tokio::sync::Semaphore;

on_every_back_end! {
    an_endpoint_that_is_gone_is_disabled_within_a_second,
    an_endpoint_that_keeps_failing_is_disabled_and_operators_are_told,
    an_endpoint_that_throttles_receives_everything_with_few_refusals,
}

/// A subscription of the reserved tenant to everything that operators are told.
async fn operators(api: &Api, receiver: &Receiver) {
    let new = json!({
        "tenant": "hooksaga", "event_type": "hooksaga.*", "callback_url": receiver.url("/operators"),
    });
    let id = api.post("/v1/subscriptions", &new).await.expect(201)["id"].as_i64().unwrap();
    eventually("the operators' subscription is verified", || async {
        api.subscription(id).await["verified"].as_bool().unwrap().then_some(())
    })
    .await;
}

/// What operators were told about a subscription, in the order of arrival: type and payload.
fn told(receiver: &Receiver, id: i64) -> Vec<Value> {
    let arrived = receiver.deliveries("/operators");
    let payloads = arrived.iter().map(|arrival| serde_json::from_str(arrival.text()).unwrap());
    payloads.filter(|payload: &Value| payload["subscription_id"] == id).collect()
}

fn types(told: &[Value]) -> Vec<&str> {
    let mut types: Vec<_> = told.iter().map(|payload| payload["type"].as_str().unwrap()).collect();
    types.sort_unstable();
    types
}

fn time(text: &Value) -> jiff::Timestamp {
    text.as_str().unwrap().parse().unwrap()
}

async fn an_endpoint_that_is_gone_is_disabled_within_a_second(installation: Installation) {
    let installation = installation.with("HOOKSAGA_CALLBACKS_DISABLE_AFTER", "off");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    operators(&api, &receiver).await;
    let (id, _) = api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Status(410)]);
    let event = api.event("t", &json!(1)).await;
    let shown = eventually("it is disabled", || async {
        let shown = api.subscription(id).await;
        (shown["active"] == false).then_some(shown)
    })
    .await;
    assert_eq!(shown["disabled"]["reason"], "GONE");
    assert!(shown["disabled"]["at"].as_str().unwrap().ends_with('Z'));
    let saga = api.delivery_with_status(event, "DeadLettered").await;
    assert_eq!((&saga["attempt_count"], &saga["final_error_code"]), (&json!(1), &json!("HTTP_410")));
    // By the database's clock: how long the API takes to show it is another matter.
    let took = time(&shown["disabled"]["at"]).duration_since(time(&saga["attempts"][0]["started_at"]));
    assert!((jiff::SignedDuration::ZERO..jiff::SignedDuration::from_secs(1)).contains(&took), "{took:?}");
    eventually("the log says so", || async {
        (!server.said("subscription disabled").is_empty()).then_some(())
    })
    .await;
    eventually("operators are told", || async { (told(&receiver, id).len() == 2).then_some(()) }).await;
    let told = told(&receiver, id);
    assert_eq!(types(&told), ["hooksaga.subscription.disabled", "hooksaga.subscription.verified"]);
    let disabled = told.iter().find(|payload| payload["reason"] == "GONE").unwrap();
    let expected = json!({
        "type": "hooksaga.subscription.disabled", "at": shown["disabled"]["at"], "tenant": "default",
        "subscription_id": id, "callback_url": receiver.url("/in"), "reason": "GONE",
    });
    assert_eq!(disabled, &expected);

    // Nothing goes out until it is active again; then what waits does.
    api.event("t", &json!(2)).await;
    receiver.answer("/in", [Behaviour::Status(200)]);
    let active = api.patch(&format!("/v1/subscriptions/{id}"), &json!({"active": true})).await.expect(200);
    assert_eq!((&active["active"], &active["disabled"]), (&json!(true), &json!(null)));
    let event = api.event("t", &json!(3)).await;
    api.delivery_with_status(event, "Completed").await;
}

async fn an_endpoint_that_keeps_failing_is_disabled_and_operators_are_told(installation: Installation) {
    let installation = installation.with("HOOKSAGA_CALLBACKS_DISABLE_AFTER", "1s");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    operators(&api, &receiver).await;
    let (good, _) = api.verified_subscription("t", &receiver.url("/good")).await;
    let (id, _) = api.verified_subscription("t", &receiver.url("/bad")).await;
    receiver.answer("/bad", [Behaviour::Status(500)]);
    let began = Instant::now();
    let shown = eventually("it is disabled", || async {
        api.event("t", &json!(1)).await;
        let shown = api.subscription(id).await;
        (shown["active"] == false).then_some(shown)
    })
    .await;
    assert!(began.elapsed() >= Duration::from_secs(1), "not before all attempts have failed for that long");
    assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
    assert!(receiver.deliveries("/bad").len() >= 20);
    assert_eq!(shown["disabled"]["reason"], "FAILING");
    assert_eq!(api.subscription(good).await["active"], true);
    eventually("operators are told", || async { (told(&receiver, id).len() == 3).then_some(()) }).await;
    let told = told(&receiver, id);
    let all =
        ["hooksaga.subscription.disabled", "hooksaga.subscription.failing", "hooksaga.subscription.verified"];
    assert_eq!(types(&told), all);
    let events =
        api.get("/v1/events?tenant=hooksaga&event_type=hooksaga.subscription.disabled").await.expect(200);
    assert_eq!(events["items"].as_array().unwrap().len(), 1, "once");

    // Nobody else can speak in that name.
    let forged = json!({"event_type": "hooksaga.subscription.disabled", "payload": {}});
    api.post("/v1/events", &forged).await.expect(422);
    api.post("/v1/events", &json!({"event_type": "t", "tenant": "hooksaga", "payload": {}}))
        .await
        .expect(422);
}

/// 5 at a time, 50 ms each, the rest refused.
async fn an_endpoint_that_throttles_receives_everything_with_few_refusals(installation: Installation) {
    const EVENTS: usize = 300;
    let installation = installation
        .with("HOOKSAGA_RETRY_BASE_DELAY", "1s")
        .with("HOOKSAGA_RETRY_MAX_DELAY", "1h")
        .with("HOOKSAGA_RETRY_MAX_RETRY_LIMIT", "5");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    let places = Arc::new(Semaphore::new(5));
    receiver.answer("/in", [Behaviour::Throttle(places, Duration::from_millis(50))]);
    let events: Vec<Value> = (0..EVENTS).map(|n| json!({"event_type": "t", "payload": n})).collect();
    api.post("/v1/events/batch", &json!({ "events": events })).await.expect(200);
    let distinct = || {
        let arrived = receiver.deliveries("/in");
        arrived.iter().map(|arrival| arrival.header("webhook-id")).collect::<BTreeSet<_>>().len()
    };
    eventually("everything has arrived", || async { (distinct() == EVENTS).then_some(()) }).await;
    eventually("everything has ended", || async {
        let open =
            ["Pending", "InProgress", "PendingRetry"].map(|status| format!("status={status}")).join("&");
        let open = api.get(&format!("/v1/deliveries?limit=1&{open}")).await.expect(200);
        (open["items"] == json!([])).then_some(())
    })
    .await;
    assert_eq!(api.get("/v1/deliveries?limit=1&status=DeadLettered").await.expect(200)["items"], json!([]));
    let arrived = receiver.deliveries("/in");
    let refused = arrived.len() - EVENTS;
    assert!(refused * 10 <= arrived.len(), "{refused} of {} requests were refused", arrived.len());
}
