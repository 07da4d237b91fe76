//! Shell commands of README and the pages for operators, run as they stand there. Only ports, folders and the address of
//! a database server are other ones.

use crate::{history, support::*};
use std::fs;

/// The API of a server that has made its own key.
fn api(installation: &Installation, server: &Server) -> Api {
    let key = fs::read_to_string(installation.folder.path().join("hooksaga-data/root.key")).unwrap();
    server.api_with(Some(key.trim()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_delivery_of_the_readme_arrives() {
    let installation = Installation::sqlite().without("HOOKSAGA_ROOT_KEY");
    let start = example("README.md", "start");
    let start = start.strip_prefix("cargo run --release -- ").expect("the program is built and run");
    let server = Server::start(&installation, &start.split_whitespace().collect::<Vec<_>>()).await;
    let commands = example("README.md", "try-it").replace("9000", &free_port().to_string());
    let script = Script::start(&installation, &[("HOOKSAGA_URL", &server.url())], &commands);
    script.succeeds().await;
    for said in ["whsec_", "verified: ", "accepted (order.created", "delivered to 1", r#"{"order": 42}"#] {
        script.said(said).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_postgresql_starts_as_the_readme_says() {
    let installation =
        Installation::unmigrated_postgres().await.without("HOOKSAGA_ROOT_KEY").without("HOOKSAGA_SECRET_KEY");
    let url = installation.database_url().unwrap().to_owned();
    let commands = example("README.md", "on-postgresql").replace("postgres://hooksaga@db/hooksaga", &url);
    assert!(commands.contains(&url));
    // It comes from the commands alone.
    let installation = installation.without("HOOKSAGA_DATABASE_URL");
    let script = Script::start(&installation, &[], &commands);
    let listening = script.said("listening on http://").await;
    let (_, address) = listening.split_once("listening on http://").unwrap();
    let address = address.split(['"', ' ']).next().unwrap();
    let printed = script.printed();
    let key = printed.split_whitespace().find(|word| word.starts_with("hsk_")).expect("a key is shown");
    let stats = Api::new(address, Some(key)).get("/v1/stats").await;
    assert_eq!(stats.status, 200, "{printed}");
}

/// Nobody verifies the endpoint: it is on another machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_is_copied_as_the_page_for_those_who_move_says() {
    let installation = Installation::postgres().await;
    let server = installation.serve_only("api").await;
    let settings = [("HOOKSAGA_URL", server.url()), ("HOOKSAGA_API_KEY", ROOT_KEY.to_owned())];
    let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    fs::write(installation.folder.path().join("acme.secret"), secret).unwrap();
    run_script(&installation, &settings, &example("docs/MIGRATING.md", "copy-an-endpoint")).await;
    let listed = server.api().get("/v1/subscriptions").await.expect(200);
    let subscription = &listed["items"][0];
    assert_eq!(subscription["tenant"], "acme");
    assert_eq!(subscription["active"], false, "it is paused");
    assert_eq!(subscription["callback_url"], "https://customer.example/hook");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_installation_is_probed_backed_up_and_restored_as_the_pages_say() {
    let installation = Installation::sqlite().without("HOOKSAGA_ROOT_KEY");
    let folder = installation.folder.path();
    let operations = |name| {
        let backup = folder.join("backup");
        example("docs/OPERATIONS.md", name).replace("/backup", backup.to_str().unwrap())
    };
    let server = installation.serve().await;
    let probes = operations("probes").replace("127.0.0.1:8080", server.address());
    run_script(&installation, &[("HOOKSAGA_LISTEN", server.address())], &probes).await;
    let kept = api(&installation, &server).event("t", &json!({"order": 17})).await;
    fs::create_dir(folder.join("backup")).unwrap();
    run_script(&installation, &[], &operations("back-up")).await;
    let lost = api(&installation, &server).event("t", &json!("after the backup")).await;
    server.kill().await;
    fs::rename(folder.join("hooksaga-data"), folder.join("broken")).unwrap();

    run_script(&installation, &[], &operations("restore")).await;
    run_script(&installation, &[], &example("docs/RELIABILITY.md", "after-restore")).await;
    let server = installation.serve().await;
    let api = api(&installation, &server);
    assert_eq!(api.get(&format!("/v1/events/{kept}")).await.expect(200)["payload"], json!({"order": 17}));
    assert_eq!(api.get(&format!("/v1/events/{lost}")).await.status, 404);
    assert!(api.event("t", &json!("new")).await > lost + 1_000_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_followed_in_the_log_as_the_page_for_operators_says() {
    let installation = Installation::sqlite();
    let receiver = Receiver::start().await;
    let server = installation.serve().await;
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Status(503), Behaviour::Status(200)]);
    let followed = json!({"event_type": "t", "payload": 1});
    let headers = [("content-type", "application/json"), ("x-correlation-id", "order-17")];
    let event = api.send("POST", "/v1/events", &headers, followed.to_string().as_bytes()).await.expect(201);
    api.event("t", &json!("another one")).await;
    api.delivery_with_status(event["id"].as_i64().unwrap(), "Completed").await;
    eventually("the log says so", || async { (server.said("delivered").len() == 2).then_some(()) }).await;

    // systemd's own lines are among them.
    let log: String = server.log().iter().map(|record| format!("{record}\n")).collect();
    fs::write(installation.folder.path().join("journal"), format!("Started hooksaga.service.\n{log}"))
        .unwrap();
    let command = example("docs/OPERATIONS.md", "follow-in-the-log");
    let script = format!("journalctl() {{ cat journal; }}\n{command}");
    let printed = run_script(&installation, &[], &script).await;
    let said: Vec<String> = printed
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|line| line["message"].as_str().unwrap().to_owned())
        .collect();
    let steps =
        ["event accepted", "routed", "attempt failed", "waits for a retry", "attempt succeeded", "delivered"];
    for step in steps {
        assert_eq!(said.iter().filter(|message| *message == step).count(), 1, "{step} in {said:?}");
    }
    assert!(
        said.iter().all(|message| text("docs/OPERATIONS.md").contains(&format!("`{message}`"))),
        "{said:?}"
    );
}

#[tokio::test]
async fn archives_are_looked_into_as_the_page_for_operators_says() {
    let installation = Installation::sqlite();
    let archive = installation.folder.path().join("archive");
    fs::create_dir(&archive).unwrap();
    let lines = [history::line(16, "acme", "order-16"), history::line(17, "acme", "order-17")];
    fs::write(archive.join("2026-01-31.HOST-PID.ndjson.zst"), history::frame(&lines)).unwrap();
    let printed = run_script(&installation, &[], &example("docs/OPERATIONS.md", "history")).await;
    // The list has both, the search one with its payload, and jq prints ids.
    for (text, times) in [("order-16", 1), (r#"{ "order":17 }"#, 1), ("\n16\n17\n", 1)] {
        assert_eq!(printed.matches(text).count(), times, "{text:?} in {printed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archived_event_is_posted_again_as_the_page_for_operators_says() {
    const PAYLOAD: &str = "{ \"n\": 12345678901234567890123.0,\n\t\"t\": \"\\u0041é \\\\ \\\"\" }";
    let installation = Installation::sqlite();
    let archive = installation.folder.path().join("archive");
    fs::create_dir(&archive).unwrap();
    let mut line: Value = serde_json::from_str(&history::line(17, "acme", "order-17")).unwrap();
    line["event"]["payload"] = json!(PAYLOAD);
    // Twice, as after a crash.
    let lines = [history::line(16, "acme", "order-16"), line.to_string(), line.to_string()];
    fs::write(archive.join("2026-01-31.HOST-PID.ndjson.zst"), history::frame(&lines)).unwrap();
    let server = installation.serve().await;
    let settings = [("HOOKSAGA_URL", server.url()), ("HOOKSAGA_API_KEY", ROOT_KEY.to_owned())];
    let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
    let commands = example("docs/OPERATIONS.md", "post-again");
    run_script(&installation, &settings, &commands).await;
    let listed = server.api().get("/v1/events").await.expect(200);
    let event = &listed["items"][0];
    for (field, value) in [("tenant", "acme"), ("external_id", "order-17"), ("correlation_id", "c-17")] {
        assert_eq!(event[field], value);
    }
    let shown = server.api().get(&format!("/v1/events/{}", event["id"])).await;
    assert!(shown.text().contains(PAYLOAD), "byte for byte: {}", shown.text());
    // Once more: it is the same event.
    let printed = run_script(&installation, &settings, &commands).await;
    assert!(printed.contains(r#""duplicate":true"#), "{printed}");

    let mut without: Value = line;
    without["event"]["external_id"] = Value::Null;
    fs::write(archive.join("2026-01-31.HOST-PID.ndjson.zst"), history::frame(&[without.to_string()]))
        .unwrap();
    let printed = run_script(&installation, &settings, &commands).await;
    assert!(
        printed.contains(r#""external_id":null"#) && printed.contains(r#""duplicate":false"#),
        "{printed}"
    );
}
