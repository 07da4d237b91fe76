//! The conformance suite's view of a PostgreSQL database: a copy of one that is migrated once per run.

use async_trait::async_trait;
use hooksaga_conformance::servers::Committing;
pub(crate) use hooksaga_conformance::servers::failure;
pub(crate) use hooksaga_conformance::servers::options;
use hooksaga_conformance::{Dialect, HotStatement, TestDatabase};
use hooksaga_postgres::{PostgresDatabase, connect, migrate, test_support};
use hooksaga_saga::{CorrelationId, EventType, ExternalId, SubscriptionId, Tenant};
use hooksaga_store::{Allotted, Move, NewEvent, Rewrap, Role, Scheduled, StoreResult, Stores};
use hooksaga_testkit::{
    blocking_drop::run_aside,
    postgres::{admin_execute, create_database},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A separate database, which is deleted when this is dropped.
pub(crate) struct Database {
    pub(crate) url: String,
    handles: PostgresDatabase,
    /// Sessions that wait for the next statement, of a role or of the superuser: the suite tries thousands of statements,
    /// and a session for each would take most of its time.
    idle: Mutex<BTreeMap<Option<Role>, Client>>,
}

/// A fresh, empty, migrated database.
pub(crate) async fn fresh() -> Database {
    static TEMPLATE: OnceCell<String> = OnceCell::const_new();
    let template = TEMPLATE
        .get_or_init(|| async {
            let url = create_database("template", None).await;
            migrate(options(&url)).await.unwrap();
            name(&url).to_owned()
        })
        .await;
    let url = create_database("test", Some(template)).await;
    let handles = connect(options(&url)).await.unwrap();
    Database { url, handles, idle: Mutex::default() }
}

/// The database that a URL names.
pub(crate) fn name(url: &str) -> &str {
    url.rsplit_once('/').unwrap().1
}

/// A connection as the superuser.
pub(crate) async fn superuser(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// One number or text that a query returns, as the superuser.
pub(crate) async fn value(url: &str, sql: &str) -> String {
    text_rows(&superuser(url).await, sql).await.unwrap().remove(0).remove(0).unwrap()
}

async fn text_rows(client: &Client, sql: &str) -> StoreResult<Vec<Vec<Option<String>>>> {
    let messages = client.simple_query(sql).await.map_err(|error| hooksaga_postgres::store_error(&error))?;
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
        }
        _ => None,
    });
    Ok(rows.collect())
}

impl Database {
    pub(crate) async fn as_role(&self, role: Role) -> StoreResult<Client> {
        let config = test_support::session(&options(&self.url), role)?;
        let (client, connection) =
            config.connect(NoTls).await.map_err(|error| hooksaga_postgres::store_error(&error))?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// A session of this role, or of the superuser.
    async fn session(&self, role: Option<Role>) -> StoreResult<Client> {
        let idle = self.idle.lock().unwrap().remove(&role).filter(|client| !client.is_closed());
        match (idle, role) {
            (Some(client), _) => Ok(client),
            (None, Some(role)) => self.as_role(role).await,
            (None, None) => Ok(superuser(&self.url).await),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let name = name(&self.url).to_owned();
        run_aside("the database could not be dropped", async move {
            admin_execute(&format!(r#"DROP DATABASE "{name}" WITH (FORCE)"#)).await;
        });
    }
}

#[async_trait]
impl TestDatabase for Database {
    fn stores(&self) -> Stores {
        self.handles.stores()
    }

    async fn execute_in(&self, role: Option<Role>, sql: &str) -> StoreResult<u64> {
        let client = self.session(role).await?;
        let done = execute(&client, sql).await;
        self.idle.lock().unwrap().insert(role, client);
        done
    }

    async fn query_text(&self, sql: &str) -> StoreResult<Vec<Vec<Option<String>>>> {
        let client = self.session(None).await?;
        let rows = text_rows(&client, sql).await;
        self.idle.lock().unwrap().insert(None, client);
        rows
    }

    /// The plan for these very arguments, and the one that serves any: the server comes to use either.
    async fn explain(&self, statement: HotStatement) -> StoreResult<String> {
        let mut plans = String::new();
        for hot in test_support::hot(statement) {
            let client = self.as_role(hot.role).await?;
            let arguments = match hot.arguments {
                "" => String::new(),
                arguments => format!("({arguments})"),
            };
            execute(&client, &format!("PREPARE hot AS {}", hot.sql)).await?;
            for mode in ["force_custom_plan", "force_generic_plan"] {
                execute(&client, &format!("SET plan_cache_mode = {mode}")).await?;
                let lines = text_rows(&client, &format!("EXPLAIN EXECUTE hot{arguments}")).await?;
                for line in lines.into_iter().flatten().flatten() {
                    plans.push_str(&line);
                    plans.push('\n');
                }
            }
        }
        Ok(plans)
    }

    async fn rewrap(&self, rewrap: Rewrap<'_>) -> StoreResult<u64> {
        hooksaga_postgres::rewrap(&options(&self.url), rewrap).await
    }

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn second_instance(&self) -> Stores {
        connect(options(&self.url)).await.unwrap().stores()
    }
}

hooksaga_conformance::server_database!(Database, hooksaga_postgres);

impl Database {
    /// Runs statements in a transaction of the owner, and leaves it open.
    async fn begin(&self, statements: &[String]) -> Committing {
        let client = superuser(&self.url).await;
        client.batch_execute(&format!("BEGIN; {}", statements.join("; "))).await.unwrap();
        Box::pin(async move { client.batch_execute("COMMIT").await.unwrap() })
    }
}

async fn execute(client: &Client, sql: &str) -> StoreResult<u64> {
    client.execute(sql, &[]).await.map_err(|error| hooksaga_postgres::store_error(&error))
}

/// An event of the type `t`.
pub(crate) fn event(external_id: Option<&str>, correlation_id: &str) -> NewEvent {
    NewEvent {
        tenant: "default".parse::<Tenant>().unwrap(),
        event_type: "t".parse::<EventType>().unwrap(),
        payload: Arc::from(r#"{"a": "ä"}"#),
        external_id: external_id.map(|id| id.parse::<ExternalId>().unwrap()),
        correlation_id: correlation_id.parse::<CorrelationId>().unwrap(),
    }
}

/// One whole pass of scheduling: this many jobs for each of the subscriptions 1 to `subscriptions`.
pub(crate) async fn create_jobs(stores: &Stores, subscriptions: i64, jobs: u32) -> Scheduled {
    let allotted: Vec<Allotted> =
        (1..=subscriptions).map(|id| Allotted { subscription_id: SubscriptionId(id), jobs }).collect();
    stores.orchestrator.create_jobs(&allotted, &|| Move::Now).await.unwrap()
}
