//! Scratch databases for measurements: made, filled, watched and dropped. Never the live tables.

use crate::{PostgresOptions, RoleMode, error::checked, options::Session, pool::connect_once};
use hooksaga_store::{StoreError, StoreResult};
use std::collections::BTreeMap;
use tokio_postgres::Client;

/// A database that was made for a measurement.
pub struct Scratch {
    server: PostgresOptions,
    name: String,
    /// Of the scratch database.
    pub url: String,
}

impl Scratch {
    /// Creates a database beside the one that `url` names, on the same server and with the same login.
    pub async fn create(url: &str, name: &str) -> StoreResult<Self> {
        let server = options(url.to_owned());
        let client = connect_once(&server.session(Session::Login)?).await?;
        checked(client.batch_execute(&format!(r#"CREATE DATABASE "{name}""#)).await)?;
        Ok(Self { server, name: name.to_owned(), url: beside(url, name)? })
    }

    /// Drops it, whoever is still connected.
    pub async fn drop(self) -> StoreResult<()> {
        let client = connect_once(&self.server.session(Session::Login)?).await?;
        checked(client.batch_execute(&format!(r#"DROP DATABASE "{}" WITH (FORCE)"#, self.name)).await)
    }
}

/// The same URL with another database.
fn beside(url: &str, name: &str) -> StoreResult<String> {
    let unusable =
        || StoreError::Setup("database.url names no database to make a scratch one beside".to_owned());
    let (address, query) = url.split_once('?').map_or((url, None), |(address, query)| (address, Some(query)));
    let (scheme, rest) = address.split_once("://").ok_or_else(unusable)?;
    let (host, _) = rest.rsplit_once('/').ok_or_else(unusable)?;
    Ok(format!("{scheme}://{host}/{name}{}", query.map(|query| format!("?{query}")).unwrap_or_default()))
}

fn options(url: String) -> PostgresOptions {
    PostgresOptions { url, role_urls: BTreeMap::new(), roles: RoleMode::Off, max_connections_per_role: 1 }
}

/// Watches and fills one database, as its owner.
pub struct Observer(Client);

impl Observer {
    pub async fn connect(url: &str) -> StoreResult<Self> {
        Ok(Self(connect_once(&options(url.to_owned()).session(Session::Login)?).await?))
    }

    /// The process that serves this connection.
    pub async fn backend(&self) -> StoreResult<i32> {
        checked(checked(self.0.query_one("SELECT pg_backend_pid()", &[]).await)?.try_get(0))
    }

    /// How many transactions the database has ended so far, of everybody.
    pub async fn transactions(&self) -> StoreResult<i64> {
        let sql =
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
        checked(checked(self.0.query_one(sql, &[]).await)?.try_get(0))
    }

    /// Whether nobody has stored an event here.
    pub async fn is_empty(&self) -> StoreResult<bool> {
        let sql = "SELECT to_regclass('events') IS NULL OR NOT EXISTS (SELECT 1 FROM pg_stat_user_tables \
                   WHERE relname = 'events' AND n_tup_ins > 0)";
        checked(checked(self.0.query_one(sql, &[]).await)?.try_get(0))
    }

    /// How many bytes the database takes.
    pub async fn bytes(&self) -> StoreResult<i64> {
        let sql = "SELECT pg_database_size(current_database())";
        checked(checked(self.0.query_one(sql, &[]).await)?.try_get(0))
    }

    /// Adds finished deliveries, as if they had been made: an event, a Completed saga and its job each.
    pub async fn add_finished(&self, count: i64, subscription: i64) -> StoreResult<()> {
        checked(
            self.0.batch_execute(&format!("{UNGUARDED}{}{GUARDED}", finished(count, subscription))).await,
        )?;
        self.settle().await
    }

    /// Adds deliveries that wait for a retry tomorrow: an event and a PendingRetry saga each.
    pub async fn add_waiting(&self, count: i64, subscription: i64) -> StoreResult<()> {
        checked(
            self.0.batch_execute(&format!("{UNGUARDED}{}{GUARDED}", waiting(count, subscription))).await,
        )?;
        self.settle().await
    }

    /// As after a quiet night: statistics are there, and the filling is on disk, not on its way there.
    async fn settle(&self) -> StoreResult<()> {
        checked(self.0.batch_execute("VACUUM ANALYZE").await)?;
        self.checkpoint().await;
        Ok(())
    }

    /// Brings what was written to its place on disk. A login without that right goes without.
    pub async fn checkpoint(&self) {
        let _ = self.0.batch_execute("CHECKPOINT").await;
    }
}

/// The triggers refuse rows that are not born Pending; the owner may set them aside for the filling.
const UNGUARDED: &str = "BEGIN;
ALTER TABLE webhook_delivery_sagas DISABLE TRIGGER USER;
ALTER TABLE webhook_delivery_jobs DISABLE TRIGGER USER;";
const GUARDED: &str = "
ALTER TABLE webhook_delivery_sagas ENABLE TRIGGER USER;
ALTER TABLE webhook_delivery_jobs ENABLE TRIGGER USER;
COMMIT;";

fn events(count: i64) -> String {
    format!(
        "CREATE TEMP TABLE filled ON COMMIT DROP AS WITH new AS (
           INSERT INTO events (event_type, payload, correlation_id)
           SELECT 'bench.filling', '{{\"pad\":\"' || repeat('x', 380) || '\"}}', md5(n::text)
           FROM generate_series(1, {count}) n RETURNING id)
         SELECT id FROM new;"
    )
}

fn finished(count: i64, subscription: i64) -> String {
    format!(
        "{}
        WITH sagas AS (
          INSERT INTO webhook_delivery_sagas
            (event_id, subscription_id, status, attempt_count, max_retry_limit, next_attempt_at)
          SELECT id, {subscription}, 'Completed', 1, 5, now() FROM filled RETURNING id, event_id)
        INSERT INTO webhook_delivery_jobs
          (saga_id, subscription_id, event_id, attempt, attempt_at, status, lease_until, response_status,
           duration_ms)
        SELECT id, {subscription}, event_id, 1, now(), 'Completed', now(), 200, 3 FROM sagas;",
        events(count)
    )
}

fn waiting(count: i64, subscription: i64) -> String {
    format!(
        "{}
        INSERT INTO webhook_delivery_sagas
          (event_id, subscription_id, status, attempt_count, max_retry_limit, next_attempt_at, final_error_code)
        SELECT id, {subscription}, 'PendingRetry', 1, 5, now() + interval '1 day', 'TIMEOUT' FROM filled;",
        events(count)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_database_is_beside_the_configured_one() {
        let beside = |url| beside(url, "s").ok();
        assert_eq!(beside("postgres://u@h:1/db").as_deref(), Some("postgres://u@h:1/s"));
        assert_eq!(beside("postgres://h1,h2/db?a=b").as_deref(), Some("postgres://h1,h2/s?a=b"));
        assert_eq!(beside("postgres://h"), None);
    }
}
