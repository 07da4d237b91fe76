//! The conformance suite's view of a MariaDB database. The handles belong to a login without rights of its own, so that
//! a component has its role's rights and no others.

use async_trait::async_trait;
use hooksaga_conformance::servers::Committing;
pub(crate) use hooksaga_conformance::servers::failure;
pub(crate) use hooksaga_conformance::servers::options;
use hooksaga_conformance::{Dialect, HotStatement, TestDatabase};
use hooksaga_mysql::{MySqlDatabase, connect, migrate, test_support};
use hooksaga_store::{Rewrap, Role, RoleMode, ServerOptions, StoreError, StoreResult, Stores};
use hooksaga_testkit::{
    blocking_drop::run_aside,
    mariadb::{admin_execute, admin_execute_all, create_database, drop_database},
};
use mysql_async::{Conn, Opts, OptsBuilder, Row, Value, prelude::Queryable as _};
use std::{collections::BTreeMap, sync::Mutex};

/// A separate database, which is deleted when this is dropped.
pub(crate) struct Database {
    /// The administrator's connection.
    pub(crate) url: String,
    /// Of a login that may switch to the roles, and has no other rights.
    pub(crate) plain_url: String,
    handles: MySqlDatabase,
    /// Sessions that wait for the next statement, of a role or of the administrator: the suite tries thousands of
    /// statements, and a session for each would take most of its time.
    idle: Mutex<BTreeMap<Option<Role>, Conn>>,
}

/// A fresh, empty, migrated database.
pub(crate) async fn fresh() -> Database {
    let url = create_database("test").await;
    migrate(options(&url)).await.unwrap();
    let plain_url = plain_login(&url).await;
    let handles = connect(options(&plain_url)).await.unwrap();
    Database { url, plain_url, handles, idle: Mutex::default() }
}

/// Creates a login that has only a database's roles and the database's name. Returns its URL.
pub(crate) async fn plain_login(url: &str) -> String {
    let database = name(url);
    let create = format!("CREATE USER '{database}'@'127.0.0.1' IDENTIFIED BY 'pw'");
    let grants = Role::ALL.iter().map(|&role| {
        format!("GRANT '{}' TO '{database}'@'127.0.0.1'", hooksaga_mysql::role_name(database, role))
    });
    admin_execute_all([create].into_iter().chain(grants)).await;
    url.replace("mysql://admin@", &format!("mysql://{database}:pw@"))
}

/// The database that a URL names.
pub(crate) fn name(url: &str) -> &str {
    url.rsplit_once('/').unwrap().1
}

/// A connection as the administrator, with the product's settings but without a role.
pub(crate) async fn owner(url: &str) -> Conn {
    let options = ServerOptions { roles: RoleMode::Off, ..options(url) };
    Conn::new(test_support::session(&options, Role::KeyAdmin).unwrap()).await.unwrap()
}

/// Runs a query as the administrator, and returns its one number or text.
pub(crate) async fn value(url: &str, sql: &str) -> String {
    text_rows(&mut owner(url).await, sql).await.unwrap().remove(0).remove(0).unwrap()
}

pub(crate) async fn text_rows(connection: &mut Conn, sql: &str) -> StoreResult<Vec<Vec<Option<String>>>> {
    let rows: Vec<Row> = connection.query(sql).await.map_err(|error| hooksaga_mysql::store_error(&error))?;
    let text = |value: Value| match value {
        Value::NULL => None,
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        other => Some(other.as_sql(true).trim_matches('\'').to_owned()),
    };
    Ok(rows.into_iter().map(|row| row.unwrap().into_iter().map(text).collect()).collect())
}

pub(crate) async fn execute(connection: &mut Conn, sql: &str) -> StoreResult<u64> {
    connection.query_drop(sql).await.map_err(|error| hooksaga_mysql::store_error(&error))?;
    Ok(connection.affected_rows())
}

impl Database {
    pub(crate) async fn as_role(&self, role: Role) -> StoreResult<Conn> {
        let opts: Opts = test_support::session(&options(&self.plain_url), role)?;
        Conn::new(OptsBuilder::from_opts(opts)).await.map_err(|error| hooksaga_mysql::store_error(&error))
    }

    /// A session of this role, or of the administrator.
    async fn session(&self, role: Option<Role>) -> StoreResult<Conn> {
        let idle = self.idle.lock().unwrap().remove(&role);
        match (idle, role) {
            (Some(connection), _) => Ok(connection),
            (None, Some(role)) => self.as_role(role).await,
            (None, None) => Ok(owner(&self.url).await),
        }
    }

    /// Keeps a session for the next statement, unless it may be broken.
    fn keep<T>(&self, role: Option<Role>, connection: Conn, done: StoreResult<T>) -> StoreResult<T> {
        if !done.as_ref().is_err_and(StoreError::is_transient) {
            self.idle.lock().unwrap().insert(role, connection);
        }
        done
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let name = name(&self.url).to_owned();
        run_aside("the database could not be dropped", async move {
            drop_database(&name).await;
            admin_execute(&format!("DROP USER '{name}'@'127.0.0.1'")).await;
        });
    }
}

#[async_trait]
impl TestDatabase for Database {
    fn stores(&self) -> Stores {
        self.handles.stores()
    }

    async fn execute_in(&self, role: Option<Role>, sql: &str) -> StoreResult<u64> {
        let mut connection = self.session(role).await?;
        let done = execute(&mut connection, sql).await;
        self.keep(role, connection, done)
    }

    async fn query_text(&self, sql: &str) -> StoreResult<Vec<Vec<Option<String>>>> {
        let mut connection = self.session(None).await?;
        let rows = text_rows(&mut connection, sql).await;
        self.keep(None, connection, rows)
    }

    /// A line per table of each plan: how it is read, and by which index.
    async fn explain(&self, statement: HotStatement) -> StoreResult<String> {
        let (role, statements) = test_support::hot(statement);
        let mut connection = self.as_role(role).await?;
        let mut plans = String::new();
        for sql in statements {
            for row in text_rows(&mut connection, &format!("EXPLAIN {sql}")).await? {
                let [_, kind, table, access, _, key, _, _, _, extra] = row.as_slice() else {
                    panic!("EXPLAIN has other columns: {row:?}")
                };
                let shown = |column: &Option<String>| column.clone().unwrap_or_else(|| "-".to_owned());
                let access = match shown(access).as_str() {
                    // The table that is written into.
                    "ALL" if kind.as_deref() == Some("INSERT") => "Insert".to_owned(),
                    "ALL" => "Table scan".to_owned(),
                    "index" => "Full index scan".to_owned(),
                    other => format!("Lookup ({other})"),
                };
                let line =
                    [format!("{access} on {}", shown(table)), format!("using {}", shown(key)), shown(extra)];
                plans.push_str(&line.join(" "));
                plans.push('\n');
            }
        }
        Ok(plans)
    }

    async fn rewrap(&self, rewrap: Rewrap<'_>) -> StoreResult<u64> {
        hooksaga_mysql::rewrap(&options(&self.url), rewrap).await
    }

    fn dialect(&self) -> Dialect {
        Dialect::MySql
    }

    async fn second_instance(&self) -> Stores {
        connect(options(&self.plain_url)).await.unwrap().stores()
    }
}

hooksaga_conformance::server_database!(Database, hooksaga_mysql);

impl Database {
    /// Runs statements in a transaction of the owner, and leaves it open.
    async fn begin(&self, statements: &[String]) -> Committing {
        let mut connection = owner(&self.url).await;
        let begin = ["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION"];
        for sql in begin.into_iter().chain(statements.iter().map(String::as_str)) {
            connection.query_drop(sql).await.unwrap();
        }
        Box::pin(async move { connection.query_drop("COMMIT").await.unwrap() })
    }
}
