//! `hooksaga listen`, the receiver for development, told to check and to fail.

use crate::{
    commands::{installed, ok},
    support::*,
};
use std::time::Instant;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Starts it with these options, on any port, as the endpoint of a subscription to `topic` that signs with [`SECRET`].
async fn listening(person: &Installation, server: &Server, topic: &str, options: &[&str]) -> Process {
    let listen = Process::start(person, &[&["listen", "--port", "0"], options].concat()).await;
    let said = listen.said("listening on ").await;
    let url = said.split("listening on ").nth(1).unwrap().trim();
    let subscription = json!({"event_type": topic, "callback_url": url, "secret": SECRET});
    let api = server.api();
    let id = api.post("/v1/subscriptions", &subscription).await.expect(201)["id"].as_i64().unwrap();
    eventually("it is verified", || async {
        api.subscription(id).await["verified"].as_bool().unwrap().then_some(())
    })
    .await;
    listen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_checks_signatures_and_fails_as_often_as_it_is_told() {
    let (person, server) = installed().await;
    let options = ["--secret", SECRET, "--fail-first", "1", "--status", "418", "--delay", "400ms"];
    let listen = listening(&person, &server, "t", &options).await;
    let begun = Instant::now();
    let watched = ok(&person, &["send", "t", "{}", "--watch"]).await;
    assert!(begun.elapsed() >= Duration::from_millis(800), "two responses came late: {:?}", begun.elapsed());
    assert!(watched.contains("attempt 1 of 3: HTTP_418: "), "{watched}");
    assert!(watched.contains("delivered to 1 endpoint"), "{watched}");
    let (code, lines) = listen.interrupt().await;
    assert_eq!(code, Some(0));
    let deliveries: Vec<&String> = lines.iter().filter(|line| line.contains("  attempt ")).collect();
    let [first, second] = deliveries[..] else { panic!("{lines:?}") };
    assert!(first.contains("-> 418") && second.contains("-> 200"), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "2 deliveries received");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_refuses_another_secret_and_returns_any_status() {
    let (person, server) = installed().await;
    let other = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    for (topic, options, error) in
        [("forged", ["--secret", other], "HTTP_401"), ("busy", ["--status", "503"], "HTTP_503")]
    {
        let listen = listening(&person, &server, topic, &options).await;
        let sent = run(&person, &["send", topic, "{}", "--watch"]).await;
        let said = String::from_utf8_lossy(&sent.stdout);
        assert_eq!(sent.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("attempt 1 of 3: {error}: ")), "{said}");
        let (_, lines) = listen.interrupt().await;
        let status = error.trim_start_matches("HTTP_");
        assert!(lines.iter().any(|line| line.contains(&format!("-> {status}"))), "{lines:?}");
    }
}
