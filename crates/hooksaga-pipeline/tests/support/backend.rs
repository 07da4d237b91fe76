//! The databases that a world can be on.

use hooksaga_sqlite::SqliteOptions;
use hooksaga_store::{RoleMode, ServerOptions, Stores};
use hooksaga_testkit::{mariadb, postgres, scratch::ScratchDir};
use std::{any::Any, path::PathBuf};
use tokio::sync::OnceCell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Postgres,
    MySql,
}

/// An open database of its own.
pub(crate) struct Database {
    pub(crate) stores: Stores,
    /// Where it is, unless it is embedded.
    pub(crate) url: Option<String>,
    /// The file of an embedded one.
    pub(crate) path: Option<PathBuf>,
    backend: Backend,
    /// Goes after the stores.
    _kept: Box<dyn Any + Send + Sync>,
}

fn options(url: &str, roles: RoleMode) -> ServerOptions {
    ServerOptions { roles, max_connections_per_role: 4, ..ServerOptions::login(url) }
}

impl Database {
    pub(crate) async fn new(backend: Backend) -> Self {
        match backend {
            Backend::Sqlite => {
                let folder = ScratchDir::new("pipeline");
                let path = folder.path().join("hooksaga.db");
                let database = hooksaga_sqlite::open(SqliteOptions { path: path.clone() }).await.unwrap();
                let (stores, path) = (database.stores(), Some(path));
                Self { stores, url: None, path, backend, _kept: Box::new((database, folder)) }
            }
            Backend::Postgres => {
                static TEMPLATE: OnceCell<String> = OnceCell::const_new();
                let template = TEMPLATE.get_or_init(|| async {
                    let url = postgres::create_database("pipeline_template", None).await;
                    hooksaga_postgres::migrate(options(&url, RoleMode::Switch)).await.unwrap();
                    name(&url).to_owned()
                });
                let url = postgres::create_database("pipeline", Some(template.await)).await;
                Self::again(backend, url).await
            }
            Backend::MySql => {
                let url = mariadb::create_database("pipeline").await;
                hooksaga_mysql::migrate(options(&url, RoleMode::Off)).await.unwrap();
                Self::again(backend, url).await
            }
        }
    }

    /// The same database server once more, as another process would open it.
    pub(crate) async fn again(backend: Backend, url: String) -> Self {
        let stores = match backend {
            Backend::Postgres => {
                hooksaga_postgres::connect(options(&url, RoleMode::Switch)).await.unwrap().stores()
            }
            Backend::MySql => hooksaga_mysql::connect(options(&url, RoleMode::Off)).await.unwrap().stores(),
            Backend::Sqlite => panic!("an embedded database has one process"),
        };
        Self { stores, url: Some(url), path: None, backend, _kept: Box::new(()) }
    }

    pub(crate) fn backend(&self) -> Backend {
        self.backend
    }

    /// Removes a database of a server: many of them would fill the disk.
    pub(crate) async fn remove(self) {
        let Some(url) = self.url.clone() else { return };
        let backend = self.backend;
        drop(self);
        match backend {
            Backend::Postgres => {
                postgres::admin_execute(&format!(r#"DROP DATABASE "{}" WITH (FORCE)"#, name(&url))).await;
            }
            Backend::MySql => mariadb::drop_database(name(&url)).await,
            Backend::Sqlite => {}
        }
    }
}

fn name(url: &str) -> &str {
    url.rsplit_once('/').unwrap().1
}
