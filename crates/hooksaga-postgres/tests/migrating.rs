//! Migrations: twice, from several processes at once, on several databases of a cluster at once.

use crate::adapter::{failure, fresh, options, superuser, value};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_conformance::servers::ids_went_on;
use hooksaga_postgres::{connect, migrate};
use hooksaga_store::{Role, RoleMode, ServerOptions, StoreError};
use hooksaga_testkit::postgres::{PostgresServer, admin_execute, create_database};
use tokio::task::JoinSet;

/// A cluster that has never seen hooksaga's roles.
pub(crate) async fn new_cluster() -> PostgresServer {
    tokio::task::spawn_blocking(PostgresServer::start).await.unwrap()
}

/// A database of that cluster, made by this statement's options.
pub(crate) async fn database_in(server: &PostgresServer, name: &str, with: &str) -> String {
    let admin = server.url();
    superuser(&admin).await.batch_execute(&format!("CREATE DATABASE {name} {with}")).await.unwrap();
    format!("{}/{name}", admin.rsplit_once('/').unwrap().0)
}

async fn migrate_all(urls: Vec<String>) -> Vec<hooksaga_store::migration::MigrationReport> {
    let mut runs = JoinSet::new();
    for url in urls {
        runs.spawn(async move { migrate(options(&url)).await.unwrap() });
    }
    runs.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_databases_of_a_new_cluster_are_migrated_at_once() {
    let server = new_cluster().await;
    let mut urls = Vec::new();
    for number in 0..6 {
        urls.push(database_in(&server, &format!("db{number}"), "").await);
    }
    for report in migrate_all(urls.clone()).await {
        assert_eq!(report.applied, ["0001_tables", "0002_guards"]);
    }
    for url in urls {
        connect(options(&url)).await.unwrap().stores().reader.gauges().await.unwrap();
    }
    let roles = value(
        &server.url(),
        "SELECT count(*) FROM pg_roles WHERE rolname LIKE '%\\_%' AND rolname NOT LIKE 'pg\\_%'",
    )
    .await;
    assert_eq!(roles, Role::ALL.len().to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_processes_migrate_one_database_at_once() {
    let url = create_database("shared", None).await;
    let reports = migrate_all(vec![url.clone(); 6]).await;
    let worked = reports.iter().filter(|report| !report.applied.is_empty()).count();
    assert_eq!(worked, 1, "{reports:?}");
    assert!(reports.iter().all(|report| report.version == 2));
    assert_eq!(value(&url, "SELECT count(*) FROM schema_migrations").await, "2");
}

/// The server that the tests run on knows lz4.
#[tokio::test(flavor = "multi_thread")]
async fn large_payloads_are_compressed_with_the_quick_method() {
    let db = fresh().await;
    let insert = "INSERT INTO events (event_type, payload, correlation_id)
                  VALUES ('t', repeat('[1,2,3]', 2000), 'c') RETURNING id";
    value(&db.url, insert).await;
    assert_eq!(value(&db.url, "SELECT pg_column_compression(payload) FROM events").await, "lz4");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrating_again_takes_back_rights_that_are_too_wide() {
    let db = fresh().await;
    let client = superuser(&db.url).await;
    client.batch_execute("GRANT ALL ON events TO router_worker").await.unwrap();
    let may_read = "SELECT has_column_privilege('router_worker', 'events', 'payload', 'SELECT')";
    assert_eq!(value(&db.url, may_read).await, "t");
    migrate(options(&db.url)).await.unwrap();
    assert_eq!(value(&db.url, may_read).await, "f");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_step_leaves_nothing_behind() {
    let url = create_database("occupied", None).await;
    superuser(&url).await.batch_execute("CREATE TABLE dead_letters (mine int)").await.unwrap();
    failure(migrate(options(&url)).await);
    assert_eq!(
        value(&url, "SELECT to_regclass('events') IS NULL AND to_regtype('saga_status') IS NULL").await,
        "t"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_would_change_payloads_is_refused() {
    let name = format!("ascii_{}", std::process::id());
    admin_execute(&format!("CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"))
        .await;
    let url = hooksaga_testkit::postgres::database_url(&name);
    let error = failure(migrate(ServerOptions { roles: RoleMode::Off, ..options(&url) }).await);
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("UTF8"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_that_a_restore_left_out_are_reported() {
    let db = fresh().await;
    let hazards = async || hooksaga_postgres::examine(&options(&db.url)).await.unwrap().hazards.join("\n");
    let before = hazards().await;
    assert!(!before.contains("triggers"), "{before}");
    let sql =
        "DROP TRIGGER keep_heads ON dead_letters; ALTER TABLE audit_records DISABLE TRIGGER refuse_update";
    superuser(&db.url).await.batch_execute(sql).await.unwrap();
    let after = hazards().await;
    let named = "lacks 2 of its triggers (keep_heads on dead_letters, refuse_update on audit_records)";
    assert!(after.contains(named) && after.contains("`hooksaga migrate --after-restore`"), "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_ids_go_on_where_none_was_given_out() {
    let db = fresh().await;
    let append = async || {
        let answers = db.stores().ingest.append(&[crate::adapter::event(None, "c")]).await.unwrap();
        match answers.as_slice() {
            [hooksaga_store::Appended::Created(head)] => head.id.0,
            other => panic!("{other:?}"),
        }
    };
    let before = append().await;
    let moved = hooksaga_postgres::move_ids_forward(options(&db.url)).await.unwrap();
    ids_went_on(&moved, before, append().await);
    let job = "SELECT nextval(pg_get_serial_sequence('webhook_delivery_jobs', 'id'))::text";
    let jobs = moved.iter().find(|moved| moved.table == "webhook_delivery_jobs").map(|moved| moved.after);
    assert!(value(&db.url, job).await.parse::<i64>().ok() > jobs);
}
