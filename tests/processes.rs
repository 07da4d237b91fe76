//! Several processes on one database.

use crate::support::*;

on_every_database_server! {
    every_component_in_a_process_of_its_own_delivers_at_once,
    two_whole_servers_share_the_work_and_deliver_each_event_once,
}

async fn every_component_in_a_process_of_its_own_delivers_at_once(installation: Installation) {
    let api_server = installation.serve_only("api").await;
    let mut others = Vec::new();
    for component in
        ["verifier", "router", "orchestrator", "worker", "cleaner", "deadletters", "caretaker", "janitor"]
    {
        others.push(installation.serve_only(component).await);
    }
    let (api, receiver) = (api_server.api(), Receiver::start().await);
    api.verified_subscription("t", &receiver.url("/in")).await;
    for number in 0..5 {
        let started = std::time::Instant::now();
        let id = api.event("t", &json!(number)).await;
        receiver.wait_for("/in", number + 1, PATIENCE).await;
        // Four hand-overs between processes: woken, not polled (the slowest poll is a second each).
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        api.delivery_with_status(id, "Completed").await;
    }
    receiver.answer("/in", [Behaviour::Status(500)]);
    let id = api.event("t", &json!("dies")).await;
    api.delivery_with_status(id, "DeadLettered").await;
    eventually("its letter", || async {
        (!api.get("/v1/dead-letters").await.expect(200)["items"].as_array().unwrap().is_empty()).then_some(())
    })
    .await;
    the_caretaker_disables_at_once(&api, &receiver).await;
    for server in &others {
        let probe = server.api_with(None);
        assert_eq!(probe.get("/healthz").await.status, 200);
        assert_eq!(probe.get("/readyz").await.status, 200);
        assert_eq!(probe.get("/metrics").await.status, 200);
        assert_eq!(probe.get("/v1/events").await.status, 404, "only api processes serve the API");
    }
    for server in others {
        assert_eq!(server.terminate().await, Some(0));
    }
}

/// From the worker by the orchestrator to the caretaker, and from there to the router.
async fn the_caretaker_disables_at_once(api: &Api, receiver: &Receiver) {
    let (id, _) = api.verified_subscription("gone", &receiver.url("/gone")).await;
    receiver.answer("/gone", [Behaviour::Status(410)]);
    let event = api.event("gone", &json!(1)).await;
    let delivery = api.delivery_with_status(event, "DeadLettered").await;
    let disabled = eventually("it is disabled", || async {
        let disabled = api.subscription(id).await["disabled"].clone();
        (!disabled.is_null()).then_some(disabled)
    })
    .await;
    assert_eq!(disabled["reason"], "GONE");
    let time = |text: &Value| text.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let took = time(&disabled["at"]).duration_since(time(&delivery["attempts"][0]["started_at"]));
    assert!(took < jiff::SignedDuration::from_secs(1), "woken, not polled: {took:?}");
    let told = "/v1/events?tenant=hooksaga&event_type=hooksaga.subscription.disabled";
    let told = eventually("operators are told", || async {
        let items = api.get(told).await.expect(200)["items"].as_array().unwrap().clone();
        (!items.is_empty()).then_some(items)
    })
    .await;
    assert_eq!(told.len(), 1, "{told:?}");
    let told = api.get(&format!("/v1/events/{}", told[0]["id"])).await.expect(200);
    assert_eq!((&told["payload"]["subscription_id"], &told["payload"]["at"]), (&json!(id), &disabled["at"]));
}

async fn two_whole_servers_share_the_work_and_deliver_each_event_once(installation: Installation) {
    let (first, second) = (installation.serve().await, installation.serve().await);
    let receiver = Receiver::start().await;
    first.api().verified_subscription("t", &receiver.url("/in")).await;
    let mut ids = Vec::new();
    for server in [&first, &second, &first, &second] {
        let events: Vec<_> = (0..200).map(|n| json!({"event_type": "t", "payload": n})).collect();
        let answer = server.api().post("/v1/events/batch", &json!({"events": events})).await.expect(200);
        ids.extend(answer["results"].as_array().unwrap().iter().map(|event| event["id"].as_i64().unwrap()));
    }
    for id in ids {
        second.api().delivery_with_status(id, "Completed").await;
    }
    assert_eq!(receiver.deliveries("/in").len(), 800, "nobody died, so at least once is exactly once");
}

#[tokio::test]
async fn an_embedded_server_runs_alone_and_whole() {
    let installation = Installation::sqlite();
    let refused = run(&installation, &["serve", "--dev", "--only", "api"]).await;
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.trim().lines().count() == 1 && said.contains("--only"), "{said}");

    let server = installation.serve().await;
    let second = run(&installation, &["serve", "--dev"]).await;
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    assert_eq!(server.api().get("/healthz").await.status, 200, "the first one is not disturbed");
    // Keys can be made beside it, and work at once.
    let made = run(&installation, &["keys", "create", "--name", "reader", "--scopes", "read"]).await;
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let output = String::from_utf8(made.stdout).unwrap();
    let key = output.split_whitespace().find(|word| word.starts_with("hsk_")).unwrap();
    assert_eq!(server.api_with(Some(key)).get("/v1/events").await.status, 200);
    assert_eq!(server.api_with(Some(key)).get("/v1/nothing").await.status, 404);
    let event = json!({"event_type": "t", "payload": 1});
    assert_eq!(server.api_with(Some(key)).post("/v1/events", &event).await.status, 403);
}
