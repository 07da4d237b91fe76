//! Connections: each error is one clear line, the server's defaults do not matter (the test kit's server has unusual ones), and
//! the log says what the rights protect against.

use crate::adapter::{Database, failure, fresh, name, options, owner, text_rows, value};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_conformance::servers::says_how_to_migrate;
use hooksaga_mysql::{Fence, connect, migrate, role_name};
use hooksaga_saga::{CorrelationId, EventType, ExternalId, Tenant};
use hooksaga_store::{
    Appended, NewEvent, Role, RoleMode, RouteLimits, ServerOptions, Stage, StoreError, TenantScope,
};
use hooksaga_testkit::mariadb::{MariaDbServer, admin_execute, admin_url, create_database, database_url};
use mysql_async::prelude::Queryable as _;
use std::{net::TcpListener, sync::Arc, time::Duration};

pub(crate) fn event(payload: &str, external_id: Option<&str>) -> NewEvent {
    NewEvent {
        tenant: "default".parse::<Tenant>().unwrap(),
        event_type: "t".parse::<EventType>().unwrap(),
        payload: Arc::from(payload),
        external_id: external_id.map(|id| id.parse::<ExternalId>().unwrap()),
        correlation_id: "c".parse::<CorrelationId>().unwrap(),
    }
}

/// The value of a setting in a role's session.
async fn setting(db: &Database, role: Role, name: &str) -> String {
    let mut connection = db.as_role(role).await.unwrap();
    text_rows(&mut connection, &format!("SELECT @@{name}")).await.unwrap().remove(0).remove(0).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_unavailable() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("mysql://someone:hunter2@127.0.0.1:{port}/db");
    for error in [failure(connect(options(&url)).await), failure(migrate(options(&url)).await)] {
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&port.to_string()) && !text.contains("hunter2"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_database_or_login_is_a_matter_of_set_up() {
    let missing = database_url("there_is_no_such_database");
    let stranger = database_url("mysql").replace("mysql://admin@", "mysql://stranger:hunter2@");
    for (url, part) in [(missing, "there_is_no_such_database"), (stranger, "stranger")] {
        for error in [failure(connect(options(&url)).await), failure(migrate(options(&url)).await)] {
            assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(part) && !text.contains("hunter2"), "{text}");
        }
    }
    let error = failure(connect(options(&admin_url())).await);
    assert!(matches!(error, StoreError::Setup(_)) && error.to_string().contains("database.url"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_a_schema_says_how_to_get_one() {
    let url = create_database("empty").await;
    says_how_to_migrate(&failure(connect(options(&url)).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_defaults_do_not_matter() {
    let db = fresh().await;
    assert_eq!(value(&db.url, "SELECT @@global.time_zone").await, "+05:45", "the server is set up unusually");
    for (name, expected) in [
        ("time_zone", "+00:00"),
        ("tx_isolation", "READ-COMMITTED"),
        ("character_set_client", "utf8mb4"),
        ("innodb_lock_wait_timeout", "2"),
        ("idle_transaction_timeout", "10"),
    ] {
        assert_eq!(setting(&db, Role::SagaOrchestrator, name).await, expected, "{name}");
    }
    assert_eq!(setting(&db, Role::RouterWorker, "innodb_lock_wait_timeout").await, "5");
    assert!(setting(&db, Role::SagaOrchestrator, "sql_mode").await.contains("STRICT_ALL_TABLES"));
    let stores = db.stores();
    let Appended::Created(created) =
        stores.ingest.append(&[event("\"ä🦀\"", Some("x"))]).await.unwrap().remove(0)
    else {
        panic!("not created");
    };
    let read = stores.reader.event(&TenantScope::All, created.id).await.unwrap().unwrap();
    assert_eq!((&read.head, &*read.payload), (&created, "\"ä🦀\""));
    let age = stores.reader.stats(&TenantScope::All).await.unwrap().now.since(created.created_at);
    assert!(age.as_secs() < 60, "{age:?}");
    let utc = "SELECT ABS(TIMESTAMPDIFF(SECOND, MAX(created_at), UTC_TIMESTAMP())) < 60 FROM events";
    assert_eq!(value(&db.url, utc).await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn identifiers_are_text_that_is_compared_byte_by_byte() {
    let db = fresh().await;
    let stores = db.stores();
    let ids = ["a", "A", "a.", "aa"];
    let events: Vec<_> = ids.iter().map(|id| event("1", Some(id))).collect();
    let answers = stores.ingest.append(&events).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Appended::Created(_))), "{answers:?}");
    let again = stores.ingest.append(&[event("1", Some("A")), event("1 ", Some("a"))]).await.unwrap();
    assert!(matches!(again.as_slice(), [Appended::Duplicate(_), Appended::Conflict { .. }]), "{again:?}");

    // Names are validated before they come here; whatever did come, one that ends with a blank would be equal to the one
    // without it (PAD SPACE), so it is refused, as is one that is not ASCII.
    for id in ["a ", "ä"] {
        let insert = format!(
            "INSERT INTO events (event_type, payload, external_id, correlation_id) VALUES ('t', '1', '{id}', 'c')"
        );
        let error = failure(db.execute_as_owner(&insert).await);
        assert!(matches!(error, StoreError::Refused(_)), "{id:?}: {error:?}");
    }
    let binary = "SELECT GROUP_CONCAT(table_name, '.', column_name) FROM information_schema.columns \
                  WHERE table_schema = DATABASE() AND data_type = 'varbinary'";
    assert_eq!(value(&db.url, binary).await, "subscription_secrets.sealed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_larger_than_a_packet_is_split() {
    let start = || MariaDbServer::start_with(&["--max-allowed-packet=4M"]);
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    hooksaga_testkit::mariadb::execute(&server.url(), "CREATE DATABASE small").await;
    let url = format!("{}/small", server.url());
    migrate(options(&url)).await.unwrap();
    let stores = connect(options(&url)).await.unwrap().stores();
    let events: Vec<_> =
        (0..20).map(|n| event(&format!("\"{n}{}\"", "x".repeat(900_000)), Some(&format!("x-{n}")))).collect();
    let answers = stores.ingest.append(&events).await.unwrap();
    for (event, answer) in events.iter().zip(&answers) {
        let Appended::Created(head) = answer else { panic!("not created") };
        assert_eq!(
            stores.reader.event(&TenantScope::All, head.id).await.unwrap().unwrap().payload,
            event.payload
        );
    }
    // Comparing reads no more than it needs at a time.
    let again = stores.ingest.append(&events).await.unwrap();
    assert!(again.iter().all(|answer| matches!(answer, Appended::Duplicate(_))));
    // One that cannot fit is refused, and says what to set.
    let error = failure(stores.ingest.append(&[event(&"x".repeat(5 << 20), None)]).await);
    assert!(error.to_string().contains("max_allowed_packet"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_too_small_packets_is_refused_at_the_start() {
    let start = || MariaDbServer::start_with(&["--max-allowed-packet=1M"]);
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    hooksaga_testkit::mariadb::execute(&server.url(), "CREATE DATABASE tiny").await;
    let url = format!("{}/tiny", server.url());
    migrate(options(&url)).await.unwrap();
    let error = failure(connect(options(&url)).await);
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("max_allowed_packet"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kind_of_fence_is_known() {
    let db = fresh().await;
    let fence = |options: ServerOptions| async { connect(options).await.unwrap().fence() };
    assert_eq!(fence(options(&db.plain_url)).await, Fence::Switch);
    assert_eq!(fence(options(&db.url)).await, Fence::OwnRights);
    assert_eq!(fence(ServerOptions { roles: RoleMode::Off, ..options(&db.url) }).await, Fence::Off);
    for fence in [Fence::Switch, Fence::OwnRights, Fence::LoginPerRole, Fence::Off] {
        assert!(!fence.to_string().contains('\n'));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_per_role_works_with_its_default_role() {
    let db = fresh().await;
    let database = name(&db.url);
    let mut split = options(&db.url);
    for (number, role) in Role::ALL.iter().enumerate() {
        let (login, granted) = (format!("l{number}_{database}"), role_name(database, *role));
        admin_execute(&format!("CREATE USER '{login}'@'127.0.0.1' IDENTIFIED BY 'pw'")).await;
        admin_execute(&format!("GRANT '{granted}' TO '{login}'@'127.0.0.1'")).await;
        admin_execute(&format!("SET DEFAULT ROLE '{granted}' FOR '{login}'@'127.0.0.1'")).await;
        split.role_urls.insert(*role, db.url.replace("mysql://admin@", &format!("mysql://{login}:pw@")));
    }
    let opened = connect(split).await.unwrap();
    assert_eq!(opened.fence(), Fence::LoginPerRole);
    opened.stores().ingest.append(&[event("1", None)]).await.unwrap();
    assert_eq!(
        opened.stores().router.route(RouteLimits { events: 10, sagas: 10 }, 5).await.unwrap().events.len(),
        1
    );
    for number in 0..Role::ALL.len() {
        admin_execute(&format!("DROP USER 'l{number}_{database}'@'127.0.0.1'")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_every_connection_is_used_again() {
    let db = fresh().await;
    let stores = db.stores();
    stores.ingest.append(&[event("1", None)]).await.unwrap();
    let mut connection = owner(&db.url).await;
    let sql = format!("SELECT id FROM information_schema.processlist WHERE user = '{}'", name(&db.url));
    let ids: Vec<u64> = connection.query(sql).await.unwrap();
    assert!(!ids.is_empty());
    for id in ids {
        connection.query_drop(format!("KILL {id}")).await.unwrap();
    }
    // The first call may still find the old connection; it says so, and the next one gets a new one.
    match stores.ingest.append(&[event("1", None)]).await {
        Ok(_) => {}
        Err(error) => assert!(error.is_transient(), "{error:?}"),
    }
    stores.ingest.append(&[event("1", None)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_tried_again() {
    let db = fresh().await;
    // Somebody holds the second row that a call wants, and then wants the first, which the call holds. The rival has
    // written more, so the call is the one that the server gives up on.
    let mut rival = owner(&db.url).await;
    let add = |stage: &str| format!("UPDATE wake_signals SET sent = sent + 1 WHERE stage = '{stage}'");
    rival.query_drop("START TRANSACTION").await.unwrap();
    for n in 0..50 {
        rival
            .query_drop(format!("INSERT INTO workers (id, slots, version) VALUES ({n}, 1, 'x')"))
            .await
            .unwrap();
    }
    rival.query_drop(add("worker")).await.unwrap();
    let wakeups = db.stores().wakeups;
    let call = tokio::spawn(async move { wakeups.notify(&[Stage::Router, Stage::Worker]).await });
    let waits = format!(
        "SELECT COUNT(*) FROM information_schema.processlist \
         WHERE user = '{}' AND info LIKE '%wake.notify%' AND time_ms > 200",
        name(&db.url)
    );
    while value(&db.url, &waits).await == "0" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    rival.query_drop(add("router")).await.unwrap();
    rival.query_drop("COMMIT").await.unwrap();
    call.await.unwrap().unwrap();
    let sent = "SELECT GROUP_CONCAT(sent) FROM wake_signals WHERE stage IN ('router', 'worker')";
    assert_eq!(value(&db.url, sent).await, "2,2");
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_cross_processes_soon_and_a_listener_that_is_cut_off_says_so() {
    let db = fresh().await;
    let mut listener = db.second_instance().await.wakeups.listen().await.unwrap().unwrap();
    let wakeups = db.stores().wakeups;
    for _ in 0..3 {
        let sent = std::time::Instant::now();
        wakeups.notify(&[Stage::Router]).await.unwrap();
        assert_eq!(listener.next().await.unwrap(), Stage::Router);
        assert!(sent.elapsed() < Duration::from_millis(500), "{:?}", sent.elapsed());
    }
    let quiet = tokio::time::timeout(Duration::from_millis(1050), listener.next()).await;
    assert!(quiet.is_err(), "nobody sent anything");
    let end = format!(
        "SELECT id FROM information_schema.processlist WHERE user = '{}' AND info IS NULL",
        name(&db.url)
    );
    let mut connection = owner(&db.url).await;
    let ids: Vec<u64> = connection.query(end).await.unwrap();
    for id in ids {
        connection.query_drop(format!("KILL {id}")).await.unwrap();
    }
    let error = listener.next().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}
