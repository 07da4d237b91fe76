//! Migrations: twice, from several processes at once, on several databases of a server at once, continued after an
//! interruption, and by logins that lack rights.

use crate::adapter::{execute, failure, fresh, name, options, owner, value};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_conformance::servers::ids_went_on;
use hooksaga_mysql::{connect, migrate, role_name, role_sql};
use hooksaga_store::{Role, RoleMode, ServerOptions, StoreError, migration::MigrationReport};
use hooksaga_testkit::mariadb::{self, MariaDbServer, admin_execute, create_database};
use mysql_async::prelude::Queryable as _;
use tokio::task::JoinSet;

async fn migrate_all(urls: Vec<String>) -> Vec<MigrationReport> {
    let mut runs = JoinSet::new();
    for url in urls {
        runs.spawn(async move { migrate(options(&url)).await.unwrap() });
    }
    runs.join_all().await
}

/// A login with these rights on a new database; that database's URL for it.
async fn login_with(hint: &str, rights: &str) -> String {
    let url = create_database(hint).await;
    let database = name(&url);
    admin_execute(&format!("CREATE USER '{database}'@'127.0.0.1' IDENTIFIED BY 'pw'")).await;
    for right in rights.split(';').map(|right| right.replace("{db}", database)) {
        admin_execute(&format!("GRANT {right} TO '{database}'@'127.0.0.1' WITH GRANT OPTION")).await;
    }
    url.replace("mysql://admin@", &format!("mysql://{database}:pw@"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_databases_of_a_server_are_migrated_at_once() {
    let mut urls = Vec::new();
    for _ in 0..4 {
        urls.push(create_database("many").await);
    }
    for report in migrate_all(urls.clone()).await {
        assert_eq!(report.applied.len(), 2, "{report:?}");
    }
    for url in urls {
        connect(options(&url)).await.unwrap().stores().reader.gauges().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_processes_migrate_one_database_at_once() {
    let url = create_database("shared").await;
    let reports = migrate_all(vec![url.clone(); 6]).await;
    let worked = reports.iter().filter(|report| !report.applied.is_empty()).count();
    assert_eq!(worked, 1, "{reports:?}");
    assert!(reports.iter().all(|report| report.version == 2));
    assert_eq!(value(&url, "SELECT COUNT(*) FROM schema_migrations").await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn different_logins_migrate_databases_of_their_own_on_one_server() {
    let rights = "ALL PRIVILEGES ON `{db}`.*;CREATE USER ON *.*";
    let (one, two) = (login_with("one", rights).await, login_with("two", rights).await);
    for url in [&one, &two] {
        migrate(options(url)).await.unwrap();
        connect(options(url)).await.unwrap().stores().reader.gauges().await.unwrap();
    }
    // The roles of one have no rights in the other.
    let foreign = role_name(name(&one), Role::ApiReader);
    let mut connection = owner(&one).await;
    execute(&mut connection, &format!("SET ROLE '{foreign}'")).await.unwrap();
    let error = failure(execute(&mut connection, &format!("SELECT id FROM `{}`.events", name(&two))).await);
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_broken_off_is_taken_up_again() {
    let url = create_database("broken").await;
    migrate(options(&url)).await.unwrap();
    let mut connection = owner(&url).await;
    // As after the first tables, and as in the middle of the triggers.
    for sql in [
        "DELETE FROM schema_migrations WHERE version = 2",
        "DROP TRIGGER jobs_refuse_delete",
        "DROP TRIGGER letters_refuse_update",
        "DELETE FROM schema_migrations WHERE version = 1",
        "DROP TABLE api_keys",
    ] {
        execute(&mut connection, sql).await.unwrap();
    }
    let report = migrate(options(&url)).await.unwrap();
    assert_eq!(report.applied, ["0001_tables", "0002_guards"]);
    let triggers = "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE()";
    assert_eq!(value(&url, triggers).await, "24");
    assert_eq!(value(&url, "SELECT COUNT(*) FROM api_keys").await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrating_again_takes_back_rights_that_are_too_wide() {
    let db = fresh().await;
    let role = role_name(name(&db.url), Role::RouterWorker);
    let read = "SELECT payload FROM events";
    let mut connection = owner(&db.url).await;
    execute(&mut connection, &format!("GRANT SELECT ON events TO '{role}'")).await.unwrap();
    let as_router = async |sql: &str| execute(&mut db.as_role(Role::RouterWorker).await.unwrap(), sql).await;
    as_router(read).await.unwrap();
    migrate(options(&db.url)).await.unwrap();
    let error = failure(as_router(read).await);
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");
    as_router("SELECT event_type FROM events").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_elses_tables_are_left_alone() {
    let url = create_database("occupied").await;
    execute(&mut owner(&url).await, "CREATE TABLE dead_letters (mine INT)").await.unwrap();
    let error = failure(migrate(options(&url)).await);
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("dead_letters"), "{error}");
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()";
    assert_eq!(value(&url, tables).await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_may_not_create_roles_is_told_whom_to_ask() {
    let url = login_with("modest", "ALL PRIVILEGES ON `{db}`.*").await;
    let error = failure(migrate(options(&url)).await);
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("hooksaga migrate --print-roles"), "{error}");

    let database = name(&url);
    let sql = role_sql(database, database).replace("@'%'", "@'127.0.0.1'");
    for _ in 0..2 {
        for statement in sql.lines().filter(|line| !line.starts_with("--")) {
            admin_execute(statement).await;
        }
    }
    migrate(options(&url)).await.unwrap();
    connect(options(&url)).await.unwrap().stores().reader.gauges().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_roles_no_right_to_create_them_is_needed() {
    let url = login_with("roleless", "ALL PRIVILEGES ON `{db}`.*").await;
    let off = || ServerOptions { roles: RoleMode::Off, ..options(&url) };
    assert!(migrate(off()).await.unwrap().roles.starts_with("off"));
    connect(off()).await.unwrap().stores().reader.gauges().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binary_log_that_forbids_triggers_is_explained() {
    let start = || MariaDbServer::start_with(&["--log-bin=bin", "--server-id=1"]);
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let admin = server.url();
    mariadb::execute(&admin, "CREATE DATABASE logged").await;
    mariadb::execute(&admin, "CREATE USER 'plain'@'127.0.0.1'").await;
    mariadb::execute(&admin, "GRANT ALL ON logged.* TO 'plain'@'127.0.0.1' WITH GRANT OPTION").await;
    let url = format!("{}/logged", admin.replace("admin@", "plain@"));
    let off = || ServerOptions { roles: RoleMode::Off, ..options(&url) };
    let error = failure(migrate(off()).await);
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("log_bin_trust_function_creators"), "{error}");
    // And then it is taken up where it ended.
    mariadb::execute(&admin, "SET GLOBAL log_bin_trust_function_creators = 1").await;
    assert_eq!(migrate(off()).await.unwrap().applied, ["0002_guards"]);
    connect(off()).await.unwrap().stores().reader.gauges().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_of_a_login_that_is_gone_are_made_anew() {
    let url = login_with("leaver", "ALL PRIVILEGES ON `{db}`.*;CREATE USER ON *.*").await;
    migrate(options(&url)).await.unwrap();
    let database = name(&url).to_owned();
    let url = hooksaga_testkit::mariadb::database_url(&database);
    // As if the triggers had been missing: a letter without its head, and a head without its letter.
    let mut connection = owner(&url).await;
    for sql in [
        "INSERT INTO events (event_type, payload, correlation_id) VALUES ('t', '1', 'c')",
        "INSERT INTO webhook_delivery_sagas (id, event_id, subscription_id, max_retry_limit)
         SELECT 77, id, 2, 5 FROM events",
        "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload)
         SELECT 77, id, 2, 'TIMEOUT', '1' FROM events",
        "UPDATE letter_heads SET letter_id = 1000, saga_id = 78",
    ] {
        connection.query_drop(sql).await.unwrap();
    }
    let heads = "SELECT GROUP_CONCAT(saga_id) FROM letter_heads";
    assert_eq!(value(&url, heads).await, "78");
    admin_execute(&format!("DROP USER '{database}'@'127.0.0.1'")).await;
    let insert =
        "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, max_retry_limit) VALUES (1, 1, 5)";
    let error = failure(execute(&mut connection, insert).await);
    assert!(error.to_string().contains("run `hooksaga migrate`"), "{error}");
    migrate(ServerOptions { roles: RoleMode::Off, ..options(&url) }).await.unwrap();
    connection.query_drop(insert).await.unwrap();
    assert_eq!(value(&url, heads).await, "77", "lists show each letter, and nothing else");
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_that_a_restore_left_out_are_made_and_lists_repaired() {
    let db = fresh().await;
    let hazards = async || hooksaga_mysql::examine(&options(&db.url)).await.unwrap().hazards.join("\n");
    let before = hazards().await;
    assert!(!before.contains("triggers"), "{before}");
    let mut connection = owner(&db.url).await;
    for sql in [
        "DROP TRIGGER letters_keep_head",
        "INSERT INTO events (event_type, payload, correlation_id) VALUES ('t', '1', 'c')",
        "INSERT INTO webhook_delivery_sagas (id, event_id, subscription_id, max_retry_limit)
         SELECT 77, id, 2, 5 FROM events",
        "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload)
         SELECT 77, id, 2, 'TIMEOUT', '1' FROM events",
    ] {
        connection.query_drop(sql).await.unwrap();
    }
    let after = hazards().await;
    let named = "lacks 1 of its triggers (letters_keep_head on dead_letters)";
    assert!(after.contains(named) && after.contains("run `hooksaga migrate`"), "{after}");
    let heads = "SELECT COUNT(*) FROM letter_heads WHERE saga_id = 77";
    assert_eq!(value(&db.url, heads).await, "0");
    migrate(options(&db.url)).await.unwrap();
    assert_eq!((value(&db.url, heads).await, hazards().await), ("1".to_owned(), before));

    // A run that was killed when all triggers were made but the last, and the lists not repaired.
    for sql in ["DROP TRIGGER audit_refuse_delete", "DELETE FROM letter_heads"] {
        connection.query_drop(sql).await.unwrap();
    }
    migrate(options(&db.url)).await.unwrap();
    assert_eq!(value(&db.url, heads).await, "1");
    assert_eq!(
        value(
            &db.url,
            "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE() \
        AND trigger_name = 'audit_refuse_delete'"
        )
        .await,
        "1"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_ids_go_on_where_none_was_given_out() {
    let db = fresh().await;
    let append = async || {
        let event = crate::connecting::event("1", None);
        match db.stores().ingest.append(&[event]).await.unwrap().as_slice() {
            [hooksaga_store::Appended::Created(head)] => head.id.0,
            other => panic!("{other:?}"),
        }
    };
    let before = append().await;
    let moved = hooksaga_mysql::move_ids_forward(options(&db.url)).await.unwrap();
    ids_went_on(&moved, before, append().await);
}
