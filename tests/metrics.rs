//! `/metrics` and the first line of the log, as an operator's tools read them.

use crate::support::*;
use std::{
    io::Write,
    process::{Command, Stdio},
};

on_every_back_end! {
    metrics_are_clean_for_promtool,
}

async fn metrics_are_clean_for_promtool(installation: Installation) {
    let receiver = Receiver::start().await;
    let server = installation.serve().await;
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    api.post("/v1/events", &json!({"event_type": "t", "payload": 1})).await.expect(201);
    receiver.wait_for("/in", 1, PATIENCE).await;
    let text = eventually("the subscription is counted", || async {
        let text = api.get("/metrics").await.text().to_owned();
        text.contains("hooksaga_worker_slots 512\n").then_some(text)
    })
    .await;

    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs (Debian's package prometheus; `make tools` installs it)");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(checked.status.success() && said.trim().is_empty(), "{said}");

    let is_server = installation.database_url().is_some();
    assert_eq!(text.contains("hooksaga_database_connections{role=\"job_worker\"} 4\n"), is_server, "{text}");
    for series in
        ["hooksaga_subscriptions{state=\"", "hooksaga_dead_letters_open 0\n", "hooksaga_redrives_running 0\n"]
    {
        assert!(text.contains(series), "{series} in {text}");
    }
    let is_there = |metric: &str| {
        text.lines().any(|line| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with(['{', ' '])))
    };
    for file in ["deploy/prometheus/hooksaga.rules.yml", "deploy/grafana/hooksaga.json"] {
        let mut metrics = metrics_in(&crate::support::text(file));
        if !is_server {
            metrics.retain(|metric| !metric.starts_with("hooksaga_database_connections"));
        }
        assert!(metrics.len() >= 9, "{file}: {metrics:?}");
        for metric in metrics {
            assert!(is_there(&metric), "{metric}, which {file} asks for, is not in {text}");
        }
    }

    // The first line of the log says what runs here.
    let first = server.log().first().cloned().unwrap();
    assert_eq!(first["version"], env!("CARGO_PKG_VERSION"), "{first}");
    let message = first["message"].as_str().unwrap();
    assert!(
        message.contains("schema")
            && message.contains("api,verifier,router")
            && message.contains("a free port of 127.0.0.1"),
        "{first}"
    );
    let opened = &server.said("the database is open")[0];
    assert_eq!(opened["schema"], first["schema"], "nobody has migrated it further: {opened}");
    eventually("the log says so", || async { (!server.said("event accepted").is_empty()).then_some(()) })
        .await;
}

#[tokio::test]
async fn a_container_can_ask_whether_its_server_is_ready() {
    let installation = Installation::sqlite();
    let server = installation.serve().await;
    let address = server.address().to_owned();
    let ask = ["serve", "--check-ready", "--listen", &address];
    assert_eq!(run(&installation, &ask).await.status.code(), Some(0));
    assert_eq!(server.terminate().await, Some(0));
    let gone = run(&installation, &ask).await;
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
    let said = String::from_utf8_lossy(&gone.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("configuration") && !said.contains("HOOKSAGA_URL"), "what it does not use: {said}");
}
