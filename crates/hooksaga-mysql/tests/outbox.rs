//! `hooksaga_append`: the cases that every outbox passes, and what only MySQL and MariaDB have.

use crate::adapter::{Database, fresh, name, options, owner, value};
use async_trait::async_trait;
use hooksaga_conformance::{
    TestDatabase as _,
    outbox::{self, AppendCall, Application, Raised},
};
use hooksaga_mysql::{migrate, role_name};
use hooksaga_store::{IndexedList, Role, RoleMode, RouteLimits, ServerOptions, Stage, StoreError};
use hooksaga_testkit::mariadb::{admin_execute, create_database};
use mysql_async::{Conn, Error, Opts, prelude::Queryable as _};
use std::time::{Duration, Instant};

/// An application's session, with the server's own defaults.
struct App {
    connection: Conn,
    procedure: String,
}

fn raised(error: Error) -> Raised {
    match error {
        Error::Server(error) => Raised { sqlstate: error.state, message: error.message },
        other => panic!("{other:?}"),
    }
}

#[async_trait]
impl Application for App {
    async fn append(&mut self, call: &AppendCall) -> Result<i64, Raised> {
        let call = call.clone();
        let arguments = (call.event_type, call.payload, call.external_id, call.tenant, call.correlation_id);
        let rows: Vec<i64> = self
            .connection
            .exec(format!("CALL {}(?, ?, ?, ?, ?)", self.procedure), arguments)
            .await
            .map_err(raised)?;
        assert_eq!(rows.len(), 1, "one row");
        Ok(rows[0])
    }

    async fn execute(&mut self, sql: &str) -> Result<(), Raised> {
        self.connection.query_drop(sql).await.map_err(raised)
    }
}

/// A login without rights, and a session of it. (The session names the database in its statements; to enter it would need a
/// right, too.)
async fn stranger(url: &str) -> (String, App) {
    let database = name(url);
    let login = format!("'app_{database}'@'127.0.0.1'");
    admin_execute(&format!("CREATE USER IF NOT EXISTS {login}")).await;
    let server = url.rsplit_once('/').unwrap().0;
    let opts =
        Opts::from_url(&server.replace("mysql://admin@", &format!("mysql://app_{database}@"))).unwrap();
    let mut connection = Conn::new(opts).await.unwrap();
    connection.query_drop("SET NAMES utf8mb4").await.unwrap();
    (login, App { connection, procedure: format!("`{database}`.hooksaga_append") })
}

/// A login that may call the outbox.
async fn app(url: &str) -> App {
    let (login, app) = stranger(url).await;
    admin_execute(&format!("GRANT EXECUTE ON PROCEDURE {} TO {login}", app.procedure)).await;
    app
}

/// How many events there are, and how many are queued.
async fn stored(db: &Database) -> String {
    let counts = "SELECT CONCAT((SELECT COUNT(*) FROM events), ' ', (SELECT COUNT(*) FROM unrouted_events))";
    value(&db.url, counts).await
}

/// Otherwise a caller could assign an id twice, or the largest possible one: then no event could be stored any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_does_not_choose_the_id() {
    let db = fresh().await;
    let mut app = app(&db.url).await;
    let first = app.append(&AppendCall::new("1")).await.unwrap();
    for id in [first, first + 1_000_000, i64::MAX] {
        app.execute(&format!("SET insert_id = {id}")).await.unwrap();
        assert_eq!(app.append(&AppendCall::new("2")).await.unwrap_err().sqlstate, "OX422", "{id}");
    }
    // Zero is no id either: where it does not mean that nothing is set, it is refused.
    app.execute("SET insert_id = 0").await.unwrap();
    let zero = app.append(&AppendCall::new("3")).await;
    assert!(zero.as_ref().map_or_else(|error| error.sqlstate == "OX422", |id| *id > first), "{zero:?}");
    let next = app.append(&AppendCall::new("4")).await.unwrap();
    assert!((first + 1..first + 100).contains(&next), "{next} after {first}");
    assert_eq!(
        value(&db.url, "SELECT CONCAT(MIN(id), ' ', MAX(id)) FROM events").await,
        format!("{first} {next}")
    );
}

/// Otherwise an `external_id` could be stored twice, or the first event of a table could lock all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_does_not_turn_unique_checks_off() {
    let db = fresh().await;
    let mut app = app(&db.url).await;
    for sql in ["SET foreign_key_checks = 0", "SET unique_checks = 0"] {
        app.execute(sql).await.unwrap();
    }
    assert_eq!(app.append(&AppendCall::once("1", "a")).await.unwrap_err().sqlstate, "OX422");
    app.execute("SET unique_checks = 1").await.unwrap();
    app.append(&AppendCall::once("1", "a")).await.unwrap();
    assert_eq!(stored(&db).await, "1 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_validates_as_the_api_does() {
    let db = fresh().await;
    let mut app = app(&db.url).await;
    // What a pattern means to the caller does not matter.
    app.execute("SET default_regex_flags = 'EXTENDED,MULTILINE,DOTALL'").await.unwrap();
    outbox::validates_as_the_api_does(&db, &mut app).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_to_the_servers_payload_limit() {
    let db = fresh().await;
    outbox::keeps_to_the_servers_payload_limit(&db, &mut app(&db.url).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_knows_duplicates_and_conflicts() {
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let db = fresh().await;
        let mut app = app(&db.url).await;
        app.execute(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")).await.unwrap();
        outbox::knows_duplicates_and_conflicts(&db, &mut app).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_with_the_transaction() {
    let db = fresh().await;
    outbox::goes_with_the_transaction(&db, &mut app(&db.url).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_is_caught_up_with() {
    let db = fresh().await;
    outbox::a_late_commit_is_caught_up_with(&db, &mut app(&db.url).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_is_listed() {
    let db = fresh().await;
    outbox::a_late_commit_is_listed(&db, &mut app(&db.url).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_from_the_future_does_not_keep_others_from_being_indexed() {
    let db = fresh().await;
    let mut app = app(&db.url).await;
    app.execute("SET timestamp = 4102444800").await.unwrap();
    app.append(&AppendCall::new("1")).await.unwrap();
    app.execute("SET timestamp = DEFAULT").await.unwrap();
    let last = app.append(&AppendCall::new("2")).await.unwrap();
    let stores = db.stores();
    for _ in 0..5 {
        stores.list_index.index(IndexedList::Events, 1000, Duration::ZERO).await.unwrap();
    }
    let below = value(&db.url, "SELECT below FROM list_progress WHERE list = 2").await;
    assert_eq!(below, (last + 1).to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_delays_nobody_else() {
    for (isolation, with_duplicate) in
        [("READ COMMITTED", true), ("REPEATABLE READ", true), ("SERIALIZABLE", false)]
    {
        let db = fresh().await;
        let mut app = app(&db.url).await;
        app.execute(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")).await.unwrap();
        outbox::an_open_transaction_delays_nobody_else(&db, &mut app, isolation, with_duplicate).await;
    }
}

/// A session shows its own isolation level, not that of one transaction. docs/OUTBOX.md says what this costs; with the session's
/// level a neighbouring id is stored at once.
#[tokio::test(flavor = "multi_thread")]
async fn serializable_for_one_transaction_locks_the_gap_of_a_new_external_id() {
    for (set, neighbour) in [
        ("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", None),
        ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", Some("OX423")),
    ] {
        let db = fresh().await;
        let (mut first, mut second) = (app(&db.url).await, app(&db.url).await);
        for sql in ["SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", set, "BEGIN"] {
            first.execute(sql).await.unwrap();
        }
        first.append(&AppendCall::once("1", "m")).await.unwrap();
        let answer = second.append(&AppendCall::once("1", "n")).await;
        assert_eq!(answer.err().map(|error| error.sqlstate).as_deref(), neighbour, "{set}");
        first.execute("COMMIT").await.unwrap();
        second.append(&AppendCall::once("1", "n")).await.unwrap();
    }
}

/// Two transactions store the same two `external_id`s in opposite order: the server rolls one of them back as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_undoes_the_whole_transaction() {
    let db = fresh().await;
    let (mut first, mut second) = (app(&db.url).await, app(&db.url).await);
    let database = name(&db.url);
    admin_execute(&format!("CREATE TABLE `{database}`.orders (note TEXT)")).await;
    admin_execute(&format!("GRANT SELECT, INSERT ON `{database}`.orders TO 'app_{database}'@'127.0.0.1'"))
        .await;
    for (session, note, id) in [(&mut first, "first", "a"), (&mut second, "second", "b")] {
        session.execute("BEGIN").await.unwrap();
        session.execute(&format!("INSERT INTO `{database}`.orders VALUES ('{note}')")).await.unwrap();
        session.append(&AppendCall::once("1", id)).await.unwrap();
    }
    let (of_first, of_second) = (AppendCall::once("1", "b"), AppendCall::once("1", "a"));
    let (first_got, second_got) = tokio::join!(first.append(&of_first), second.append(&of_second));
    let (undone, kept, survivor) = match (&first_got, &second_got) {
        (Err(error), _) if error.sqlstate == "40001" => (&mut first, &mut second, "second"),
        (_, Err(error)) if error.sqlstate == "40001" => (&mut second, &mut first, "first"),
        both => panic!("no deadlock: {both:?}"),
    };
    for (session, open) in [(undone, 0), (kept, 1)] {
        let found: Option<i64> = session.connection.query_first("SELECT @@in_transaction").await.unwrap();
        assert_eq!(found, Some(open), "of the one that failed nothing is left");
        session.execute("COMMIT").await.unwrap();
    }
    let orders = format!("SELECT GROUP_CONCAT(note) FROM `{database}`.orders");
    assert_eq!(value(&db.url, &orders).await, survivor, "the application's own row is gone, too");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_needs_execute_and_has_nothing_else() {
    let db = fresh().await;
    let database = name(&db.url);
    let (login, mut app) = stranger(&db.url).await;
    assert_eq!(
        app.append(&AppendCall::new("1")).await.unwrap_err().sqlstate,
        "42000",
        "nobody may by himself"
    );
    admin_execute(&format!("GRANT EXECUTE ON PROCEDURE {} TO {login}", app.procedure)).await;
    app.append(&AppendCall::new("1")).await.unwrap();
    for sql in ["SELECT * FROM events", "SELECT * FROM ingest_limits", "DELETE FROM unrouted_events"] {
        let sql = sql.replace("FROM ", &format!("FROM `{database}`."));
        assert_eq!(app.execute(&sql).await.unwrap_err().sqlstate, "42000", "{sql}");
    }
    let insert = format!(
        "INSERT INTO `{database}`.events (event_type, payload, correlation_id) VALUES ('t', '1', 'c')"
    );
    assert_eq!(app.execute(&insert).await.unwrap_err().sqlstate, "42000");
    let drop = format!("DROP PROCEDURE {}", app.procedure);
    assert_eq!(app.execute(&drop).await.unwrap_err().sqlstate, "42000");

    let definer = "SELECT definer FROM information_schema.routines WHERE routine_schema = DATABASE()";
    let role = role_name(database, Role::EventIngestWriter);
    assert_eq!(value(&db.url, definer).await.trim_end_matches('@'), role, "it has ingestion's rights");
    // A migration that finds it as it should be leaves it; one that does not replaces it, and what was granted stays.
    migrate(options(&db.url)).await.unwrap();
    admin_execute(&format!("ALTER PROCEDURE {} COMMENT 'old'", app.procedure)).await;
    migrate(options(&db.url)).await.unwrap();
    let comment = "SELECT routine_comment FROM information_schema.routines WHERE routine_schema = DATABASE()";
    assert!(value(&db.url, comment).await.starts_with("hooksaga "));
    app.append(&AppendCall::new("1")).await.unwrap();
    // No component but ingestion may.
    let call = format!("CALL {}('t', '1', NULL, NULL, NULL)", app.procedure);
    for role in Role::ALL.iter().filter(|role| **role != Role::EventIngestWriter) {
        let denied = db.execute_as(*role, &call).await;
        assert!(matches!(denied, Err(StoreError::Denied(_))), "{role}: {denied:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_the_middle_leaves_nothing_and_the_callers_work_alone() {
    let db = fresh().await;
    let database = name(&db.url);
    let mut app = app(&db.url).await;
    let role = role_name(database, Role::EventIngestWriter);
    admin_execute(&format!(
        "CREATE TABLE `{database}`.orders (id INT AUTO_INCREMENT PRIMARY KEY, note TEXT)"
    ))
    .await;
    admin_execute(&format!("GRANT SELECT, INSERT ON `{database}`.orders TO 'app_{database}'@'127.0.0.1'"))
        .await;
    let order = format!("INSERT INTO `{database}`.orders (note) VALUES ('x')");
    // The event can be written, its place in the queue cannot.
    admin_execute(&format!("REVOKE INSERT ON `{database}`.unrouted_events FROM '{role}'")).await;
    for autocommit in [1, 0] {
        app.execute(&format!("SET autocommit = {autocommit}")).await.unwrap();
        let patience: Option<i64> =
            app.connection.query_first("SELECT @@innodb_lock_wait_timeout").await.unwrap();
        assert_eq!(app.append(&AppendCall::once("1", "a")).await.unwrap_err().sqlstate, "42000");
        app.execute("COMMIT").await.unwrap();
        assert_eq!(stored(&db).await, "0 0", "autocommit {autocommit}");
        let after: Option<i64> =
            app.connection.query_first("SELECT @@innodb_lock_wait_timeout").await.unwrap();
        assert_eq!(after, patience);
    }
    app.execute("SET autocommit = 1").await.unwrap();
    app.execute("BEGIN").await.unwrap();
    app.execute(&order).await.unwrap();
    app.append(&AppendCall::once("1", "a")).await.unwrap_err();
    app.execute("COMMIT").await.unwrap();
    assert_eq!(stored(&db).await, "0 0");
    assert_eq!(value(&db.url, "SELECT COUNT(*) FROM orders").await, "1", "the caller decides about its own");

    admin_execute(&format!("GRANT INSERT ON `{database}`.unrouted_events TO '{role}'")).await;
    app.append(&AppendCall::once("1", "a")).await.unwrap();
    assert_eq!(stored(&db).await, "1 1", "without a transaction it is one of its own");
    app.execute("SET autocommit = 0").await.unwrap();
    app.append(&AppendCall::once("1", "b")).await.unwrap();
    app.execute("ROLLBACK").await.unwrap();
    assert_eq!(stored(&db).await, "1 1");
    app.execute("SET autocommit = 1").await.unwrap();
    app.execute("BEGIN").await.unwrap();
    app.execute(&order).await.unwrap();
    app.append(&AppendCall::new("2")).await.unwrap();
    let last: Option<i64> = app.connection.query_first("SELECT LAST_INSERT_ID()").await.unwrap();
    app.execute("COMMIT").await.unwrap();
    let orders = value(&db.url, "SELECT MAX(id) FROM orders").await;
    assert_eq!(last.unwrap().to_string(), orders, "the id of the caller's own row");
    assert_eq!(stored(&db).await, "2 2");
}

/// There is no signal for appended events; while some come, the next ones are expected.
#[tokio::test(flavor = "multi_thread")]
async fn while_events_are_appended_each_is_found_soon() {
    let db = fresh().await;
    let mut app = app(&db.url).await;
    let stores = db.stores();
    let mut listener = stores.wakeups.listen().await.unwrap().unwrap();
    let mut took = Vec::new();
    for n in 0..31 {
        // Not in step with the polls.
        tokio::time::sleep(Duration::from_millis(30 + n * 3)).await;
        let began = Instant::now();
        app.append(&AppendCall::new("1")).await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(10), listener.next()).await;
        assert_eq!(heard.expect("it is found").unwrap(), Stage::Router);
        took.push(began.elapsed());
        let limits = RouteLimits { events: 10, sagas: 10 };
        assert_eq!(stores.router.route(limits, 5).await.unwrap().events.len(), 1);
    }
    took.sort_unstable();
    assert!(took[took.len() / 2] < Duration::from_millis(35), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_held_or_newer_than_the_callers_snapshot() {
    let db = fresh().await;
    let (mut first, mut second) = (app(&db.url).await, app(&db.url).await);
    for session in [&mut first, &mut second] {
        session.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    }
    first.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT").await.unwrap();
    let id = second.append(&AppendCall::once("1", "x")).await.unwrap();
    assert_eq!(first.append(&AppendCall::once("1", "x")).await, Ok(id));
    assert_eq!(first.append(&AppendCall::once("2", "x")).await.unwrap_err().sqlstate, "OX409");
    first.execute("ROLLBACK").await.unwrap();

    second.execute("BEGIN").await.unwrap();
    second.append(&AppendCall::once("1", "y")).await.unwrap();
    let began = Instant::now();
    let held = first.append(&AppendCall::once("1", "y")).await.unwrap_err();
    assert_eq!(held.sqlstate, "OX423", "{held:?}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    second.execute("ROLLBACK").await.unwrap();
    first.append(&AppendCall::once("2", "y")).await.unwrap();
    assert_eq!(stored(&db).await, "2 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_roles_it_has_the_logins_rights_and_roles_take_it_over() {
    let url = create_database("plain").await;
    let off = ServerOptions { roles: RoleMode::Off, ..options(&url) };
    migrate(off.clone()).await.unwrap();
    let definer = "SELECT definer FROM information_schema.routines WHERE routine_schema = DATABASE()";
    assert_eq!(value(&url, definer).await, "admin@127.0.0.1");
    let mut app = app(&url).await;
    app.append(&AppendCall::new("1")).await.unwrap();
    let stores = hooksaga_mysql::connect(off).await.unwrap().stores();
    let limits = RouteLimits { events: 10, sagas: 10 };
    assert_eq!(stores.router.route(limits, 5).await.unwrap().events.len(), 1);
    drop(stores);
    let role = role_name(name(&url), Role::EventIngestWriter);
    migrate(options(&url)).await.unwrap();
    assert_eq!(value(&url, definer).await.trim_end_matches('@'), role);
    app.append(&AppendCall::new("1")).await.unwrap();
    // Another login's procedure is made anew by whoever migrates.
    owner(&url).await.query_drop("DROP PROCEDURE hooksaga_append").await.unwrap();
    migrate(options(&url)).await.unwrap();
    assert_eq!(value(&url, definer).await.trim_end_matches('@'), role);
    admin_execute(&format!("DROP DATABASE `{}`", name(&url))).await;
}
