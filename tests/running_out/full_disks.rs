//! The disk is full. A database server has a small disk of its own, which the test fills.
//!
//! Where this user may not mount one, the tests of servers say so and check nothing.

use super::*;
use hooksaga_testkit::small_disk::SmallDisk;
use std::sync::Arc;

/// The embedded database cannot write a byte more. (A limit on the size of files does the same as a full disk, and needs
/// no disk.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_takes_no_more_is_told_and_recovered_from() {
    let installation = Installation::sqlite();
    let server = Server::start_after(&installation, "trap '' XFSZ", &["serve", "--dev"]).await;
    let (_receiver, first) = has_delivered(&server).await;

    limit(&server, "--fsize=0:").await;
    let (mut stored, refused) = post_meanwhile(&server).await;
    assert!(refused > 10, "{refused} refused");
    says_that_the_disk_is_full(&server, first, &mut stored).await;
    assert!(stored.is_empty(), "{stored:?}");

    limit(&server, "--fsize=unlimited:").await;
    recovers(&server, &stored).await;
    assert_eq!(server.terminate().await, Some(0));
}

/// Events that are stored meanwhile are added to those that were accepted.
async fn says_that_the_disk_is_full(server: &Server, first: i64, accepted: &mut Vec<i64>) {
    let api = server.api();
    let refusal = post_until_refused(&api, accepted).await;
    assert!(refusal["detail"].as_str().unwrap().contains("disk is full"), "{refusal}");
    let unready = server.api_with(None).get("/readyz").await.expect(503);
    assert!(unready["detail"].as_str().unwrap().contains("disk is full"), "{unready}");
    assert_eq!(server.api_with(None).get("/healthz").await.status, 200);
    assert_eq!(api.get(&format!("/v1/events/{first}")).await.status, 200, "reading goes on");
}

/// Posts until an event is refused; the refusal. A table has some room left in the space that it has taken before.
async fn post_until_refused(api: &Api, accepted: &mut Vec<i64>) -> Value {
    loop {
        let answer = api.post("/v1/events", &an_event()).await;
        if answer.status == 503 {
            return answer.json();
        }
        accepted.push(answer.expect(201)["id"].as_i64().unwrap());
        assert!(accepted.len() < 20_000, "the disk is never full");
    }
}

/// A disk of this many MiB; a line that says what is left out where there can be none.
#[expect(clippy::print_stderr, reason = "what is not tested has to be said")]
fn small_disk(mib: u32) -> Option<Arc<SmallDisk>> {
    let disk = SmallDisk::mount(mib).map(Arc::new);
    if disk.is_none() {
        eprintln!(
            "SKIPPED: no disk can be mounted here, since this is neither root nor may it make user namespaces"
        );
    }
    disk
}

/// A server that has delivered an event.
async fn delivering(installation: &Installation) -> (Server, Receiver, i64) {
    let migrated = run(installation, &["migrate"]).await;
    assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
    let server = installation.serve().await;
    let (receiver, first) = has_delivered(&server).await;
    (server, receiver, first)
}

/// The disk is full for a while; the database can be read all the time.
async fn the_data_disk_is_full(installation: &Installation, disk: &SmallDisk) -> (Server, Receiver) {
    let (server, receiver, first) = delivering(installation).await;
    disk.fill();
    let (mut accepted, refused) = post_meanwhile(&server).await;
    assert!(refused > 5, "{refused} refused");
    says_that_the_disk_is_full(&server, first, &mut accepted).await;
    disk.make_room();
    recovers(&server, &accepted).await;
    (server, receiver)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_under_postgres_is_told_and_recovered_from() {
    // On this thread, which lasts: a server ends with the thread that started it.
    let Some(disk) = tokio::task::block_in_place(|| small_disk(64)) else { return };
    let postgres = tokio::task::block_in_place(|| PostgresServer::start_with_tablespace_on(&disk));
    postgres::execute(&postgres.url(), "CREATE DATABASE small TABLESPACE small_disk").await;
    let installation = Installation::on_server(&postgres.url_of("small"));
    let (server, _receiver) = the_data_disk_is_full(&installation, &disk).await;
    assert_eq!(server.terminate().await, Some(0));
}

/// A quota, or a limit on the size of files, says so in other words than a full disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_on_files_under_postgres_is_told_and_recovered_from() {
    // On this thread, which lasts: a server ends with the thread that started it.
    let postgres = tokio::task::block_in_place(PostgresServer::start);
    let installation = Installation::on_server(&postgres.url());
    let (server, _receiver, first) = delivering(&installation).await;
    let warnings = loud(&server);
    // As large as a file of the log.
    postgres.limit_files(Some(16 << 20));
    use_up(&server.api(), "nobody.wants.it").await;
    let (mut accepted, refused) = post_since(&server, warnings).await;
    assert!(refused > 5, "{refused} refused");
    says_that_the_disk_is_full(&server, first, &mut accepted).await;
    postgres.limit_files(None);
    recovers(&server, &accepted).await;
    assert_eq!(server.terminate().await, Some(0));
}

/// Posts batches until one is refused; what was stored. Each is about one small file of the log.
async fn use_up(api: &Api, event_type: &str) -> Vec<i64> {
    let mut stored = Vec::new();
    let event = json!({"event_type": event_type, "payload": "x".repeat(1500)});
    let batch = json!({"events": vec![event; 500]});
    for _ in 0..40 {
        let answer = api.post("/v1/events/batch", &batch).await;
        if answer.status == 503 {
            return stored;
        }
        let results = answer.expect(200)["results"].take();
        stored.extend(results.as_array().unwrap().iter().map(|event| event["id"].as_i64().unwrap()));
    }
    panic!("it is never full")
}

/// PostgreSQL does not survive that: it ends, and cannot start before there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_under_the_log_of_postgres_is_outlived() {
    let Some(disk) = tokio::task::block_in_place(|| small_disk(64)) else { return };
    let mut postgres = tokio::task::block_in_place(|| PostgresServer::start_with_log_on(&disk));
    let installation = Installation::on_server(&postgres.url());
    let (server, _receiver, _) = delivering(&installation).await;
    disk.fill();
    let mut accepted = use_up(&server.api(), "t").await;
    let (stored, refused) = post_meanwhile(&server).await;
    accepted.extend(stored);
    assert!(refused > 5, "{refused} refused");
    assert_eq!(server.api_with(None).get("/readyz").await.status, 503);
    assert!(postgres.has_ended());
    disk.make_room();
    tokio::task::block_in_place(|| postgres.revive());
    recovers(&server, &accepted).await;
    assert_eq!(server.terminate().await, Some(0));
}

/// In the end a payload that takes many pages: the server needs room to take back what it cannot finish, and ends if it
/// finds none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_under_mariadb_is_told_and_recovered_from() {
    let Some(disk) = tokio::task::block_in_place(|| small_disk(160)) else { return };
    let mut mariadb = tokio::task::block_in_place(|| MariaDbServer::start_on(&disk));
    mariadb::execute(&mariadb.url(), "CREATE DATABASE small").await;
    let installation = Installation::on_server(&format!("{}/small", mariadb.url()));
    let (server, _receiver) = the_data_disk_is_full(&installation, &disk).await;

    let api = server.api();
    disk.fill();
    let mut accepted = Vec::new();
    post_until_refused(&api, &mut accepted).await;
    let large = json!({"event_type": "t", "payload": "x".repeat(1_000_000)});
    for _ in 0..3 {
        let answer = api.post("/v1/events", &large).await;
        match answer.status {
            201 => accepted.push(answer.json()["id"].as_i64().unwrap()),
            status => assert_eq!(status, 503, "{}", answer.text()),
        }
    }
    disk.make_room();
    // If it ends, it does so within moments.
    tokio::time::sleep(Duration::from_secs(1)).await;
    if mariadb.has_ended() {
        tokio::task::block_in_place(|| mariadb.revive());
    }
    recovers(&server, &accepted).await;
    assert_eq!(server.terminate().await, Some(0));
}
