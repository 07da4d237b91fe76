//! Backups of a running server, made and restored with the database's own means.

use crate::support::*;
use hooksaga_testkit as testkit;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::process::Command;

on_every_back_end! {
    a_backup_of_a_running_server_is_restored_and_repeats_no_id,
}

async fn a_backup_of_a_running_server_is_restored_and_repeats_no_id(installation: Installation) {
    let patient = |installation: Installation| {
        // What was leased when the backup was made waits for its lease.
        installation
            .with("HOOKSAGA_RETRY_BASE_DELAY", "2s")
            .with("HOOKSAGA_RETRY_MAX_DELAY", "2s")
            .with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "2s")
            .with("HOOKSAGA_WORKER_LEASE_DURATION", "12s")
    };
    let installation = patient(installation);
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (good, secret) = api.verified_subscription("t", &receiver.url("/good")).await;
    api.verified_subscription("t", &receiver.url("/down")).await;
    // Waits for its next attempt when the backup is made.
    receiver.answer("/down", [Behaviour::Status(503)]);
    let mut before = Vec::new();
    for number in 0..20 {
        before.push(api.event("t", &json!(number)).await);
    }
    receiver.wait_for("/good", 10, PATIENCE).await;
    let letters = letters_before(&api, &receiver).await;
    let (gone, _) = api.verified_subscription("gone", &receiver.url("/gone")).await;
    assert_eq!(api.send("DELETE", &format!("/v1/subscriptions/{gone}"), &[], b"").await.status, 204);

    // Large enough that a copy is not made between two posts.
    if installation.database_url().is_none() {
        let large = json!("x".repeat(1_000_000));
        for _ in 0..100 {
            api.event("nobody.wants.it", &large).await;
        }
    }

    let stop = Arc::new(AtomicBool::new(false));
    let (poster, told) = (api.clone(), Arc::clone(&stop));
    let posting = tokio::spawn(async move {
        while !told.load(Ordering::SeqCst) {
            poster.event("t", &json!("meanwhile")).await;
        }
    });
    let backup = installation.folder.path().join("backup");
    let backed_up = tokio::time::timeout(PATIENCE, back_up(&installation, &backup)).await;
    assert!(backed_up.is_ok(), "a backup ends, however busy the server is");
    stop.store(true, Ordering::SeqCst);
    posting.await.unwrap();
    let lost = api.event("t", &json!("after the backup")).await;
    // A challenge that the backup knows nothing of.
    let verified_again = format!("/v1/subscriptions/{good}/verify");
    api.post(&verified_again, &json!({})).await.expect(202);
    eventually("it is challenged again", || async { (challenges(&receiver).len() == 2).then_some(()) }).await;
    assert_eq!(server.terminate().await, Some(0));

    let restored = patient(restore(&installation, &backup).await);
    let moved = run(&restored, &["migrate", "--after-restore"]).await;
    assert_eq!(moved.status.code(), Some(0), "{moved:?}");
    receiver.answer("/down", [Behaviour::Status(200)]);
    let server = restored.serve().await;
    let api = server.api();
    for id in before {
        let deliveries = api.deliveries(id).await;
        assert_eq!(deliveries.len(), 2, "{deliveries:?}");
        for delivery in deliveries {
            api.saga_with_status(delivery["saga_id"].as_i64().unwrap(), "Completed").await;
        }
    }
    assert_eq!(api.get(&format!("/v1/events/{lost}")).await.status, 404, "it went with the old database");
    api.post(&verified_again, &json!({})).await.expect(202);
    let ids =
        eventually("it is challenged", || async { Some(challenges(&receiver)).filter(|ids| ids.len() == 3) })
            .await;
    assert!(!ids[..2].contains(&ids[2]), "{ids:?}");
    let known: Vec<String> = receiver.deliveries("/good").iter().map(webhook_id).collect();
    let new = api.event("t", &json!("new")).await;
    assert!(new > lost + 1_000_000_000, "{new} after {lost}");
    let id = format!("evt_{new}");
    assert!(!known.contains(&id));
    let arrived = eventually("it is delivered", || async {
        receiver.deliveries("/good").into_iter().find(|arrival| webhook_id(arrival) == id)
    })
    .await;
    assert!(signed_by(&arrived, &secret), "the endpoint's secret is the same");
    letters_go_on(&api, &receiver, letters).await;
}

/// Dead letters, newest first.
async fn letters(api: &Api, filter: &str) -> Vec<i64> {
    let listed = api.get(&format!("/v1/dead-letters?event_type=dead{filter}")).await.expect(200);
    listed["items"].as_array().unwrap().iter().map(|letter| letter["id"].as_i64().unwrap()).collect()
}

/// A delivery that fails. There are so many letters then.
async fn fail(api: &Api, receiver: &Receiver, letters_then: usize) {
    receiver.answer("/dead", [Behaviour::Status(500)]);
    api.event("dead", &json!(1)).await;
    let there = || async { (letters(api, "").await.len() == letters_then).then_some(()) };
    eventually("the letter is written", there).await;
}

async fn requeue(api: &Api, receiver: &Receiver, letter: i64) {
    receiver.answer("/dead", [Behaviour::Status(200)]);
    let requeued = api.post(&format!("/v1/dead-letters/{letter}/requeue"), &json!({})).await.expect(201);
    api.saga_with_status(requeued["saga_id"].as_i64().unwrap(), "Completed").await;
}

/// A letter that was sent again, and an open one.
async fn letters_before(api: &Api, receiver: &Receiver) -> [i64; 2] {
    let (subscription, _) = api.verified_subscription("dead", &receiver.url("/dead")).await;
    api.patch(&format!("/v1/subscriptions/{subscription}"), &json!({"max_retry_limit": 1})).await.expect(200);
    fail(api, receiver, 1).await;
    let requeued = letters(api, "").await[0];
    requeue(api, receiver, requeued).await;
    fail(api, receiver, 2).await;
    [requeued, letters(api, "&requeued=false").await[0]]
}

/// They are listed as before, another one is written, and one is sent again.
async fn letters_go_on(api: &Api, receiver: &Receiver, [requeued, open]: [i64; 2]) {
    assert_eq!(letters(api, "").await, [open, requeued]);
    assert_eq!(letters(api, "&requeued=true").await, [requeued]);
    assert_eq!(letters(api, "&requeued=false").await, [open]);
    fail(api, receiver, 3).await;
    requeue(api, receiver, open).await;
    assert_eq!(letters(api, "&requeued=true").await, [open, requeued]);
    assert_eq!(letters(api, "&requeued=false").await.len(), 1, "the new one");
}

/// The ids of the challenges that this endpoint was sent.
fn challenges(receiver: &Receiver) -> Vec<String> {
    receiver.challenges("/good").iter().map(webhook_id).collect()
}

fn webhook_id(arrival: &Arrival) -> String {
    arrival.header("webhook-id").unwrap().to_owned()
}

/// As docs/OPERATIONS.md says.
async fn back_up(installation: &Installation, backup: &Path) {
    match installation.database_url() {
        None => {
            let database = data_folder(installation).join("hooksaga.db");
            let order = format!(".backup '{}'", backup.display());
            let one_moment = ["BEGIN", "SELECT count(*) FROM sqlite_schema"];
            done(Command::new("sqlite3").arg(database).args(one_moment).arg(order)).await;
        }
        Some(url) if url.starts_with("postgres") => {
            let mut dump = Command::new(testkit::postgres::program("pg_dump"));
            done(dump.args(["--format=custom", "--file"]).arg(backup).arg(url)).await;
        }
        Some(url) => {
            let (server, database) = mariadb_arguments(url);
            let mut dump = Command::new("mariadb-dump");
            dump.args(server).args(["--single-transaction", "--routines"]);
            done(dump.arg(format!("--result-file={}", backup.display())).arg(database)).await;
        }
    }
}

/// Into a new place.
async fn restore(installation: &Installation, backup: &Path) -> Installation {
    match installation.database_url() {
        None => {
            let restored = Installation::sqlite();
            let (from, to) = (data_folder(installation), data_folder(&restored));
            fs::create_dir(&to).unwrap();
            fs::copy(backup, to.join("hooksaga.db")).unwrap();
            fs::copy(from.join("secret.key"), to.join("secret.key")).unwrap();
            restored
        }
        Some(url) if url.starts_with("postgres") => {
            let url = testkit::postgres::create_database("restored", None).await;
            let mut restoring = Command::new(testkit::postgres::program("pg_restore"));
            done(restoring.args(["--exit-on-error", "--no-owner", "--no-acl", "--dbname", &url]).arg(backup))
                .await;
            Installation::on_server(&url)
        }
        Some(_) => {
            let url = testkit::mariadb::create_database("restored").await;
            let (server, database) = mariadb_arguments(&url);
            let mut restoring = Command::new("mariadb");
            done(restoring.args(server).arg(database).stdin(fs::File::open(backup).unwrap())).await;
            Installation::on_server(&url)
        }
    }
}

fn data_folder(installation: &Installation) -> PathBuf {
    installation.folder.path().join("hooksaga-data")
}

/// How MariaDB's own programs are told where a server is; the database.
fn mariadb_arguments(url: &str) -> (Vec<String>, String) {
    let (user, rest) = url.strip_prefix("mysql://").unwrap().split_once('@').unwrap();
    let (server, database) = rest.split_once('/').unwrap();
    let (host, port) = server.split_once(':').unwrap();
    let arguments = ["--no-defaults", "--protocol=tcp"].map(str::to_owned);
    let server = [format!("--host={host}"), format!("--port={port}"), format!("--user={user}")];
    (arguments.into_iter().chain(server).collect(), database.to_owned())
}

async fn done(command: &mut Command) {
    let output = command.output().await.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
