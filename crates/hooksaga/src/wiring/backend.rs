//! Opens the configured back end.

use crate::{
    config::{BackendUrl, DatabaseConfig},
    data_folder,
    error::{CliError, CliResult},
};
use hooksaga_mysql::MySqlDatabase;
use hooksaga_postgres::PostgresDatabase;
use hooksaga_sqlite::{SqliteDatabase, SqliteOptions};
use hooksaga_store::{
    Examination, KeyStore, PoolUse, ReaderStore, Rewrap, RoleMode, ServerOptions, StoreResult, Stores,
    database_tls::percent_decoded,
    migration::{MigrationReport, MovedIds, OnMigrationStep},
};
use std::sync::Arc;

/// Connections per role: every call is a whole batch, so that a few do the work of many.
const CONNECTIONS_PER_ROLE: usize = 4;

/// An open database. It stays open, and an embedded one stays ours alone, until this is dropped.
pub(crate) enum Database {
    Sqlite(SqliteDatabase),
    Postgres(PostgresDatabase),
    MySql(MySqlDatabase),
}

impl Database {
    /// Opens the database: an embedded one is created and migrated, a server's must be migrated already.
    pub(crate) async fn open(config: &DatabaseConfig) -> CliResult<Self> {
        Ok(match &config.backend {
            BackendUrl::Sqlite(path) => {
                data_folder::create(path)?;
                Self::Sqlite(hooksaga_sqlite::open(SqliteOptions { path: path.clone() }).await?)
            }
            BackendUrl::Postgres(url) => {
                Self::Postgres(hooksaga_postgres::connect(options(config, url)).await?)
            }
            BackendUrl::MySql(url) => Self::MySql(hooksaga_mysql::connect(options(config, url)).await?),
        })
    }

    /// A look at the connections of every role; nothing for an embedded database, which has none.
    pub(super) fn pool_use(&self) -> Option<Box<dyn Fn() -> Vec<PoolUse> + Send + Sync>> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres(database) => Some(Box::new(database.pool_use())),
            Self::MySql(database) => Some(Box::new(database.pool_use())),
        }
    }

    pub(super) fn stores(&self) -> Stores {
        match self {
            Self::Sqlite(database) => database.stores(),
            Self::Postgres(database) => database.stores(),
            Self::MySql(database) => database.stores(),
        }
    }
}

/// The version of the schema that this program works on.
pub(crate) fn schema_version(backend: &BackendUrl) -> i64 {
    match backend {
        BackendUrl::Sqlite(_) => hooksaga_sqlite::schema_version(),
        BackendUrl::Postgres(_) => hooksaga_postgres::schema_version(),
        BackendUrl::MySql(_) => hooksaga_mysql::schema_version(),
    }
}

/// Creates or upgrades the schema and the roles; `on_step` is called after each step.
pub(crate) async fn migrate(
    config: &DatabaseConfig,
    on_step: OnMigrationStep<'_>,
) -> CliResult<MigrationReport> {
    Ok(match &config.backend {
        BackendUrl::Sqlite(path) => {
            data_folder::create(path)?;
            let report = hooksaga_sqlite::migrate(path).await?;
            // All of them are one transaction.
            report.applied.iter().for_each(|step| on_step(step));
            report
        }
        BackendUrl::Postgres(url) => {
            hooksaga_postgres::migrate_telling(options(config, url), on_step).await?
        }
        BackendUrl::MySql(url) => hooksaga_mysql::migrate_telling(options(config, url), on_step).await?,
    })
}

/// Moves the ids of every table forward, after a restore from a backup.
pub(crate) async fn move_ids_forward(config: &DatabaseConfig) -> CliResult<Vec<MovedIds>> {
    Ok(match &config.backend {
        BackendUrl::Sqlite(path) => hooksaga_sqlite::move_ids_forward(path).await?,
        BackendUrl::Postgres(url) => hooksaga_postgres::move_ids_forward(options(config, url)).await?,
        BackendUrl::MySql(url) => hooksaga_mysql::move_ids_forward(options(config, url)).await?,
    })
}

/// Repairs what lists are read from, after a restore from a backup. Returns how many rows were wrong.
pub(crate) async fn repair_lists(config: &DatabaseConfig) -> CliResult<u64> {
    Ok(match &config.backend {
        BackendUrl::Sqlite(path) => hooksaga_sqlite::repair_lists(path).await?,
        BackendUrl::Postgres(url) => hooksaga_postgres::repair_lists(options(config, url)).await?,
        BackendUrl::MySql(url) => hooksaga_mysql::repair_lists(options(config, url)).await?,
    })
}

/// The SQL that creates the roles, for an administrator.
pub(crate) fn role_sql(config: &DatabaseConfig) -> CliResult<String> {
    match &config.backend {
        BackendUrl::Sqlite(_) => Err(CliError::new(
            "SQLite has no roles in the database (hooksaga checks every statement itself): nothing to print",
        )),
        BackendUrl::Postgres(url) => {
            let (database, login) = login(url).ok_or_else(|| {
                CliError::new(
                    "database.url names no login and database: write it like postgres://LOGIN@HOST/DATABASE",
                )
            })?;
            Ok(hooksaga_postgres::role_sql(&database, &login))
        }
        BackendUrl::MySql(url) => {
            let (database, login) = login(url).ok_or_else(|| {
                CliError::new(
                    "database.url names no login and database: write it like mysql://LOGIN@HOST/DATABASE",
                )
            })?;
            Ok(hooksaga_mysql::role_sql(&database, &login))
        }
    }
}

/// The API keys of a database that is there: a mistyped path is an error and does not create a new database.
pub(crate) async fn open_present_keys(config: &DatabaseConfig) -> CliResult<Arc<dyn KeyStore>> {
    match &config.backend {
        BackendUrl::Sqlite(path) if !path.exists() => Err(CliError::new(format!(
            "there is no database at {}: start the server once, or correct database.url",
            path.display()
        ))),
        _ => open_keys(config).await,
    }
}

/// The API keys alone, also beside a running embedded server.
pub(crate) async fn open_keys(config: &DatabaseConfig) -> CliResult<Arc<dyn KeyStore>> {
    Ok(match &config.backend {
        BackendUrl::Sqlite(path) => hooksaga_sqlite::open_keys(path).await?,
        BackendUrl::Postgres(url) => hooksaga_postgres::open_keys(options(config, url)).await?,
        BackendUrl::MySql(url) => hooksaga_mysql::open_keys(options(config, url)).await?,
    })
}

/// A look at the database that changes nothing.
pub(crate) async fn examine(config: &DatabaseConfig) -> StoreResult<Examination> {
    match &config.backend {
        BackendUrl::Sqlite(path) => hooksaga_sqlite::examine(path).await,
        BackendUrl::Postgres(url) => hooksaga_postgres::examine(&options(config, url)).await,
        BackendUrl::MySql(url) => hooksaga_mysql::examine(&options(config, url)).await,
    }
}

/// What the API shows, also beside a running embedded server. Nothing is created.
pub(crate) async fn open_reader(config: &DatabaseConfig) -> StoreResult<Arc<dyn ReaderStore>> {
    match &config.backend {
        BackendUrl::Sqlite(path) => hooksaga_sqlite::open_reader(path).await,
        BackendUrl::Postgres(url) => hooksaga_postgres::open_reader(options(config, url)).await,
        BackendUrl::MySql(url) => hooksaga_mysql::open_reader(options(config, url)).await,
    }
}

/// The ids of the keys that the stored signing secrets are encrypted with.
pub(crate) async fn sealing_keys(config: &DatabaseConfig) -> StoreResult<Vec<String>> {
    let stores = match &config.backend {
        BackendUrl::Sqlite(path) => return hooksaga_sqlite::sealing_keys(path).await,
        BackendUrl::Postgres(url) => hooksaga_postgres::connect(options(config, url)).await?.stores(),
        BackendUrl::MySql(url) => hooksaga_mysql::connect(options(config, url)).await?.stores(),
    };
    stores.worker.secret_key_ids().await
}

/// Seals everything that another key has sealed, also beside running servers; how many rows that were.
pub(crate) async fn rewrap(config: &DatabaseConfig, rewrap: Rewrap<'_>) -> CliResult<u64> {
    Ok(match &config.backend {
        BackendUrl::Sqlite(path) => hooksaga_sqlite::rewrap(path, rewrap)?,
        BackendUrl::Postgres(url) => hooksaga_postgres::rewrap(&options(config, url), rewrap).await?,
        BackendUrl::MySql(url) => hooksaga_mysql::rewrap(&options(config, url), rewrap).await?,
    })
}

/// The database and the login that a URL names, in either of the places where it can. Split by hand: a URL parser refuses
/// several hosts, which the drivers accept.
fn login(url: &str) -> Option<(String, String)> {
    let (_, rest) = url.split_once("://")?;
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let parameter = |name: &str| {
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v)
    };
    let (user_info, host) = address.rsplit_once('@').unwrap_or(("", address));
    let named = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let login = named(user_info.split(':').next().unwrap_or("")).or_else(|| named(parameter("user")?))?;
    let database = host.split_once('/').and_then(|(_, name)| named(name));
    let database = database.or_else(|| named(parameter("dbname")?)).unwrap_or_else(|| login.clone());
    Some((percent_decoded(&database), percent_decoded(&login)))
}

fn options(config: &DatabaseConfig, url: &str) -> ServerOptions {
    ServerOptions {
        url: url.to_owned(),
        role_urls: config.role_urls.clone(),
        roles: if config.roles { RoleMode::Switch } else { RoleMode::Off },
        max_connections_per_role: CONNECTIONS_PER_ROLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_and_database_are_found_wherever_they_stand() {
        let found = |url| login(url).map(|(database, login)| format!("{login}@{database}"));
        for (url, expected) in [
            ("postgres://me:pw@h1:1,h2:2/db?target_session_attrs=read-write", Some("me@db")),
            ("postgres://h/db?user=me", Some("me@db")),
            ("postgres://me@h", Some("me@me")),
            ("postgres:///?user=me&dbname=db&host=/run", Some("me@db")),
            ("postgres://a%40b%2@h/d%20b", Some("a@b%2@d b")),
            ("postgres://h/db", None),
        ] {
            assert_eq!(found(url).as_deref(), expected, "{url}");
        }
    }
}
