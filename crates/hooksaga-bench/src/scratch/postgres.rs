//! Scratch databases on PostgreSQL.

use super::beside;
use crate::meter::DatabaseCounters;
use hooksaga_postgres::{connect_as_login, store_error};
use hooksaga_store::StoreResult;
use tokio_postgres::{Client, Error};

fn checked<T>(result: Result<T, Error>) -> StoreResult<T> {
    result.map_err(|error| store_error(&error))
}

/// A database that was made for a measurement.
pub(crate) struct Scratch {
    /// Of the database beside it.
    server: String,
    name: String,
    /// Of the scratch database.
    pub(crate) url: String,
}

impl Scratch {
    /// Creates a database beside the one that `url` names, on the same server and with the same login.
    pub(crate) async fn create(url: &str, name: &str) -> StoreResult<Self> {
        let client = connect_as_login(url).await?;
        checked(client.batch_execute(&format!(r#"CREATE DATABASE "{name}""#)).await)?;
        Ok(Self { server: url.to_owned(), name: name.to_owned(), url: beside(url, name)? })
    }

    /// Drops it, whoever is still connected.
    pub(crate) async fn drop(self) -> StoreResult<()> {
        let client = connect_as_login(&self.server).await?;
        checked(client.batch_execute(&format!(r#"DROP DATABASE "{}" WITH (FORCE)"#, self.name)).await)
    }
}

/// Watches and fills one database, as its owner.
pub(crate) struct Observer(Client);

impl Observer {
    pub(crate) async fn connect(url: &str) -> StoreResult<Self> {
        Ok(Self(connect_as_login(url).await?))
    }

    /// The process that serves this connection.
    pub(crate) async fn backend(&self) -> StoreResult<i32> {
        checked(checked(self.0.query_one("SELECT pg_backend_pid()", &[]).await)?.try_get(0))
    }

    /// How many transactions the database has ended so far, of everybody.
    pub(crate) async fn transactions(&self) -> StoreResult<i64> {
        let sql =
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
        checked(checked(self.0.query_one(sql, &[]).await)?.try_get(0))
    }

    /// Commits of this database, and flushes and bytes of the whole server's log.
    pub(crate) async fn counts(&self) -> StoreResult<DatabaseCounters> {
        let sql = "SELECT xact_commit, (pg_current_wal_insert_lsn() - '0/0')::int8, \
                   current_setting('server_version_num')::int4 \
                   FROM pg_stat_database WHERE datname = current_database()";
        let row = checked(self.0.query_one(sql, &[]).await)?;
        let count = |index: usize| -> StoreResult<Option<u64>> {
            Ok(checked(row.try_get::<_, Option<i64>>(index))?.and_then(|count| u64::try_from(count).ok()))
        };
        let syncs = match checked(row.try_get::<_, i32>(2))? {
            ..140_000 => None,
            140_000..180_000 => Some("SELECT wal_sync FROM pg_stat_wal"),
            180_000.. => Some("SELECT sum(fsyncs)::int8 FROM pg_stat_io WHERE object = 'wal'"),
        };
        let syncs: Option<i64> = match syncs {
            Some(sql) => checked(checked(self.0.query_one(sql, &[]).await)?.try_get(0))?,
            None => None,
        };
        let syncs = syncs.and_then(|count| u64::try_from(count).ok());
        Ok(DatabaseCounters { commits: count(0)?, syncs, log: count(1)? })
    }

    /// Whether there is no table here: one of ours may be live, however little is in it.
    pub(crate) async fn is_empty(&self) -> StoreResult<bool> {
        let sql =
            "SELECT NOT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = ANY (current_schemas(false)))";
        checked(checked(self.0.query_one(sql, &[]).await)?.try_get(0))
    }

    /// How many bytes the database takes.
    pub(crate) async fn bytes(&self) -> StoreResult<i64> {
        let sql = "SELECT pg_database_size(current_database())";
        checked(checked(self.0.query_one(sql, &[]).await)?.try_get(0))
    }

    /// Adds finished deliveries, as if they had been made: an event, a Completed saga and its job each.
    pub(crate) async fn add_finished(&self, count: i64, subscription: i64) -> StoreResult<()> {
        checked(
            self.0.batch_execute(&format!("{UNGUARDED}{}{GUARDED}", finished(count, subscription))).await,
        )?;
        self.settle().await
    }

    /// Adds deliveries that wait for a retry tomorrow: an event and a PendingRetry saga each.
    pub(crate) async fn add_waiting(&self, count: i64, subscription: i64) -> StoreResult<()> {
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
    pub(crate) async fn checkpoint(&self) {
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
