//! `hooksaga_append`: the cases that every outbox passes, and what only PostgreSQL has.

use crate::{
    adapter::{Database, fresh, name, options, superuser, value},
    migrating::{database_in, new_cluster},
};
use async_trait::async_trait;
use hooksaga_conformance::{
    TestDatabase as _, asked,
    outbox::{self, AppendCall, Application, Raised},
};
use hooksaga_postgres::migrate;
use hooksaga_saga::EventId;
use hooksaga_store::{
    EventFilter, IndexedList, PageRequest, Role, RoleMode, RouteLimits, ServerOptions, Stage, TenantScope,
};
use std::time::Duration;
use tokio_postgres::Client;

/// An application's session.
struct App(Client);

fn raised(error: &tokio_postgres::Error) -> Raised {
    let error = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
    Raised { sqlstate: error.code().code().to_owned(), message: error.message().to_owned() }
}

#[async_trait]
impl Application for App {
    async fn append(&mut self, call: &AppendCall) -> Result<i64, Raised> {
        let row = self
            .0
            .query_one(
                "SELECT hooksaga_append($1, $2, $3, $4, $5)",
                &[&call.event_type, &call.payload, &call.external_id, &call.tenant, &call.correlation_id],
            )
            .await;
        row.map(|row| row.get(0)).map_err(|error| raised(&error))
    }

    async fn execute(&mut self, sql: &str) -> Result<(), Raised> {
        self.0.batch_execute(sql).await.map_err(|error| raised(&error))
    }
}

/// A login of the cluster that has nothing, and a session of it.
async fn stranger(db: &Database) -> (String, App) {
    let login = format!("app_{}", name(&db.url));
    superuser(&db.url).await.batch_execute(&format!("CREATE ROLE {login} LOGIN")).await.unwrap();
    let url = db.url.replace("postgres://postgres@", &format!("postgres://{login}@"));
    (login, App(superuser(&url).await))
}

/// A login that may call the outbox.
async fn app(db: &Database) -> App {
    let (login, app) = stranger(db).await;
    let grant = format!("GRANT EXECUTE ON FUNCTION hooksaga_append TO {login}");
    superuser(&db.url).await.batch_execute(&grant).await.unwrap();
    app
}

#[tokio::test(flavor = "multi_thread")]
async fn it_validates_as_the_api_does() {
    let db = fresh().await;
    outbox::validates_as_the_api_does(&db, &mut app(&db).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_to_the_servers_payload_limit() {
    let db = fresh().await;
    outbox::keeps_to_the_servers_payload_limit(&db, &mut app(&db).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_knows_duplicates_and_conflicts() {
    let db = fresh().await;
    outbox::knows_duplicates_and_conflicts(&db, &mut app(&db).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_with_the_transaction() {
    let db = fresh().await;
    outbox::goes_with_the_transaction(&db, &mut app(&db).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_is_caught_up_with() {
    let db = fresh().await;
    outbox::a_late_commit_is_caught_up_with(&db, &mut app(&db).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_is_listed() {
    let db = fresh().await;
    outbox::a_late_commit_is_listed(&db, &mut app(&db).await).await;
}

/// It has its id before it has a transaction of its own: it takes the id, and then waits for whoever holds its external id.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_waited_for_another_transaction_is_listed() {
    let db = fresh().await;
    let session = async || App(superuser(&db.url).await);
    let (mut holder, mut waiter, mut others) = (session().await, session().await, session().await);
    let held = AppendCall { external_id: Some("x".to_owned()), ..AppendCall::new("1") };
    holder.execute("BEGIN").await.unwrap();
    holder.append(&held).await.unwrap();
    waiter.execute("BEGIN").await.unwrap();
    let waiting = tokio::spawn(async move {
        let id = waiter.append(&AppendCall { event_type: Some("late".to_owned()), ..held }).await.unwrap();
        (waiter, id)
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    others.append(&AppendCall::new("2")).await.unwrap();
    let stores = db.stores();
    let index = async || {
        for _ in 0..10 {
            stores.list_index.index(IndexedList::Events, 1000, Duration::ZERO).await.unwrap();
        }
    };
    index().await;
    holder.execute("ROLLBACK").await.unwrap();
    let (mut waiter, late) = waiting.await.unwrap();
    index().await;
    waiter.execute("COMMIT").await.unwrap();
    index().await;
    let filter = EventFilter { event_type: asked("late"), ..EventFilter::default() };
    let page = PageRequest { limit: 10, before: None };
    let found = stores.reader.events(page.of(&TenantScope::All, &filter)).await.unwrap().items;
    assert_eq!(found.iter().map(|event| event.id).collect::<Vec<_>>(), [EventId(late)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_delays_nobody_else() {
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let db = fresh().await;
        let mut app = app(&db).await;
        let sql = format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {isolation}");
        app.execute(&sql).await.unwrap();
        outbox::an_open_transaction_delays_nobody_else(&db, &mut app, isolation, true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_needs_execute_and_has_nothing_else() {
    let db = fresh().await;
    let (login, mut app) = stranger(&db).await;
    let denied = app.append(&AppendCall::new("1")).await.unwrap_err();
    assert_eq!(denied.sqlstate, "42501", "PUBLIC may not: {denied:?}");
    let owner = "SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE proname = 'hooksaga_append'";
    assert_eq!(value(&db.url, owner).await, "event_ingest_writer");
    let create = "SELECT has_schema_privilege('event_ingest_writer', current_schema(), 'CREATE')";
    assert_eq!(value(&db.url, create).await, "f", "only for the moment in which it was made");

    let admin = superuser(&db.url).await;
    admin.batch_execute(&format!("GRANT EXECUTE ON FUNCTION hooksaga_append TO {login}")).await.unwrap();
    app.append(&AppendCall::new("1")).await.unwrap();
    for sql in [
        "SELECT * FROM events",
        "INSERT INTO events (event_type, payload, correlation_id) VALUES ('t', '1', 'c')",
        "INSERT INTO unrouted_events (event_id) VALUES (1)",
        "SELECT * FROM ingest_limits",
        "UPDATE ingest_limits SET max_payload_bytes = 1",
        "SELECT nextval('events_id_seq')",
        "SET ROLE event_ingest_writer",
        "CREATE OR REPLACE FUNCTION hooksaga_append(text, text, text, text, text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    ] {
        assert_eq!(app.execute(sql).await.unwrap_err().sqlstate, "42501", "{sql}");
    }
    // A migration replaces the function, and what was granted stays.
    migrate(options(&db.url)).await.unwrap();
    app.append(&AppendCall::new("1")).await.unwrap();
    assert_eq!(value(&db.url, create).await, "f");
    // No component but ingestion may.
    for role in Role::ALL.iter().filter(|role| **role != Role::EventIngestWriter) {
        let session = db.as_role(*role).await.unwrap();
        let error = session.execute("SELECT hooksaga_append('t', '1')", &[]).await.unwrap_err();
        assert_eq!(raised(&error).sqlstate, "42501", "{role}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_settings_and_names_mean_nothing_inside() {
    let db = fresh().await;
    let mut app = app(&db).await;
    for sql in [
        // Under the names that the function uses, where a search path would look first.
        "CREATE TEMP TABLE events (LIKE pg_class)",
        "CREATE TEMP TABLE unrouted_events (event_id text)",
        "CREATE TEMP TABLE ingest_limits (id integer, max_payload_bytes bigint)",
        "INSERT INTO pg_temp.ingest_limits VALUES (1, 1000000000)",
        "CREATE FUNCTION pg_temp.octet_length(text) RETURNS integer LANGUAGE sql AS 'SELECT 0'",
        "CREATE FUNCTION pg_temp.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT 1/0'",
        "SET search_path = pg_temp, public",
        "SET standard_conforming_strings = off",
    ] {
        app.execute(sql).await.unwrap();
    }
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    let call = |payload: &str| AppendCall::new(payload);
    // The search path of the call itself is the caller's.
    let row = app.0.query_one("SELECT public.hooksaga_append('t', '{\"a\": 1}')", &[]).await.unwrap();
    assert_eq!(value(&db.url, "SELECT payload FROM public.events").await, "{\"a\": 1}");
    assert_eq!(
        value(&db.url, "SELECT event_id FROM public.unrouted_events").await,
        row.get::<_, i64>(0).to_string()
    );
    assert_eq!(app.append(&call(&long)).await.unwrap_err().sqlstate, "OX413");
    let settings =
        "SELECT array_to_string(proconfig, ';') || prosecdef FROM pg_proc WHERE proname = 'hooksaga_append'";
    let settings = value(&db.url, settings).await;
    assert!(settings.contains("search_path=public, pg_temp") && settings.ends_with("true"), "{settings}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roles_temporary_tables_do_not_stand_in_for_those_of_the_triggers() {
    let db = fresh().await;
    let shadowed = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'hooksaga%' \
                    AND proconfig::text LIKE '%search_path%' AND proconfig::text NOT LIKE '%, pg_temp%'";
    assert_eq!(value(&db.url, shadowed).await, "0");
    let session = db.as_role(Role::HistoryJanitor).await.unwrap();
    session
        .execute("INSERT INTO events (event_type, payload, correlation_id) VALUES ('t', '1', 'c')", &[])
        .await
        .unwrap_err();
    value(
        &db.url,
        "INSERT INTO events (event_type, payload, correlation_id) VALUES ('t', '1', 'c') RETURNING id",
    )
    .await;
    // As if the event were listed.
    session.batch_execute("CREATE TEMP TABLE removals (kind text, subject_id bigint)").await.unwrap();
    session.batch_execute("INSERT INTO pg_temp.removals SELECT 'event', id FROM events").await.unwrap();
    let refused = session.execute("DELETE FROM events", &[]).await.unwrap_err();
    assert_eq!(raised(&refused).sqlstate, "23001", "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_wakes_the_router_and_a_rollback_does_not() {
    let db = fresh().await;
    let mut app = app(&db).await;
    let mut listener = db.stores().wakeups.listen().await.unwrap().unwrap();
    for end in ["ROLLBACK", "COMMIT"] {
        app.execute("BEGIN").await.unwrap();
        app.append(&AppendCall::new("1")).await.unwrap();
        app.append(&AppendCall::new("2")).await.unwrap();
        let before = tokio::time::timeout(Duration::from_millis(200), listener.next()).await;
        assert!(before.is_err(), "{before:?}");
        app.execute(end).await.unwrap();
    }
    let heard = tokio::time::timeout(Duration::from_secs(5), listener.next()).await.unwrap().unwrap();
    assert_eq!(heard, Stage::Router);
}

/// A pass begins near the last event that it routed; what commits late stands far before that.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_is_found_by_the_next_pass() {
    let db = fresh().await;
    let (mut late, mut other) = (app(&db).await, App(superuser(&db.url).await));
    let stores = db.stores();
    let mut listener = stores.wakeups.listen().await.unwrap().unwrap();
    let route = async || {
        let limits = RouteLimits { events: 10_000, sagas: 100 };
        let routed = stores.router.route(limits, 5).await.unwrap();
        routed.events.into_iter().map(|event| event.event_id.0).collect::<Vec<_>>()
    };
    late.execute("BEGIN").await.unwrap();
    let held = late.append(&AppendCall::new("1")).await.unwrap();
    other.execute("SELECT hooksaga_append('t', '1') FROM generate_series(1, 5000)").await.unwrap();
    let mut hear_all = async || {
        while tokio::time::timeout(Duration::from_millis(100), listener.next()).await.is_ok() {}
    };
    hear_all().await;
    // The first pass looks at the whole queue, which happens once a second; the others come sooner.
    assert_eq!(route().await.len(), 5000);
    let before = other.append(&AppendCall::new("1")).await.unwrap();
    hear_all().await;
    assert_eq!(route().await, [before]);
    late.execute("COMMIT").await.unwrap();
    let beside = other.append(&AppendCall::new("1")).await.unwrap();
    hear_all().await;
    assert_eq!(route().await, [held, beside]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_newer_than_the_callers_snapshot_is_a_reason_to_try_again() {
    let db = fresh().await;
    let (mut first, mut second) = (app(&db).await, App(superuser(&db.url).await));
    first.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    first.append(&AppendCall::new("1")).await.unwrap();
    let id = second.append(&AppendCall::once("1", "x")).await.unwrap();
    assert_eq!(first.append(&AppendCall::once("1", "x")).await.unwrap_err().sqlstate, "40001");
    first.execute("ROLLBACK").await.unwrap();
    assert_eq!(first.append(&AppendCall::once("1", "x")).await, Ok(id));
    // One that has not ended is waited for, as long as the caller wants.
    second.execute("BEGIN").await.unwrap();
    second.append(&AppendCall::once("1", "y")).await.unwrap();
    first.execute("SET lock_timeout = '100ms'").await.unwrap();
    assert_eq!(first.append(&AppendCall::once("1", "y")).await.unwrap_err().sqlstate, "55P03");
    second.execute("ROLLBACK").await.unwrap();
    first.append(&AppendCall::once("other", "y")).await.unwrap_err();
    first.append(&AppendCall::once("3", "y")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_roles_it_belongs_to_the_login_and_roles_take_it_over() {
    let server = new_cluster().await;
    superuser(&server.url())
        .await
        .batch_execute("CREATE ROLE hosted LOGIN; CREATE ROLE shop LOGIN")
        .await
        .unwrap();
    let url = database_in(&server, "hosted_db", "OWNER hosted").await;
    let login = url.replace("postgres://postgres@", "postgres://hosted@");
    let off = ServerOptions { roles: RoleMode::Off, ..options(&login) };
    migrate(off.clone()).await.unwrap();
    migrate(off.clone()).await.unwrap();
    let owner = "SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE proname = 'hooksaga_append'";
    assert_eq!(value(&url, owner).await, "hosted");
    let mut shop = App(superuser(&url.replace("postgres://postgres@", "postgres://shop@")).await);
    assert_eq!(shop.append(&AppendCall::new("1")).await.unwrap_err().sqlstate, "42501");
    let grant = "GRANT EXECUTE ON FUNCTION hooksaga_append TO shop";
    superuser(&login).await.batch_execute(grant).await.unwrap();
    shop.append(&AppendCall::new("1")).await.unwrap();

    superuser(&server.url()).await.batch_execute("ALTER ROLE hosted CREATEROLE").await.unwrap();
    for (wanted, options) in [
        ("event_ingest_writer", options(&login)),
        ("event_ingest_writer", options(&login)),
        // Roles are off again: what is theirs stays so.
        ("event_ingest_writer", off),
    ] {
        migrate(options).await.unwrap();
        assert_eq!(value(&url, owner).await, wanted);
        shop.append(&AppendCall::new("1")).await.unwrap();
    }
}
