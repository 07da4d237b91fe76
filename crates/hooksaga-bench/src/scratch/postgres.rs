//! Scratch databases on PostgreSQL.

use super::{Filling, beside};
use crate::{meter::DatabaseCounters, report::TableState};
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

    /// The tables that every delivery writes, as the server counts them.
    pub(crate) async fn tables(&self) -> StoreResult<Vec<TableState>> {
        const TABLES: &[&str] = &[
            "events",
            "webhook_delivery_sagas",
            "webhook_delivery_jobs",
            "unrouted_events",
            "finished_jobs",
            "removals",
        ];
        let sql = "SELECT s.relname::text, s.n_live_tup, s.n_dead_tup, pg_total_relation_size(s.relid) \
                   FROM pg_stat_user_tables s JOIN unnest($1::text[]) WITH ORDINALITY t (name, place) \
                   ON s.relname = t.name AND s.schemaname = ANY (current_schemas(false)) ORDER BY t.place";
        let rows = checked(self.0.query(sql, &[&TABLES]).await)?;
        let state = |row: &tokio_postgres::Row| -> Result<TableState, Error> {
            Ok(TableState {
                name: row.try_get(0)?,
                rows: row.try_get(1)?,
                dead_rows: row.try_get(2)?,
                bytes: row.try_get(3)?,
            })
        };
        rows.iter().map(|row| checked(state(row))).collect()
    }

    /// Adds deliveries, as if they had been made.
    pub(crate) async fn fill(&self, filling: Filling, count: i64, subscription: i64) -> StoreResult<()> {
        let rows = match filling {
            Filling::Finished => finished(count, subscription),
            Filling::Waiting => waiting(count, subscription),
            Filling::Letters => letters(count, subscription),
        };
        checked(self.0.batch_execute(&format!("{UNGUARDED}{rows}{GUARDED}")).await)?;
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
           SELECT 'bench.filling', '{{\"n\":' || n - 1 || ',\"pad\":\"' || repeat('x', 380) || '\"}}', md5(n::text)
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

/// The triggers of letters stay in force: they keep what lists are filtered by.
fn letters(count: i64, subscription: i64) -> String {
    format!(
        "{}
        WITH sagas AS (
          INSERT INTO webhook_delivery_sagas
            (event_id, subscription_id, status, attempt_count, max_retry_limit, next_attempt_at, final_error_code)
          SELECT id, {subscription}, 'DeadLettered', 5, 5, now(), 'HTTP_500' FROM filled ORDER BY id
          RETURNING id, event_id)
        INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload)
        SELECT s.id, e.id, {subscription}, 'HTTP_500', e.payload FROM sagas s JOIN events e ON e.id = s.event_id
        ORDER BY s.id;",
        events(count)
    )
}
