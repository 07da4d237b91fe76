//! Callbacks that misbehave: each is one failed attempt with the right code, and harms nothing else.

use crate::support::*;

on_every_back_end! {
    every_misbehaviour_has_its_code,
    an_answer_counts_as_soon_as_its_headers_are_there,
    a_hanging_endpoint_does_not_hold_up_another,
}

async fn every_misbehaviour_has_its_code(installation: Installation) {
    let installation =
        installation.with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "1s").with("HOOKSAGA_RETRY_MAX_RETRY_LIMIT", "1");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let cases = [
        ("/status", Behaviour::Status(418), "HTTP_418", json!(418)),
        ("/gone", Behaviour::Status(410), "HTTP_410", json!(410)),
        ("/slow", Behaviour::Slow(Duration::from_secs(3), 200), "TIMEOUT", json!(null)),
        ("/hang", Behaviour::Hang, "TIMEOUT", json!(null)),
        ("/reset", Behaviour::Reset, "RESPONSE_INVALID", json!(null)),
        ("/close", Behaviour::Close, "RESPONSE_INVALID", json!(null)),
        ("/garbage", Behaviour::Garbage, "RESPONSE_INVALID", json!(null)),
        ("/redirect", Behaviour::Redirect(receiver.url("/elsewhere")), "REDIRECT", json!(302)),
        ("/drip", Behaviour::Drip(500), "HTTP_500", json!(500)),
        ("/endless", Behaviour::Endless(500), "HTTP_500", json!(500)),
    ];
    for (number, (path, ..)) in cases.iter().enumerate() {
        api.verified_subscription(&format!("t{number}"), &receiver.url(path)).await;
    }
    let mut events = Vec::new();
    for (number, (path, behaviour, ..)) in cases.iter().enumerate() {
        receiver.answer(path, [behaviour.clone()]);
        events.push(api.event(&format!("t{number}"), &json!(number)).await);
    }
    for (event, (path, _, code, status)) in events.into_iter().zip(cases) {
        let saga = api.delivery_with_status(event, "DeadLettered").await;
        assert_eq!(saga["final_error_code"], code, "{path}: {saga}");
        let attempt = &saga["attempts"][0];
        assert_eq!((&attempt["error_code"], &attempt["response_status"]), (&json!(code), &status), "{path}");
        let excerpt = attempt["response_excerpt"].as_str().unwrap_or_default();
        assert!(excerpt.len() <= 4096, "{path}");
        assert_eq!(receiver.deliveries(path).len(), 1, "{path}: one attempt per job");
    }
    assert!(receiver.deliveries("/elsewhere").is_empty());
}

async fn an_answer_counts_as_soon_as_its_headers_are_there(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    for (kind, path, behaviour) in
        [("drip", "/drip", Behaviour::Drip(200)), ("endless", "/endless", Behaviour::Endless(200))]
    {
        api.verified_subscription(kind, &receiver.url(path)).await;
        receiver.answer(path, [behaviour]);
        let event = api.event(kind, &json!(1)).await;
        let saga = api.delivery_with_status(event, "Completed").await;
        assert!(saga["attempts"][0]["duration_ms"].as_i64().unwrap() < 5000, "{saga}");
        assert_eq!(saga["attempts"][0]["response_status"], 200);
    }
}

async fn a_hanging_endpoint_does_not_hold_up_another(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("bad", &receiver.url("/bad")).await;
    api.verified_subscription("good", &receiver.url("/good")).await;
    receiver.answer("/bad", [Behaviour::Hang]);
    let events: Vec<_> = (0..1000).map(|n| json!({"event_type": "bad", "payload": n})).collect();
    api.post("/v1/events/batch", &json!({"events": events})).await.expect(200);
    receiver.wait_for("/bad", 1, PATIENCE).await;
    let started = std::time::Instant::now();
    api.event("good", &json!(1)).await;
    receiver.wait_for("/good", 1, PATIENCE).await;
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "it waited {:?} behind the others",
        started.elapsed()
    );
}
