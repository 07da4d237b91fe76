//! What the product does when something runs out: disk, memory, database connections, descriptors, leave to write. It says
//! so, refuses with 503 and Retry-After, is not ready, writes no flood of log lines, and goes on by itself when there is
//! enough again.

mod full_disks;
mod memory;

use crate::support::*;
use hooksaga_testkit::{
    mariadb::{self, MariaDbServer},
    postgres::{self, PostgresServer},
    proxy::Proxy,
};
use std::{any::Any, time::Instant};
use tokio::process::Command;

/// So long something is missing: long enough for every loop to meet it several times.
const MISSING: Duration = Duration::from_secs(3);

/// Lines that warn, of all components together, in that time: each says it once, and failed requests share a line.
const MOST_LINES: usize = 60;

/// Changes a limit of the server's process while it runs.
async fn limit(server: &Server, resource: &str) {
    let changed = Command::new("prlimit").args(["--pid", &server.id().to_string(), resource]).status().await;
    assert!(changed.unwrap().success(), "prlimit {resource}");
}

fn loud(server: &Server) -> usize {
    let log = server.log();
    log.iter().filter(|record| matches!(record["level"].as_str(), Some("WARN" | "ERROR"))).count()
}

/// Posts all the time while something is missing, until posts have been refused for a while. Each post is stored or refused
/// with 503 and a hint; the ids of those that were stored, and how many were refused.
async fn post_meanwhile(server: &Server) -> (Vec<i64>, usize) {
    post_since(server, loud(server)).await
}

/// The same where it may have said before what is missing: the number of its warnings then.
async fn post_since(server: &Server, before: usize) -> (Vec<i64>, usize) {
    let began = Instant::now();
    let (mut stored, mut refused, mut first) = (Vec::new(), 0, None);
    while first.is_none_or(|first: Instant| first.elapsed() < MISSING) {
        assert!(first.is_some() || began.elapsed() < PATIENCE, "nothing is missing: {} stored", stored.len());
        let answer = server.api().post("/v1/events", &an_event()).await;
        match answer.status {
            201 => stored.push(answer.json()["id"].as_i64().unwrap()),
            503 => {
                assert!(answer.header("retry-after").is_some(), "{answer:?}");
                refused += 1;
                first.get_or_insert_with(Instant::now);
            }
            other => panic!("{other}: {}", answer.text()),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let lines = loud(server) - before;
    assert!(lines > 0, "it says nothing");
    assert!(lines <= MOST_LINES, "{lines} lines in {:?}", began.elapsed());
    (stored, refused)
}

fn an_event() -> Value {
    json!({"event_type": "t", "payload": "x".repeat(500)})
}

/// Delivers an event of the type `t`, and will deliver others: the event's id.
async fn has_delivered(server: &Server) -> (Receiver, i64) {
    let (api, receiver) = (server.api(), Receiver::start().await);
    api.verified_subscription("t", &receiver.url("/in")).await;
    let event = api.event("t", &json!(1)).await;
    api.delivery_with_status(event, "Completed").await;
    (receiver, event)
}

/// It is ready again, takes events and delivers them; so it does with what was stored meanwhile.
async fn recovers(server: &Server, stored: &[i64]) {
    let api = server.api();
    let event = json!({"event_type": "t", "payload": "after"});
    let id = eventually("it takes events again", || async {
        let answer = api.post("/v1/events", &event).await;
        (answer.status == 201).then(|| answer.json()["id"].as_i64().unwrap())
    })
    .await;
    for id in stored.iter().chain([&id]) {
        api.delivery_with_status(*id, "Completed").await;
    }
    eventually("it is ready", || async {
        (server.api_with(None).get("/readyz").await.status == 200).then_some(())
    })
    .await;
}

/// Other programs take every connection that the database has.
async fn no_connection_is_left<H>(
    url: String,
    hold: impl AsyncFn(&str) -> Option<H>,
    _server: Box<dyn Any + Send>,
) {
    let (proxy, through) = Proxy::for_url(&url).await;
    let installation = Installation::on_server(&through);
    let migrated = run(&installation, &["migrate"]).await;
    assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
    let server = installation.serve().await;
    let _receiver = has_delivered(&server).await;

    // Its own connections go, too, and others are faster.
    server.signal("STOP").await;
    proxy.cut_all();
    let (mut held, mut full) = (Vec::new(), 0);
    while full < 20 {
        match hold(&url).await {
            Some(connection) => held.push(connection),
            None => {
                full += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    server.signal("CONT").await;
    let (stored, refused) = post_meanwhile(&server).await;
    assert!(refused > 5, "{refused} refused, {} stored", stored.len());
    assert_eq!(server.api_with(None).get("/readyz").await.status, 503);
    assert_eq!(server.api_with(None).get("/healthz").await.status, 200);

    drop(held);
    recovers(&server, &stored).await;
    assert_eq!(server.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_connections_to_postgres_it_refuses_and_recovers() {
    let start =
        || PostgresServer::start_with_settings(&["max_connections=60", "superuser_reserved_connections=0"]);
    // On this thread, which lasts: a server ends with the thread that started it.
    let server = tokio::task::block_in_place(start);
    let hold = async |url: &str| {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.ok()?;
        Some((client, tokio::spawn(connection)))
    };
    no_connection_is_left(server.url(), hold, Box::new(server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_connections_to_mysql_it_refuses_and_recovers() {
    let start = || MariaDbServer::start_with(&["--max-connections=60", "--extra-max-connections=1"]);
    // On this thread, which lasts: a server ends with the thread that started it.
    let server = tokio::task::block_in_place(start);
    mariadb::execute(&server.url(), "CREATE DATABASE crowded").await;
    let url = format!("{}/crowded", server.url());
    let hold = async |url: &str| mysql_async::Conn::from_url(url).await.ok();
    no_connection_is_left(url, hold, Box::new(server)).await;
}

/// The database is read-only for a while: a standby, or an administrator's doing. It can be read all the time.
async fn takes_no_writes(installation: &Installation, set: impl AsyncFn(bool)) {
    let server = installation.serve().await;
    let (_receiver, first) = has_delivered(&server).await;
    let api = server.api();

    set(true).await;
    let (stored, refused) = post_meanwhile(&server).await;
    assert!(refused > 5 && stored.is_empty(), "{refused} refused, {stored:?}");
    let refusal = api.post("/v1/events", &json!({"event_type": "t", "payload": 1})).await.expect(503);
    assert!(refusal["detail"].as_str().unwrap().contains("takes no writes"), "{refusal}");
    let unready = server.api_with(None).get("/readyz").await.expect(503);
    assert!(unready["detail"].as_str().unwrap().contains("read-only"), "{unready}");
    assert_eq!(server.api_with(None).get("/healthz").await.status, 200);
    assert_eq!(api.get(&format!("/v1/events/{first}")).await.status, 200, "reading goes on");

    set(false).await;
    recovers(&server, &stored).await;
    assert_eq!(server.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_postgres_is_told_and_recovered_from() {
    let installation = Installation::postgres().await;
    let name = installation.database_url().unwrap().rsplit_once('/').unwrap().1.to_owned();
    let set = async |read_only: bool| {
        let change = if read_only { "SET default_transaction_read_only = on" } else { "RESET ALL" };
        postgres::admin_execute(&format!("ALTER DATABASE \"{name}\" {change}")).await;
        // Sessions keep what they began with.
        let cut = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
        postgres::admin_execute(&cut).await;
    };
    takes_no_writes(&installation, set).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_mariadb_is_told_and_recovered_from() {
    // A server of its own, which the setting is for as a whole. On this thread, which lasts: a server ends with the thread that
    // started it.
    let server = tokio::task::block_in_place(MariaDbServer::start);
    let admin = server.url();
    // An administrator may write to a read-only server, a login with rights in one database may not.
    for sql in [
        "CREATE DATABASE kept",
        "CREATE USER 'app'@'127.0.0.1'",
        "GRANT ALL PRIVILEGES ON kept.* TO 'app'@'127.0.0.1'",
    ] {
        mariadb::execute(&admin, sql).await;
    }
    let url = format!("{}/kept", admin.replace("//admin@", "//app@"));
    let installation = Installation::on_server(&url).with("HOOKSAGA_DATABASE_ROLES", "off");
    let migrated = run(&installation, &["migrate"]).await;
    assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
    let set = async |read_only: bool| {
        mariadb::execute(&admin, &format!("SET GLOBAL read_only = {}", u8::from(read_only))).await;
    };
    takes_no_writes(&installation, set).await;
}

/// No descriptor is left for anything new: no attempt is spent on that, and all of it goes on afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_descriptors_nothing_is_spent_and_it_recovers() {
    let installation = Installation::sqlite().with("HOOKSAGA_RETRY_MAX_RETRY_LIMIT", "1");
    let server = installation.serve().await;
    let (api, receiver) = (server.api(), Receiver::start().await);
    api.verified_subscription("t", &receiver.url("/in")).await;
    // The connection of this request is there before, and ends with it: descriptors for one client and no more.
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count();
    let before = loud(&server);
    limit(&server, &format!("--nofile={open}:")).await;
    let began = Instant::now();
    let mut stored = Vec::new();
    while began.elapsed() < MISSING {
        let event = json!({"event_type": "t", "payload": 1});
        let post = tokio::time::timeout(Duration::from_millis(500), api.try_post("/v1/events", &event)).await;
        if let Ok(Some(answer)) = post
            && answer.status == 201
        {
            stored.push(answer.json()["id"].as_i64().unwrap());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lines = loud(&server) - before;
    assert!(lines <= MOST_LINES, "{lines} lines in {:?}", began.elapsed());
    limit(&server, "--nofile=1024:").await;
    recovers(&server, &stored).await;
    assert_eq!(server.terminate().await, Some(0));
}
