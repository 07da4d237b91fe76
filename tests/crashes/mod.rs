//! Processes that die, and processes that are asked to go.

mod history;
mod janitor;

use crate::support::*;

on_every_back_end! {
    a_server_killed_under_load_loses_nothing,
    a_server_asked_to_stop_finishes_what_it_started,
}

async fn a_server_killed_under_load_loses_nothing(installation: Installation) {
    let installation = installation
        .with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "500ms")
        .with("HOOKSAGA_WORKER_LEASE_DURATION", "1s");
    let receiver = Receiver::start().await;
    let mut server = installation.serve().await;
    server.api().verified_subscription("t", &receiver.url("/in")).await;
    let mut accepted = Vec::new();
    for round in 0..3 {
        let events: Vec<_> = (0..100).map(|n| json!({"event_type": "t", "payload": [round, n]})).collect();
        let answer = server.api().post("/v1/events/batch", &json!({"events": events})).await.expect(200);
        accepted
            .extend(answer["results"].as_array().unwrap().iter().map(|event| event["id"].as_i64().unwrap()));
        receiver.wait_for("/in", round * 100 + 1, PATIENCE).await;
        server.kill().await;
        server = installation.serve().await;
    }
    let api = server.api();
    for id in &accepted {
        api.delivery_with_status(*id, "Completed").await;
    }
    let arrived = receiver.deliveries("/in");
    for id in accepted {
        let expected = format!("evt_{id}");
        assert!(arrived.iter().any(|arrival| arrival.header("webhook-id") == Some(&expected)), "{expected}");
    }
}

async fn a_server_asked_to_stop_finishes_what_it_started(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Slow(Duration::from_secs(1), 200)]);
    let id = api.event("t", &json!(1)).await;
    receiver.wait_for("/in", 1, PATIENCE).await;
    assert_eq!(server.terminate().await, Some(0));

    let server = installation.serve().await;
    let saga = server.api().delivery_with_status(id, "Completed").await;
    assert_eq!(saga["attempts"][0]["lease_resets"], 0, "the attempt was finished, not lost: {saga}");
    assert_eq!(receiver.deliveries("/in").len(), 1);
}
