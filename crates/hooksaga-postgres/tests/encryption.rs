//! TLS to a server of a private authority: who is trusted, what is said when nobody is, and that no connection is without
//! it. The server takes no plain connection to these databases.

use crate::adapter::{event, failure, options};
use hooksaga_conformance::servers::advises;
use hooksaga_postgres::{connect, connect_as_login, migrate, open_keys};
use hooksaga_store::{Appended, Role, ServerOptions, Stage, database_tls::with_authority};
use hooksaga_testkit::{
    authority::Authority,
    postgres::{PostgresServer, admin_url},
};
use std::time::Duration;
use tokio_postgres::NoTls;

struct Secured {
    server: PostgresServer,
    authority: Authority,
}

impl Secured {
    /// A server whose certificate is for `localhost`, with empty databases.
    async fn start(databases: &[&str]) -> Self {
        let start = || {
            let authority = Authority::new();
            let server = PostgresServer::start_with_tls(&authority, &authority.certify(&["localhost"]));
            Self { server, authority }
        };
        let secured = tokio::task::spawn_blocking(start).await.unwrap();
        let (client, connection) = tokio_postgres::connect(&secured.server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        for database in databases {
            client.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
        }
        secured
    }

    /// A database at the name that the certificate is for.
    fn url(&self, database: &str) -> String {
        let url = self.server.url().replace("127.0.0.1", "localhost");
        format!("{}/{database}", url.rsplit_once('/').unwrap().0)
    }
}

/// Asserts that a connection is refused, in a line that says what to do.
async fn refused(url: &str, advice: &str) {
    for error in [failure(connect(options(url)).await), failure(migrate(options(url)).await)] {
        advises(&error, advice);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_who_its_authority_says_and_nobody_else() {
    let secured = Secured::start(&["secured"]).await;
    let url = secured.url("secured");
    let trusting = |url: &str| with_authority(url, &secured.authority.file());

    refused(&format!("{url}?sslmode=disable"), "sslmode=verify-full").await;
    refused(&format!("{url}?sslmode=require"), "database.ca_file").await;
    refused(&format!("{url}?sslmode=verify-full"), "database.ca_file").await;
    refused(&format!("{url}?sslmode=verify-ca"), "database.ca_file").await;
    let stranger = Authority::new();
    refused(&with_authority(&url, &stranger.file()), "database.ca_file").await;
    refused(&with_authority(&format!("{url}?sslmode=verify-ca"), &stranger.file()), "database.ca_file").await;
    let wrong_name = url.replace("localhost", "127.0.0.1");
    refused(&trusting(&wrong_name), "other names than the host").await;
    refused(&trusting(&format!("{url}?sslmode=prefer")), "contradict").await;
    // A server without TLS, at a name that would do.
    let plain = admin_url().replace("127.0.0.1", "localhost");
    refused(&trusting(&plain), "offers no TLS").await;

    migrate(options(&trusting(&url))).await.unwrap();
    for url in [
        trusting(&url),
        trusting(&format!("{url}?sslmode=verify-full")),
        trusting(&format!("{wrong_name}?sslmode=verify-ca")),
        // Encrypted, since the server takes nothing else; verified by nobody.
        url.clone(),
    ] {
        connect(options(&url)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_connection_is_encrypted() {
    let secured = Secured::start(&["secured"]).await;
    let url = with_authority(&secured.url("secured"), &secured.authority.file());
    migrate(options(&url)).await.unwrap();
    let mut own_login = options(&url);
    own_login.role_urls.insert(Role::EventIngestWriter, url.clone());
    let stores = connect(own_login).await.unwrap().stores();
    let mut listener = stores.wakeups.listen().await.unwrap().unwrap();
    let appended = stores.ingest.append(&[event(None, "c")]).await.unwrap();
    assert!(matches!(appended[0], Appended::Created(_)));
    stores.wakeups.notify(&[Stage::Router]).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(10), listener.next()).await.unwrap().unwrap();
    assert_eq!(heard, Stage::Router);
    open_keys(options(&url)).await.unwrap().list().await.unwrap();
    let look = connect_as_login(&url).await.unwrap();
    let sql = "SELECT count(*), count(*) FILTER (WHERE NOT ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
               WHERE datname = current_database()";
    let row = look.query_one(sql, &[]).await.unwrap();
    let (all, plain): (i64, i64) = (row.get(0), row.get(1));
    assert!(all >= 4 && plain == 0, "{plain} of {all} are not encrypted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_for_a_certificate_gets_it() {
    let secured = Secured::start(&["mutual"]).await;
    let url = with_authority(&secured.url("mutual"), &secured.authority.file());
    refused(&url, "sslcert and sslkey").await;
    let with = |authority: &Authority| {
        let own = authority.certify(&["client"]);
        format!("{url}&sslcert={}&sslkey={}", own.certificate.display(), own.key.display())
    };
    let own = with(&secured.authority);
    migrate(options(&own)).await.unwrap();
    connect(ServerOptions { max_connections_per_role: 1, ..options(&own) }).await.unwrap();
    let error = failure(connect(options(&with(&Authority::new()))).await);
    assert!(!error.to_string().is_empty());
}
