//! Starting: what is refused, how it is said, and what is left alone.

use crate::support::*;
use std::{fs, os::unix::fs::PermissionsExt, process::Output};

/// Asserts a failure that is told in one line, naming `named`.
fn refused(output: &Output, named: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "one line: {said}");
    assert!(said.contains(named), "{named} in: {said}");
}

#[tokio::test]
async fn a_first_start_makes_its_folder_and_keys() {
    let installation = Installation::sqlite().without("HOOKSAGA_ROOT_KEY");
    let server = installation.serve().await;
    let data = installation.folder.path().join("hooksaga-data");
    for file in ["root.key", "secret.key"] {
        let mode = fs::metadata(data.join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let key = fs::read_to_string(data.join("root.key")).unwrap();
    assert_eq!(server.api_with(Some(key.trim())).get("/v1/stats").await.status, 200);
    assert!(server.log().iter().all(|record| !record.to_string().contains(key.trim())), "no key in the log");
    let log = server.log();
    let named = log.iter().find(|record| record.to_string().contains(server.address())).unwrap();
    let named = named["message"].as_str().unwrap();
    assert!(named.starts_with("listening on "), "the address is named when it answers: {named}");
    // And again: the same keys.
    assert_eq!(server.terminate().await, Some(0));
    let server = installation.serve().await;
    assert_eq!(server.api_with(Some(key.trim())).get("/v1/stats").await.status, 200);
}

#[tokio::test]
async fn the_data_is_its_owners_alone_and_a_start_that_finds_it_open_says_so() {
    let installation = Installation::sqlite();
    let server = installation.serve().await;
    server.api().event("t", &json!(1)).await;
    let data = installation.folder.path().join("hooksaga-data");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    for file in fs::read_dir(&data).unwrap().flatten() {
        assert_eq!(mode(&file.path()), 0o600, "{:?}", file.file_name());
    }
    assert!(server.said("other users").is_empty());
    assert_eq!(server.terminate().await, Some(0));

    fs::set_permissions(data.join("hooksaga.db"), fs::Permissions::from_mode(0o644)).unwrap();
    let server = installation.serve().await;
    let said = server.said("other users");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0]["message"].as_str().unwrap().contains("hooksaga.db"), "{said:?}");
}

#[tokio::test]
async fn a_secret_can_come_from_a_file() {
    let installation = Installation::sqlite()
        .without("HOOKSAGA_ROOT_KEY")
        .with("HOOKSAGA_ROOT_KEY_FILE", "root.txt")
        .with("HOOKSAGA_DATABASE_URL_FILE", "url.txt");
    fs::write(installation.folder.path().join("root.txt"), "a-root-key-from-a-file-of-its-own\n").unwrap();
    fs::write(installation.folder.path().join("url.txt"), "sqlite://elsewhere/hooksaga.db\n").unwrap();
    let server = installation.serve().await;
    let api = server.api_with(Some("a-root-key-from-a-file-of-its-own"));
    assert_eq!(api.get("/v1/stats").await.status, 200);
    assert!(installation.folder.path().join("elsewhere/hooksaga.db").exists());
}

#[tokio::test]
async fn hazards_are_told_at_the_start_one_line_each() {
    let installation = Installation::sqlite()
        .with("HOOKSAGA_LISTEN", "0.0.0.0:0")
        .with("HOOKSAGA_CALLBACKS_ALLOW_NETWORKS", "10.0.0.0/8");
    let server = Server::start(&installation, &["serve"]).await;
    for hazard in ["no TLS", "allow_networks"] {
        assert_eq!(server.said(hazard).len(), 1, "{hazard}: {:?}", server.log());
    }
    drop(server);
    let short = Installation::sqlite().with("HOOKSAGA_ROOT_KEY", "short");
    let server = short.serve().await;
    assert_eq!((server.said("--dev").len(), server.said("auth.root_key").len()), (1, 1));
    assert!(server.said("no TLS").is_empty());
    assert_eq!(server.api_with(Some("short")).get("/v1/stats").await.status, 200);
    drop(server);
    let open = short.with("HOOKSAGA_LISTEN", "0.0.0.0:0");
    refused(&run(&open, &["serve"]).await, "auth.root_key");
}

#[tokio::test]
async fn what_is_wrong_with_the_configuration_is_said_in_one_line() {
    let start = |installation: Installation| async move { run(&installation, &["serve", "--dev"]).await };
    let fresh = Installation::sqlite;
    refused(&start(fresh().with("HOOKSAGA_NONSENSE", "1")).await, "HOOKSAGA_NONSENSE");
    refused(&start(fresh().with("HOOKSAGA_RETRY_BASE_DELAY", "soon")).await, "retry.base_delay");
    refused(&start(fresh().with("HOOKSAGA_RETRY_MAX_RETRY_LIMIT", "101")).await, "retry.max_retry_limit");
    refused(&start(fresh().with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "60s")).await, "worker.http_timeout");
    refused(&start(fresh().with("HOOKSAGA_LISTEN", "0.0.0.0:0")).await, "server.listen");
    refused(&start(fresh().with("HOOKSAGA_CALLBACKS_ALLOW_NETWORKS", "everything")).await, "allow_networks");
    refused(&start(fresh().with("HOOKSAGA_DATABASE_URL", "oracle://x")).await, "database.url");
    refused(&start(fresh().with("HOOKSAGA_SECRET_KEY", "short")).await, "secrets.key");
    refused(&start(fresh().with("HOOKSAGA_ROOT_KEY", "two words")).await, "auth.root_key");
    refused(&start(fresh().with("HOOKSAGA_ROOT_KEY_FILE", "root.txt")).await, "HOOKSAGA_ROOT_KEY_FILE");
    let missing = fresh().with("HOOKSAGA_TLS_CERT", "none.pem").with("HOOKSAGA_TLS_KEY", "none.pem");
    refused(&start(missing).await, "none.pem");
    let kept =
        fresh().with("HOOKSAGA_RETENTION_FINISHED", "30d").with("HOOKSAGA_RETENTION_ARCHIVE", "/dev/null/x");
    refused(&start(kept).await, "retention.archive");
    let unknown = fresh();
    fs::write(unknown.folder.path().join("hooksaga.toml"), "[retry]\nbase_dleay = \"1s\"\n").unwrap();
    refused(&start(unknown).await, "base_dleay");
    let wrong_usage = run(&fresh(), &["serve", "--no-such-flag"]).await;
    assert_eq!(wrong_usage.status.code(), Some(2));
}

#[tokio::test]
async fn the_effective_configuration_is_shown_without_secrets() {
    let installation = Installation::sqlite()
        .with("HOOKSAGA_SECRET_KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
        .with("HOOKSAGA_DATABASE_URL", "postgres://someone:hunter2@127.0.0.1:1/db");
    let shown = run(&installation, &["serve", "--print-config"]).await;
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("base_delay = \"50ms\""), "{shown}");
    for secret in ["hunter2", "AAECAwQF", "hsk_the-root-key"] {
        assert!(!shown.contains(secret), "{secret} in: {shown}");
    }
}

#[tokio::test]
async fn an_unusable_sqlite_file_is_named_and_left_alone() {
    let installation = Installation::sqlite();
    let data = installation.folder.path().join("hooksaga-data");
    fs::create_dir(&data).unwrap();
    let file = data.join("hooksaga.db");
    let text = "this is no database, and long enough to be looked at as one".repeat(100);
    fs::write(&file, &text).unwrap();
    refused(&run(&installation, &["serve", "--dev"]).await, "hooksaga.db");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[tokio::test]
async fn a_database_server_that_is_away_unmigrated_or_wrong_is_named() {
    let servers = [
        (Installation::unmigrated_postgres().await, "postgres"),
        (Installation::unmigrated_mysql().await, "mysql"),
    ];
    for (away, scheme) in servers {
        refused(&run(&away, &["serve", "--dev"]).await, "hooksaga migrate");
        let url = format!("{scheme}://nobody:hunter2@127.0.0.1:9/none");
        let away = away.with("HOOKSAGA_DATABASE_URL", &url);
        let output = run(&away, &["serve", "--dev"]).await;
        refused(&output, "127.0.0.1");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("hunter2"));
        refused(&run(&away, &["migrate"]).await, "127.0.0.1");
    }
}

on_every_database_server! {
    a_key_that_does_not_open_the_stored_secrets_stops_the_start,
    a_new_secret_key_takes_over_while_a_server_runs,
    migrating_twice_says_that_nothing_was_to_do,
}

async fn a_key_that_does_not_open_the_stored_secrets_stops_the_start(installation: Installation) {
    let server = installation.serve().await;
    let subscription = json!({"event_type": "t", "callback_url": "http://127.0.0.1:9/"});
    server.api().post("/v1/subscriptions", &subscription).await.expect(201);
    assert_eq!(server.terminate().await, Some(0));
    let other = "Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=";
    refused(&run(&installation.with("HOOKSAGA_SECRET_KEY", other), &["serve", "--dev"]).await, "secrets.key");
}

async fn a_new_secret_key_takes_over_while_a_server_runs(installation: Installation) {
    let (old, new) =
        ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=");
    let receiver = Receiver::start().await;
    let server = installation.serve().await;
    let (_, secret) = server.api().verified_subscription("t", &receiver.url("/in")).await;
    assert_eq!(server.terminate().await, Some(0));

    refused(&run(&installation, &["keys", "rewrap"]).await, "secrets.old_key");
    let both = installation.with("HOOKSAGA_SECRET_KEY", new).with("HOOKSAGA_SECRET_OLD_KEY", old);
    let server = both.serve().await;
    for (form, moved) in [(&[][..], "moved: 1"), (&["--json"], r#"{"moved":0}"#)] {
        let done = run(&both, &[&["keys", "rewrap"], form].concat()).await;
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        assert!(String::from_utf8_lossy(&done.stdout).contains(moved), "{done:?}");
    }
    assert_eq!(server.terminate().await, Some(0));

    let alone = both.without("HOOKSAGA_SECRET_OLD_KEY");
    let server = alone.serve().await;
    server.api().post("/v1/events", &json!({"event_type": "t", "payload": 1})).await.expect(201);
    let arrived = receiver.wait_for("/in", 1, PATIENCE).await.remove(0);
    assert!(signed_by(&arrived, &secret));
}

async fn migrating_twice_says_that_nothing_was_to_do(installation: Installation) {
    let again = run(&installation, &["migrate"]).await;
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    let roles = run(&installation, &["migrate", "--print-roles"]).await;
    assert!(String::from_utf8_lossy(&roles.stdout).contains("CREATE ROLE"), "{roles:?}");
}

#[tokio::test]
async fn without_the_development_switch_plain_http_and_loopback_are_refused() {
    let installation = Installation::sqlite();
    let server = Server::start(&installation, &["serve"]).await;
    let api = server.api();
    let plain = json!({"event_type": "t", "callback_url": "http://example.com/"});
    api.post("/v1/subscriptions", &plain).await.expect(422);
    for url in ["https://127.0.0.1:9/", "https://localhost:9/"] {
        let loopback = json!({"event_type": "t", "callback_url": url});
        let problem = api.post("/v1/subscriptions", &loopback).await.expect(422);
        assert_eq!(problem["errors"][0]["field"], "callback_url", "{problem}");
    }
}

#[tokio::test]
async fn what_migrate_did_can_be_read_by_scripts() {
    let installation = Installation::sqlite();
    let migrate = async |options: &[&str]| -> Value {
        let output = run(&installation, &[&["migrate", "--json"], options].concat()).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let first = migrate(&[]).await;
    let applied = first["applied"].as_array().unwrap();
    assert_eq!(first["version"].as_u64(), Some(applied.len() as u64), "{first}");
    let again = migrate(&["--after-restore"]).await;
    assert_eq!((&again["applied"], &again["version"]), (&json!([]), &first["version"]), "{again}");
    let moved = again["moved_ids"].as_array().unwrap();
    assert!(!moved.is_empty() && moved.iter().all(|moved| moved["after"].is_i64()), "{again}");
}

#[tokio::test]
async fn the_small_configuration_of_the_page_is_valid() {
    let installation = Installation::sqlite().without("HOOKSAGA_LISTEN");
    let block = example("docs/CONFIGURATION.md", "small-configuration");
    fs::write(installation.folder.path().join("small.toml"), &block).unwrap();
    let shown = run(&installation, &["serve", "--config", "small.toml", "--print-config"]).await;
    let said = String::from_utf8_lossy(&shown.stdout);
    assert_eq!(shown.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&shown.stderr));
    // Durations are printed in hours at most.
    for line in block.replace("30d", "720h").replace("90d", "2160h").lines() {
        assert!(said.lines().any(|shown| shown == line), "{line} in {said}");
    }
}

/// On a terminal, which `script` gives it.
#[tokio::test]
async fn a_log_has_colours_on_a_terminal_unless_they_are_not_wanted() {
    let log = async |no_color: &str| {
        let address = format!("127.0.0.1:{}", free_port());
        let installation = Installation::sqlite()
            .with("HOOKSAGA_LISTEN", &address)
            .with("HOOKSAGA_LOG_FORMAT", "text")
            .with("TERM", "xterm")
            .with("NO_COLOR", no_color);
        let served = format!(
            "{HOOKSAGA} serve & for _ in $(seq 200); do {HOOKSAGA} serve --check-ready 2>/dev/null && break; sleep 0.1; done; \
             kill $!; wait $!"
        );
        run_in_terminal(&installation, &served).await
    };
    let colored = log("").await;
    assert!(colored.contains("listening on") && colored.contains("\x1b["), "{colored}");
    let plain = log("1").await;
    assert!(plain.contains("listening on") && !plain.contains("\x1b["), "{plain}");
}

#[tokio::test]
async fn a_demo_that_is_kept_goes_on_until_it_is_interrupted() {
    let installation = Installation::sqlite().without("HOOKSAGA_LISTEN").without("HOOKSAGA_ROOT_KEY");
    let demo = Process::start(&installation, &["demo", "--keep"]).await;
    let first = demo.said("its data is in ").await;
    let folder = std::path::PathBuf::from(first.split("its data is in ").nth(1).unwrap());
    let settings = demo.said("export HOOKSAGA_URL=").await;
    let value = |name: &str| settings.split(name).nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let address = value("HOOKSAGA_URL=http://");
    let api = Api::new(&address, Some(&value("HOOKSAGA_API_KEY=")));
    let newest = async || api.get("/v1/events?limit=1").await.expect(200)["items"][0]["id"].as_i64();
    let before = newest().await.expect("the story has events");
    eventually("another order", || async { newest().await.filter(|id| *id > before) }).await;
    assert!(folder.exists());
    let (code, lines) = demo.interrupt().await;
    assert_eq!(code, Some(0), "{lines:?}");
    assert!(!folder.exists(), "it leaves nothing behind");
}

#[tokio::test]
async fn the_demo_tells_its_story_and_ends() {
    let installation = Installation::sqlite().without("HOOKSAGA_LISTEN").without("HOOKSAGA_ROOT_KEY");
    let command = example("README.md", "demo");
    let demo = command.trim().strip_prefix("cargo run --release -- ").expect("the program is built and run");
    let demo = run(&installation, &[demo]).await;
    let story = String::from_utf8_lossy(&demo.stdout);
    assert_eq!(demo.status.code(), Some(0), "{story}\n{}", String::from_utf8_lossy(&demo.stderr));
    for word in ["verified", "dead letter", "requeue", "what to do next", "subscriptions add order.created"] {
        assert!(story.to_lowercase().contains(word), "{word} in:\n{story}");
    }
}
