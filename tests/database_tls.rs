//! The product on a database server of a private authority: one setting, and every connection is verified.

use crate::support::*;
use hooksaga_testkit::{authority::Authority, postgres::PostgresServer};
use tokio_postgres::NoTls;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_authority_is_one_setting_for_every_command() {
    let start = || {
        let authority = Authority::new();
        let server = PostgresServer::start_with_tls(&authority, &authority.certify(&["localhost"]));
        (authority, server)
    };
    let (authority, database) = tokio::task::spawn_blocking(start).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE DATABASE secured").await.unwrap();

    // The server takes no plain connection to this database.
    let url = database.url().replace("127.0.0.1", "localhost");
    let url = format!("{}/secured", url.rsplit_once('/').unwrap().0);
    let unknown = Installation::on_server(&format!("{url}?sslmode=verify-full"));
    let said = run(&unknown, &["migrate"]).await;
    let line = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(1), "{line}");
    assert!(line.contains("database.ca_file") && line.trim().lines().count() == 1, "{line}");

    let file = authority.file();
    let trusting = unknown.with("HOOKSAGA_DATABASE_CA_FILE", file.to_str().unwrap());
    let migrated = run(&trusting, &["migrate"]).await;
    assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
    let listed = run(&trusting, &["keys", "list"]).await;
    assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    let server = trusting.serve().await;
    let receiver = Receiver::start().await;
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/hook")).await;
    let event = api.event("t", &json!(1)).await;
    api.delivery_with_status(event, "Completed").await;
    let sql = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl) FROM pg_stat_ssl \
               JOIN pg_stat_activity USING (pid) WHERE datname = 'secured'";
    let row = client.query_one(sql, &[]).await.unwrap();
    let (encrypted, plain): (i64, i64) = (row.get(0), row.get(1));
    assert!(encrypted >= 5 && plain == 0, "{encrypted} encrypted, {plain} plain");
    assert_eq!(server.terminate().await, Some(0));

    let other = Authority::new();
    let mistaken = trusting.with("HOOKSAGA_DATABASE_CA_FILE", other.file().to_str().unwrap());
    for command in [&["serve", "--dev"][..], &["keys", "list"], &["migrate"]] {
        let said = run(&mistaken, command).await;
        let line = String::from_utf8(said.stderr).unwrap();
        let errors = line.lines().filter(|line| line.contains("no safe connection")).count();
        assert!(said.status.code() == Some(1) && errors == 1, "{command:?}: {line}");
    }
}
