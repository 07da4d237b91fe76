//! TLS to a server with a certificate of a private authority: which authorities are trusted, what the error says if none is, and
//! that every connection is encrypted. The server accepts these logins over TLS only.

use crate::adapter::{failure, options};
use crate::connecting::event;
use hooksaga_conformance::servers::advises;
use hooksaga_mysql::{connect, connect_to_server, migrate, open_keys};
use hooksaga_store::{Appended, Role, Stage, database_tls::with_authority};
use hooksaga_testkit::{
    authority::Authority,
    mariadb::{MariaDbServer, admin_url, execute},
};
use std::time::Duration;

struct Secured {
    server: MariaDbServer,
    authority: Authority,
}

impl Secured {
    /// A server whose certificate is for `localhost`, with an empty database and two logins that own it: `secured` must come
    /// over TLS, `mutual` with a certificate of its own, too.
    async fn start() -> Self {
        let start = || {
            let authority = Authority::new();
            let server = MariaDbServer::start_with_tls(&authority, &authority.certify(&["localhost"]));
            Self { server, authority }
        };
        let secured = tokio::task::spawn_blocking(start).await.unwrap();
        execute(&secured.server.url(), "CREATE DATABASE secured").await;
        for (login, requirement) in [("secured", "SSL"), ("mutual", "X509")] {
            let create = format!("CREATE USER '{login}'@'127.0.0.1' REQUIRE {requirement}");
            execute(&secured.server.url(), &create).await;
            let grant = format!("GRANT ALL PRIVILEGES ON *.* TO '{login}'@'127.0.0.1' WITH GRANT OPTION");
            execute(&secured.server.url(), &grant).await;
        }
        secured
    }

    /// The database at the name that the certificate is for.
    fn url(&self, login: &str) -> String {
        let url = self.server.url().replace("127.0.0.1", "localhost");
        format!("mysql://{login}@{}/secured", url.rsplit_once('@').unwrap().1)
    }
}

/// Asserts that a connection is refused, in a line that says what to do.
async fn refused(url: &str, advice: &str) {
    for error in [failure(connect(options(url)).await), failure(migrate(options(url)).await)] {
        advises(&error, advice);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_who_its_authority_says_and_every_connection_is_encrypted() {
    let secured = Secured::start().await;
    let url = secured.url("secured");
    let trusting = |url: &str| with_authority(url, &secured.authority.file());

    refused(&url, "database.url").await;
    refused(&format!("{url}?require_ssl=true"), "database.ca_file").await;
    refused(&format!("{url}?ssl-mode=VERIFY_IDENTITY"), "database.ca_file").await;
    let stranger = Authority::new();
    refused(&with_authority(&url, &stranger.file()), "database.ca_file").await;
    refused(&trusting(&url.replace("localhost", "127.0.0.1")), "other names than the host").await;
    refused(&trusting(&format!("{url}?ssl-mode=disabled")), "contradict").await;
    // A server without TLS, at a name that would do.
    let plain = format!("{}/mysql", admin_url().replace("127.0.0.1", "localhost"));
    refused(&trusting(&plain), "offers no TLS").await;

    let url = trusting(&url);
    migrate(options(&url)).await.unwrap();
    let mut own_login = options(&url);
    own_login.role_urls.insert(Role::EventIngestWriter, url.clone());
    let stores = connect(own_login).await.unwrap().stores();
    let mut listener = stores.wakeups.listen().await.unwrap().unwrap();
    let appended = stores.ingest.append(&[event("1", None)]).await.unwrap();
    assert!(matches!(appended[0], Appended::Created(_)));
    stores.wakeups.notify(&[Stage::Router]).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), listener.next()).await.unwrap().unwrap();
    open_keys(options(&url)).await.unwrap().list().await.unwrap();
    connect_to_server(&url).await.unwrap();

    // With a certificate of this side, where the server asks for one.
    let mutual = trusting(&secured.url("mutual"));
    refused(&mutual, "database.url").await;
    let own = secured.authority.certify(&["client"]);
    let mutual = format!("{mutual}&ssl-cert={}&ssl-key={}", own.certificate.display(), own.key.display());
    connect_to_server(&mutual).await.unwrap();
}
