//! Logins: without the right to create roles, with it, without roles at all, and one per role.

use crate::{
    adapter::{event, failure, options, superuser, value},
    migrating::{database_in, new_cluster},
};
use hooksaga_postgres::{connect, migrate, open_keys, role_sql};
use hooksaga_saga::EventId;
use hooksaga_store::{
    Appended, Role, RoleMode, RouteLimits, Scopes, ServerOptions, StoreError, Stores, TenantScope,
};
use hooksaga_testkit::postgres::PostgresServer;

const LIMITS: RouteLimits = RouteLimits { events: 10, sagas: 10 };

/// A login, and a database that it owns.
async fn owned(server: &PostgresServer, login: &str, rights: &str) -> String {
    superuser(&server.url())
        .await
        .batch_execute(&format!("CREATE ROLE {login} LOGIN {rights}"))
        .await
        .unwrap();
    let url = database_in(server, &format!("{login}_db"), &format!("OWNER {login}")).await;
    as_login(&url, login)
}

fn as_login(url: &str, login: &str) -> String {
    url.replace("postgres://postgres@", &format!("postgres://{login}@"))
}

async fn append(stores: &Stores) -> EventId {
    match stores.ingest.append(&[event(None, "c")]).await.unwrap().remove(0) {
        Appended::Created(head) => head.id,
        other => panic!("not created: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_may_not_create_roles_is_told_whom_to_ask() {
    let server = new_cluster().await;
    let url = owned(&server, "modest", "").await;

    let error = failure(migrate(options(&url)).await);
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("hooksaga migrate --print-roles"), "{error}");
    assert_eq!(value(&url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").await, "0");

    let sql = role_sql("modest_db", "modest");
    let admin = superuser(&server.url()).await;
    admin.batch_execute(&sql).await.unwrap();
    admin.batch_execute(&sql).await.unwrap();
    migrate(options(&url)).await.unwrap();
    let database = connect(options(&url)).await.unwrap();
    let event = append(&database.stores()).await;
    assert!(database.stores().reader.event(&TenantScope::All, event).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_may_create_roles_needs_no_help() {
    let server = new_cluster().await;
    let url = owned(&server, "able", "CREATEROLE").await;
    let report = migrate(options(&url)).await.unwrap();
    let all = hooksaga_store::Role::ALL.len();
    assert!(report.roles.contains(&format!("{all} of {all} created")), "{}", report.roles);
    let stores = connect(options(&url)).await.unwrap().stores();
    append(&stores).await;
    assert_eq!(stores.router.route(LIMITS, 5).await.unwrap().events.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_named_like_the_login_is_found_by_every_role() {
    let server = new_cluster().await;
    let url = owned(&server, "homely", "CREATEROLE").await;
    superuser(&url).await.batch_execute("CREATE SCHEMA homely").await.unwrap();
    migrate(options(&url)).await.unwrap();
    assert_eq!(value(&url, "SELECT to_regclass('homely.events') IS NOT NULL").await, "t");
    let stores = connect(options(&url)).await.unwrap().stores();
    append(&stores).await;
    assert_eq!(stores.router.route(LIMITS, 5).await.unwrap().events.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_roles_every_component_is_the_login() {
    let server = new_cluster().await;
    let url = owned(&server, "hosted", "").await;
    let off = ServerOptions { roles: RoleMode::Off, ..options(&url) };
    let report = migrate(off.clone()).await.unwrap();
    assert!(report.roles.starts_with("off"), "{}", report.roles);
    let roles = "SELECT count(*) FROM pg_roles WHERE rolname = 'router_worker'";
    assert_eq!(value(&url, roles).await, "0");

    let stores = connect(off).await.unwrap().stores();
    append(&stores).await;
    assert_eq!(stores.router.route(LIMITS, 5).await.unwrap().events.len(), 1);

    // With roles wanted that are not there, it says so in a line.
    let error = failure(connect(options(&url)).await);
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("hooksaga migrate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_per_role_needs_no_other() {
    let server = new_cluster().await;
    let url = database_in(&server, "fenced", "").await;
    migrate(options(&url)).await.unwrap();
    let admin = superuser(&url).await;
    let mut fenced = options("postgres://nobody@127.0.0.1:1/nothing");
    for role in Role::ALL {
        admin.batch_execute(&format!("ALTER ROLE {role} LOGIN")).await.unwrap();
        fenced.role_urls.insert(*role, as_login(&url, role.as_str()));
    }

    let stores = connect(fenced.clone()).await.unwrap().stores();
    append(&stores).await;
    assert_eq!(stores.router.route(LIMITS, 5).await.unwrap().events.len(), 1);
    let users = "SELECT string_agg(DISTINCT usename || ' as ' || application_name, ', ') FROM pg_stat_activity \
                 WHERE application_name LIKE 'hooksaga/%'";
    assert_eq!(
        value(&url, users).await,
        "api_reader as hooksaga/api_reader, event_ingest_writer as hooksaga/event_ingest_writer, \
         router_worker as hooksaga/router_worker"
    );

    let key = hooksaga_store::NewApiKey {
        name: "n".to_owned(),
        scopes: Scopes::all(),
        sha256: [7; 32],
        tenant: None,
        expires_in: None,
    };
    let created = open_keys(fenced).await.unwrap().create(&key).await.unwrap();
    assert_eq!(stores.key_reader.find(&[7; 32]).await.unwrap().map(|key| key.id), Some(created.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_are_missing_are_a_matter_of_set_up() {
    let server = new_cluster().await;
    let url = owned(&server, "halfway", "").await;
    migrate(ServerOptions { roles: RoleMode::Off, ..options(&url) }).await.unwrap();
    superuser(&server.url()).await.batch_execute(&role_sql("halfway_db", "halfway")).await.unwrap();
    let error = failure(connect(options(&url)).await);
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("run `hooksaga migrate`"), "{error}");
}
