//! One place to run the product in: a database of its own and the settings that the tests share.

use super::{Server, run};
use hooksaga_testkit::{mariadb, postgres, scratch::ScratchDir};
use std::{collections::BTreeMap, thread};
use tokio::sync::OnceCell;

/// Every scope, in every test.
pub(crate) const ROOT_KEY: &str = "hsk_the-root-key-of-the-whole-binary-tests";

/// A database and the environment that servers on it get.
pub(crate) struct Installation {
    pub(crate) folder: ScratchDir,
    environment: BTreeMap<String, String>,
    /// A database of MariaDB that is dropped with this.
    dropped: Option<String>,
}

impl Drop for Installation {
    fn drop(&mut self) {
        let Some(name) = self.dropped.take() else { return };
        let dropping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(mariadb::drop_database(&name));
        });
        // What is left behind harms nobody: the server ends with the tests.
        let _ = dropping.join();
    }
}

impl Installation {
    /// The embedded default, in a scratch folder.
    pub(crate) fn sqlite() -> Self {
        Self::new()
    }

    /// A migrated database of the run's PostgreSQL server: a copy of one that `hooksaga migrate` has made.
    pub(crate) async fn postgres() -> Self {
        static TEMPLATE: OnceCell<String> = OnceCell::const_new();
        let template = TEMPLATE.get_or_init(|| async {
            let url = postgres::create_database("whole_template", None).await;
            Self::on_server(&url).migrated().await;
            url.rsplit_once('/').expect("a URL with a database name").1.to_owned()
        });
        Self::on_server(&postgres::create_database("whole", Some(template.await)).await)
    }

    /// A migrated database of the run's MariaDB server.
    pub(crate) async fn mysql() -> Self {
        Self::unmigrated_mysql().await.migrated().await
    }

    async fn migrated(self) -> Self {
        let migrated = run(&self, &["migrate"]).await;
        assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
        self
    }

    /// An empty database of the run's PostgreSQL server.
    pub(crate) async fn unmigrated_postgres() -> Self {
        Self::on_server(&postgres::create_database("whole", None).await)
    }

    /// An empty database of the run's MariaDB server.
    pub(crate) async fn unmigrated_mysql() -> Self {
        Self::in_mysql(&mariadb::create_database("whole").await)
    }

    /// A migrated database of this name, in place of the last one.
    pub(crate) async fn mysql_named(name: &str) -> Self {
        mariadb::drop_database(name).await;
        mariadb::admin_execute(&format!("CREATE DATABASE `{name}`")).await;
        Self::in_mysql(&mariadb::database_url(name)).migrated().await
    }

    fn in_mysql(url: &str) -> Self {
        let mut installation = Self::on_server(url);
        installation.dropped = url.rsplit_once('/').map(|(_, name)| name.to_owned());
        installation
    }

    /// A database of some server, as it is.
    pub(crate) fn on_server(url: &str) -> Self {
        Self::new()
            .with("HOOKSAGA_DATABASE_URL", url)
            .with("HOOKSAGA_SECRET_KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
    }

    fn new() -> Self {
        let folder = ScratchDir::new("whole");
        Self { folder, environment: BTreeMap::new(), dropped: None }
            .with("HOOKSAGA_LISTEN", "127.0.0.1:0")
            .with("HOOKSAGA_ROOT_KEY", ROOT_KEY)
            .with("HOOKSAGA_RETRY_BASE_DELAY", "50ms")
            .with("HOOKSAGA_RETRY_MAX_DELAY", "200ms")
            .with("HOOKSAGA_RETRY_MAX_RETRY_LIMIT", "3")
            .with("HOOKSAGA_CLEANER_INTERVAL", "200ms")
    }

    /// The same with one more setting.
    pub(crate) fn with(mut self, variable: &str, value: &str) -> Self {
        self.environment.insert(variable.to_owned(), value.to_owned());
        self
    }

    /// The same without a setting.
    pub(crate) fn without(mut self, variable: &str) -> Self {
        self.environment.remove(variable);
        self
    }

    /// Where the database server is; nothing for the embedded one.
    pub(crate) fn database_url(&self) -> Option<&str> {
        self.environment.get("HOOKSAGA_DATABASE_URL").map(String::as_str)
    }

    pub(super) fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// A server with every component, in development mode.
    pub(crate) async fn serve(&self) -> Server {
        Server::start(self, &["serve", "--dev"]).await
    }

    /// A server with some components, in development mode.
    pub(crate) async fn serve_only(&self, components: &str) -> Server {
        Server::start(self, &["serve", "--dev", "--only", components]).await
    }
}
