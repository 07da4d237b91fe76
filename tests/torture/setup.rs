//! What the torture runs on: an installation and its database, with a proxy in front of it if it is a server.

use crate::support::*;
use hooksaga_testkit::{
    mariadb::{self, MariaDbServer},
    postgres::PostgresServer,
    proxy::Proxy,
};

pub(super) struct Setup {
    pub(super) installation: Installation,
    proxy: Option<Proxy>,
    server: Option<Engine>,
}

/// A server of its own: it is crashed.
enum Engine {
    Postgres(PostgresServer),
    MariaDb(MariaDbServer),
}

fn settings(installation: Installation) -> Installation {
    installation
        .with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "500ms")
        .with("HOOKSAGA_WORKER_LEASE_DURATION", "1200ms")
        .with("HOOKSAGA_LOG_DELIVERIES", "none")
}

impl Setup {
    pub(super) fn sqlite() -> Self {
        Self { installation: settings(Installation::sqlite()), proxy: None, server: None }
    }

    pub(super) async fn postgres() -> Self {
        // On this thread, which lasts: a server ends with the thread that started it.
        let server = tokio::task::block_in_place(PostgresServer::start);
        let url = server.url();
        Self::on(&url, Engine::Postgres(server)).await
    }

    pub(super) async fn mysql() -> Self {
        // A crash of the server alone loses nothing that was written to the operating system.
        let start = || MariaDbServer::start_with(&["--innodb-flush-log-at-trx-commit=2"]);
        let server = tokio::task::block_in_place(start);
        mariadb::execute(&server.url(), "CREATE DATABASE torture").await;
        let url = format!("{}/torture", server.url());
        Self::on(&url, Engine::MariaDb(server)).await
    }

    async fn on(url: &str, server: Engine) -> Self {
        let (proxy, url) = Proxy::for_url(url).await;
        let installation = settings(Installation::on_server(&url));
        let migrated = run(&installation, &["migrate"]).await;
        assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
        Self { installation, proxy: Some(proxy), server: Some(server) }
    }

    pub(super) fn has_server(&self) -> bool {
        self.server.is_some()
    }

    pub(super) fn name(&self) -> &'static str {
        match self.server {
            None => "SQLite",
            Some(Engine::Postgres(_)) => "PostgreSQL",
            Some(Engine::MariaDb(_)) => "MariaDB",
        }
    }

    pub(super) fn cut_connections(&self) {
        self.proxy.iter().for_each(Proxy::cut_all);
    }

    pub(super) fn silence(&self, silent: bool) {
        self.proxy.iter().for_each(|proxy| if silent { proxy.fall_silent() } else { proxy.speak_again() });
    }

    /// Connections that there are now are never heard of again, and nobody closes them.
    pub(super) fn lose_connections(&self) {
        self.proxy.iter().for_each(Proxy::lose_all);
    }

    /// The next transaction stays open, with all its locks, and its client hears nothing more.
    pub(super) fn lose_a_commit(&self) {
        self.proxy.iter().for_each(Proxy::lose_a_commit);
    }

    pub(super) fn has_lost_the_commit(&self) -> bool {
        self.proxy.iter().all(Proxy::has_lost_the_commit)
    }

    /// For less than this the server keeps the transaction of such a client open, with its locks (`options.rs` of the back ends).
    pub(super) fn locks_are_kept_for(&self) -> Duration {
        Duration::from_secs(if matches!(self.server, Some(Engine::MariaDb(_))) { 10 } else { 30 })
    }

    /// Freezes the database for longer than any call waits for its response (`connect.rs`, `pool.rs` of the back ends).
    pub(super) async fn freeze_database(&self) {
        match &self.server {
            Some(Engine::Postgres(server)) => {
                server.freeze();
                tokio::time::sleep(Duration::from_secs(40)).await;
                server.thaw();
            }
            Some(Engine::MariaDb(server)) => {
                server.freeze();
                tokio::time::sleep(Duration::from_secs(20)).await;
                server.thaw();
            }
            None => {}
        }
    }

    /// Crashes the database, and returns when it is back.
    pub(super) fn crash(&mut self) {
        // On this thread: a server ends with the thread that started it.
        tokio::task::block_in_place(|| match &mut self.server {
            Some(Engine::Postgres(server)) => server.crash(),
            Some(Engine::MariaDb(server)) => server.crash(),
            None => {}
        });
    }
}
