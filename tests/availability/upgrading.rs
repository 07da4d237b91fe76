//! A newer schema under running copies: as `hooksaga migrate` of a later version would leave it.

use super::*;
use hooksaga_testkit::mariadb;

on_every_database_server! {
    copies_go_on_beside_a_newer_schema_that_lets_them,
}

/// New columns and tables, of which this version knows nothing.
const LATER: [&str; 5] = [
    "ALTER TABLE events ADD COLUMN of_a_later_version BIGINT NOT NULL DEFAULT 7",
    "ALTER TABLE webhook_delivery_sagas ADD COLUMN of_a_later_version BIGINT NULL",
    "ALTER TABLE webhook_delivery_jobs ADD COLUMN of_a_later_version BIGINT NULL",
    "ALTER TABLE subscriptions ADD COLUMN of_a_later_version BIGINT NOT NULL DEFAULT 7",
    "CREATE TABLE things_of_a_later_version (id BIGINT NOT NULL PRIMARY KEY)",
];

const RECORDED: &str = "INSERT INTO schema_migrations (version, name, fingerprint, applied_at, lowest_program) \
    SELECT 99, 'later', '0123456789abcdef', applied_at, version FROM schema_migrations \
    WHERE version = (SELECT max(version) FROM schema_migrations)";

const NO_LONGER_COMPATIBLE: &str = "UPDATE schema_migrations SET lowest_program = 99 WHERE version = 99";

async fn execute(installation: &Installation, sql: &str) {
    let url = installation.database_url().unwrap();
    if url.starts_with("mysql") {
        return mariadb::execute(url, sql).await;
    }
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

async fn copies_go_on_beside_a_newer_schema_that_lets_them(installation: Installation) {
    let installation = patient_settings(installation);
    let servers = [installation.serve().await, installation.serve().await];
    let receiver = Receiver::start().await;
    let subscriptions = subscribe(&servers[0].api(), &receiver).await;
    let places = Places::new(servers.iter().map(|server| server.address().to_owned()));
    let load = Load::start(&places, CLIENTS, EVERY);
    load.goes_on(100, PATIENCE).await;
    for sql in LATER {
        execute(&installation, sql).await;
    }
    execute(&installation, RECORDED).await;
    load.goes_on(100, PATIENCE).await;
    // A copy of the old version that restarts in the meantime, too.
    let third = installation.serve().await;
    for server in servers.iter().chain([&third]) {
        assert_eq!(server.api_with(None).get("/readyz").await.status, 200);
    }
    let seen = load.stop().await;
    check("upgrade", &third.api(), &seen, &subscriptions, &receiver).await;
    assert_eq!(seen.failures, [], "no request failed");
    nothing_was_sent_twice(&third.api(), &subscriptions, &receiver).await;

    let older = run(&installation, &["migrate"]).await;
    let said = String::from_utf8(older.stderr).unwrap();
    assert_eq!(older.status.code(), Some(1), "an older program does not touch a newer schema");
    assert!(said.contains("newer than this program's"), "{said}");

    execute(&installation, NO_LONGER_COMPATIBLE).await;
    for server in servers.iter().chain([&third]) {
        eventually("a copy that is too old for the schema is not ready", || async {
            (server.api_with(None).get("/readyz").await.status == 503).then_some(())
        })
        .await;
    }
    let refused = run(&installation, &["serve", "--dev"]).await;
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("at least as new as the one that migrated it"), "{said}");
}
