//! Connections: what goes wrong is said in a line, and what the server's defaults are does not matter.

use crate::adapter::{Database, failure, fresh, name, options, superuser, value};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_conformance::servers::says_how_to_migrate;
use hooksaga_postgres::{connect, connect_as_login, migrate};
use hooksaga_store::{Appended, NewEvent, Role, StoreError, TenantScope};
use hooksaga_testkit::postgres::{create_database, database_url};
use std::net::TcpListener;

fn event(external_id: Option<&str>) -> NewEvent {
    crate::adapter::event(external_id, "c")
}

/// The value of a setting in a role's session.
async fn setting(db: &Database, role: Role, name: &str) -> String {
    let client = db.as_role(role).await.unwrap();
    client.query_one("SELECT current_setting($1)", &[&name]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_unavailable() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("postgres://someone:hunter2@127.0.0.1:{port}/db");
    for error in [failure(connect(options(&url)).await), failure(migrate(options(&url)).await)] {
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_database_or_login_is_a_matter_of_set_up() {
    let missing = database_url("there_is_no_such_database");
    let stranger = database_url("postgres").replace("postgres://postgres@", "postgres://stranger@");
    for (url, part) in [(missing, "there_is_no_such_database"), (stranger, "stranger")] {
        let error = failure(connect(options(&url)).await);
        assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
        assert!(error.to_string().contains(part) && error.to_string().contains("database.url"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_a_schema_says_how_to_get_one() {
    let url = create_database("empty", None).await;
    says_how_to_migrate(&failure(connect(options(&url)).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_host_that_answers_is_used() {
    let db = fresh().await;
    let (login, rest) = db.url.split_once("127.0.0.1").unwrap();
    let url = format!("{login}127.0.0.1:1,127.0.0.1{rest}?target_session_attrs=read-write");
    assert!(connect(options(&url)).await.unwrap().stores().reader.ready().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_defaults_do_not_matter() {
    let db = fresh().await;
    let database = name(&db.url);
    for default in [
        "TimeZone = 'Asia/Kathmandu'",
        "default_transaction_isolation = 'serializable'",
        "synchronous_commit = off",
        "statement_timeout = 1",
    ] {
        superuser(&db.url)
            .await
            .batch_execute(&format!(
                r#"SET statement_timeout = 0; ALTER DATABASE "{database}" SET {default}"#
            ))
            .await
            .unwrap();
    }
    assert_eq!(setting(&db, Role::SagaOrchestrator, "TimeZone").await, "UTC");
    assert_eq!(setting(&db, Role::SagaOrchestrator, "transaction_isolation").await, "read committed");
    assert_eq!(setting(&db, Role::SagaOrchestrator, "statement_timeout").await, "30s");

    let stores = db.second_instance().await;
    let Appended::Created(created) = stores.ingest.append(&[event(Some("x"))]).await.unwrap().remove(0)
    else {
        panic!("not created");
    };
    let read = stores.reader.event(&TenantScope::All, created.id).await.unwrap().unwrap();
    assert_eq!(read.head, created);
    let age = stores.reader.stats(&TenantScope::All).await.unwrap().now.since(created.created_at);
    assert!(age.as_secs() < 60, "{age:?}");
    let again = stores.ingest.append(&[event(Some("x"))]).await.unwrap();
    assert_eq!(again, [Appended::Duplicate(created)]);
}

/// `local` would not wait for a synchronous standby: what was accepted could be lost with the primary.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_must_not_lose_a_commit_waits_for_the_standby() {
    let db = fresh().await;
    let database = name(&db.url);
    for (default, used) in
        [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply"), ("remote_write", "remote_write")]
    {
        let sql = format!(r#"ALTER DATABASE "{database}" SET synchronous_commit = {default}"#);
        superuser(&db.url).await.batch_execute(&sql).await.unwrap();
        let client = connect_as_login(&db.url).await.unwrap();
        let found: String = client.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0);
        assert_eq!(found, used, "{default}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_run_as_their_role_and_say_so() {
    let db = fresh().await;
    for role in Role::ALL {
        let client = db.as_role(*role).await.unwrap();
        let sql = "SELECT current_user::text, current_setting('application_name')";
        let row = client.query_one(sql, &[]).await.unwrap();
        assert_eq!((row.get(0), row.get(1)), (role.as_str(), format!("hooksaga/{role}")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_every_connection_is_used_again() {
    let db = fresh().await;
    let stores = db.stores();
    stores.ingest.append(&[event(None)]).await.unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE datname = current_database() AND application_name LIKE 'hooksaga/%'";
    assert_ne!(value(&db.url, end).await, "0");
    // The first call may still find the old connection; it says so, and the next one gets a new one.
    match stores.ingest.append(&[event(None)]).await {
        Ok(_) => {}
        Err(error) => assert!(error.is_transient(), "{error:?}"),
    }
    stores.ingest.append(&[event(None)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_tried_again() {
    let db = fresh().await;
    let mut rival = superuser(&db.url).await;
    // The server has to notice before ingestion gives up on the lock.
    let sooner = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = 100', current_database()); END $$";
    rival.batch_execute(sooner).await.unwrap();
    let stores = db.second_instance().await;
    // Somebody holds external id "b" and then wants "a"; the batch holds "a" and wants "b".
    rival.batch_execute("SET deadlock_timeout = '60s'").await.unwrap();
    let insert = "INSERT INTO events (event_type, payload, external_id, correlation_id) VALUES ('t', '1', $1::text, 'r')";
    let transaction = rival.transaction().await.unwrap();
    transaction.execute(insert, &[&"b"]).await.unwrap();
    let batch =
        tokio::spawn(async move { stores.ingest.append(&[event(Some("a")), event(Some("b"))]).await });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                 AND application_name = 'hooksaga/event_ingest_writer' AND wait_event_type = 'Lock'";
    while value(&db.url, waits).await == "0" {
        tokio::task::yield_now().await;
    }
    // The batch is the one that notices, loses, and comes back when the rival is done.
    transaction.execute(insert, &[&"a"]).await.unwrap();
    transaction.commit().await.unwrap();
    let answers = batch.await.unwrap().unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Appended::Conflict { .. })), "{answers:?}");
}
