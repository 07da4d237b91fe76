//! What the command line does about endpoints: headers, limits, test events, trust, deletion, and what one has missed.

use crate::{
    commands::{at, fails, installed, json, ok},
    support::*,
};

/// The commands in a text, as they are to be typed.
fn advised(text: &str) -> Vec<Vec<&str>> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|command| command.strip_prefix("hooksaga "))
        .map(|line| line.split(' ').collect())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_is_given_headers_and_a_limit_tested_and_deleted() {
    let (person, server) = installed().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("/in");
    let options = ["--header", "Authorization: Bearer hush", "--header", "x-shop: a b", "--rate-limit", "50"];
    let added =
        ok(&person, &[&["subscriptions", "add", "rare", &url, "--wait"], &options[..]].concat()).await;
    assert!(added.contains("gets deliveries"), "{added}");
    let shown = ok(&person, &["subscriptions", "show", "1"]).await;
    for part in ["authorization, x-shop", "attempts per second  50"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!added.contains("hush") && !shown.contains("hush"), "{added}{shown}");

    let tested = ok(&person, &["subscriptions", "test", "1"]).await;
    let show = advised(&tested).remove(0);
    assert_eq!(show[..2], ["deliveries", "show"], "{tested}");
    server.api().saga_with_status(show[2].parse().unwrap(), "Completed").await;
    assert!(ok(&person, &show).await.contains("The endpoint took it"));
    for arrived in [receiver.challenges("/in").remove(0), receiver.deliveries("/in").remove(0)] {
        assert_eq!(arrived.header("authorization"), Some("Bearer hush"));
        assert_eq!(arrived.header("x-shop"), Some("a b"));
    }

    let deleted = ok(&person, &["subscriptions", "delete", "1"]).await;
    assert!(deleted.starts_with("subscription 1 is deleted"), "{deleted}");
    let again = fails(&person, &["subscriptions", "delete", "1"]).await;
    assert!(again.contains("404"), "{again}");
    assert!(fails(&person, &["subscriptions", "test", "1"]).await.contains("404"));
    assert_eq!(json(&person, &["subscriptions", "list"]).await["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_cannot_return_a_challenge_is_trusted_where_the_server_allows_it() {
    let receiver = Receiver::start().await;
    receiver.answer_challenge("/in", [Behaviour::Status(404)]);
    let url = receiver.url("/in");
    for allowed in [false, true] {
        let installation = Installation::sqlite()
            .with("HOOKSAGA_CALLBACKS_ALLOW_TRUSTED", if allowed { "true" } else { "false" });
        let server = installation.serve().await;
        let person = at(&server);
        ok(&person, &["subscriptions", "add", "t", &url]).await;
        let vouch = ["subscriptions", "verify", "1", "--trusted", "--wait"];
        if !allowed {
            let refused = fails(&person, &vouch).await;
            assert!(refused.contains("set callbacks.allow_trusted = true"), "{refused}");
            assert_eq!(json(&person, &["subscriptions", "show", "1"]).await["verified"], false);
            continue;
        }
        let vouched = ok(&person, &vouch).await;
        assert!(vouched.contains(&format!("{url} is about to be trusted without a challenge")), "{vouched}");
        assert!(vouched.contains(&format!("verified: {url} gets deliveries")), "{vouched}");
        let shown = ok(&person, &["subscriptions", "show", "1"]).await;
        assert!(shown.contains("vouched for by root"), "{shown}");
        ok(&person, &["send", "t", "{}", "--watch"]).await;
        assert_eq!(receiver.deliveries("/in").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_nobody_took_arrives_once_what_is_advised_is_done() {
    let (person, server) = installed().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("/in");
    // Nobody was there. With an external id, to send it again would do nothing.
    let send = ["send", "t", "1", "--external-id", "order-1", "--watch"];
    let nobody = fails(&person, &send).await;
    for line in advised(&nobody) {
        let filled = line.into_iter().map(|word| match word {
            "URL" => url.as_str(),
            "ID" => "1",
            word => word,
        });
        ok(&person, &filled.collect::<Vec<_>>()).await;
    }
    receiver.wait_for("/in", 1, PATIENCE).await;
    ok(&person, &send).await;

    ok(&person, &["subscriptions", "pause", "1"]).await;
    let nobody = fails(&person, &["send", "t", "2", "--watch"]).await;
    assert!(nobody.contains("(of this type: 1 paused): subscription 1 is paused (`"), "{nobody}");
    for line in advised(&nobody) {
        ok(&person, &line).await;
    }
    receiver.wait_for("/in", 2, PATIENCE).await;

    receiver.answer("/in", [Behaviour::Status(410), Behaviour::Status(200)]);
    fails(&person, &["send", "t", "3", "--watch"]).await;
    eventually("it is disabled", || async {
        (server.api().subscription(1).await["active"] == false).then_some(())
    })
    .await;
    let verified = ok(&person, &["subscriptions", "verify", "1", "--wait"]).await;
    assert!(verified.contains("verified, but disabled because its endpoint returned 410 Gone"), "{verified}");
    let nobody = fails(&person, &["send", "t", "4", "--watch"]).await;
    let why =
        "(of this type: 1 disabled): subscription 1 was disabled because its endpoint returned 410 Gone (`";
    assert!(nobody.contains(why), "{nobody}");
    for line in advised(&nobody) {
        ok(&person, &line).await;
    }
    receiver.wait_for("/in", 4, PATIENCE).await;
    let payloads: Vec<_> =
        receiver.deliveries("/in").iter().map(|arrived| arrived.text().to_owned()).collect();
    assert_eq!(payloads, ["1", "2", "3", "4"], "each once, but for the one that was refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_shows_whom_it_missed_beside_those_that_got_it() {
    let (person, server) = installed().await;
    let receiver = Receiver::start().await;
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    let (paused, _) = api.verified_subscription("t", &receiver.url("/paused")).await;
    ok(&person, &["subscriptions", "pause", &paused.to_string()]).await;
    let event = api.event("t", &json!(1)).await;
    api.delivery_with_status(event, "Completed").await;
    let shown = ok(&person, &["events", "show", &event.to_string()]).await;
    let (_, deliveries) = shown.split_once("\nDeliveries\n").unwrap();
    assert!(deliveries.contains("Completed"), "{shown}");
    assert!(deliveries.ends_with("did not get it when it was looked up: 1 paused.\n"), "{shown}");
    ok(&person, &["subscriptions", "resume", &paused.to_string()]).await;
    ok(&person, &["send", "t", "2", "--watch"]).await;
    let last = api.get("/v1/events?limit=1").await.expect(200)["items"][0]["id"].clone();
    assert!(!ok(&person, &["events", "show", &last.to_string()]).await.contains("did not get it"));
}
