//! Scratch databases on MySQL and MariaDB.

use super::{Filling, beside};
use crate::meter::DatabaseCounters;
use hooksaga_mysql::{connect_as_login, connect_to_server, identifier, role_name, store_error};
use hooksaga_store::{Role, StoreResult};
use mysql_async::{Conn, Error, prelude::Queryable as _};
use tokio::sync::Mutex;

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
        let scratch = Self { server: url.to_owned(), name: name.to_owned(), url: beside(url, name)? };
        scratch.execute(&format!("CREATE DATABASE {}", identifier(name))).await?;
        Ok(scratch)
    }

    /// Drops it, whoever is still connected, and the roles that its migration made.
    pub(crate) async fn drop(self) -> StoreResult<()> {
        self.disconnect_all().await?;
        self.execute(&format!("DROP DATABASE {}", identifier(&self.name))).await?;
        for role in Role::ALL {
            self.execute(&format!("DROP ROLE IF EXISTS '{}'", role_name(&self.name, *role))).await?;
        }
        Ok(())
    }

    /// Ends what others still do there, such as an interrupted filling: the drop would wait for it.
    async fn disconnect_all(&self) -> StoreResult<()> {
        let mut connection = connect_to_server(&self.server).await?;
        let sql = "SELECT id FROM information_schema.processlist WHERE db = ?";
        let others: Vec<u64> = checked(connection.exec(sql, (&self.name,)).await)?;
        for id in others {
            // It may have gone by itself.
            let _ = connection.query_drop(format!("KILL CONNECTION {id}")).await;
        }
        checked(connection.disconnect().await)
    }

    async fn execute(&self, sql: &str) -> StoreResult<()> {
        let mut connection = connect_to_server(&self.server).await?;
        checked(connection.query_drop(sql).await)?;
        checked(connection.disconnect().await)
    }
}

/// Watches and fills one database, as its owner.
pub(crate) struct Observer(Mutex<Conn>);

impl Observer {
    pub(crate) async fn connect(url: &str) -> StoreResult<Self> {
        Ok(Self(Mutex::new(connect_as_login(url).await?)))
    }

    async fn number(&self, sql: &str) -> StoreResult<i64> {
        let found: Option<Option<i64>> = checked(self.0.lock().await.query_first(sql).await)?;
        Ok(found.flatten().unwrap_or(0))
    }

    /// Where the server writes its process id.
    pub(crate) async fn pid_file(&self) -> StoreResult<String> {
        let found: Option<String> = checked(self.0.lock().await.query_first("SELECT @@pid_file").await)?;
        Ok(found.unwrap_or_default())
    }

    /// How many transactions the server has ended so far, of everybody.
    pub(crate) async fn transactions(&self) -> StoreResult<i64> {
        let sql = "SHOW GLOBAL STATUS WHERE variable_name IN ('Handler_commit', 'Handler_rollback')";
        let counts: Vec<(String, i64)> = checked(self.0.lock().await.query(sql).await)?;
        Ok(counts.into_iter().map(|(_, count)| count).sum())
    }

    /// Commits, flushes and bytes of the log, of the whole server.
    pub(crate) async fn counts(&self) -> StoreResult<DatabaseCounters> {
        let sql = "SHOW GLOBAL STATUS WHERE variable_name IN \
                   ('Handler_commit', 'Innodb_os_log_fsyncs', 'Innodb_data_fsyncs', 'Innodb_os_log_written')";
        let counts: Vec<(String, u64)> = checked(self.0.lock().await.query(sql).await)?;
        let count = |name: &str| counts.iter().find(|(found, _)| found == name).map(|(_, count)| *count);
        // Some versions count the flushes of all files together.
        let syncs = count("Innodb_os_log_fsyncs").or_else(|| count("Innodb_data_fsyncs"));
        Ok(DatabaseCounters { commits: count("Handler_commit"), syncs, log: count("Innodb_os_log_written") })
    }

    /// Whether there is no table here: one of ours may be live, however little is in it.
    pub(crate) async fn is_empty(&self) -> StoreResult<bool> {
        let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()";
        Ok(self.number(tables).await? == 0)
    }

    /// How many bytes the database takes.
    pub(crate) async fn bytes(&self) -> StoreResult<i64> {
        self.run(&[]).await?;
        let sql = "SELECT CAST(SUM(data_length + index_length) AS SIGNED) FROM information_schema.tables \
                   WHERE table_schema = DATABASE()";
        self.number(sql).await
    }

    /// Adds deliveries, as if they had been made. Every row goes the legal way there: triggers cannot be set aside here.
    pub(crate) async fn fill(&self, filling: Filling, count: i64, subscription: i64) -> StoreResult<()> {
        let next = match filling {
            Filling::Finished | Filling::Letters => "UTC_TIMESTAMP(6)",
            Filling::Waiting => "UTC_TIMESTAMP(6) + INTERVAL 1 DAY",
        };
        let new = self.add_sagas(count, subscription, next).await?;
        let begun = format!("UPDATE webhook_delivery_sagas SET status = 'InProgress' WHERE {new}");
        let statements = match filling {
            Filling::Finished => vec![
                format!(
                    "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, lease_until)
                     SELECT id, subscription_id, next_attempt_at, next_attempt_at FROM webhook_delivery_sagas
                     WHERE {new}"
                ),
                begun,
                "UPDATE webhook_delivery_jobs SET status = 'Leased', lease_token = 1 WHERE status = 'Pending'"
                    .to_owned(),
                "UPDATE webhook_delivery_jobs SET status = 'Completed', lease_token = NULL, response_status = 200,
                 duration_ms = 3 WHERE status = 'Leased'"
                    .to_owned(),
                format!(
                    "UPDATE webhook_delivery_sagas SET status = 'Completed', attempt_count = 1 WHERE {new}"
                ),
            ],
            Filling::Waiting => vec![
                begun,
                format!(
                    "UPDATE webhook_delivery_sagas SET status = 'PendingRetry', attempt_count = 1,
                     next_attempt_at = next_attempt_at + INTERVAL 1 MICROSECOND, final_error_code = 'TIMEOUT'
                     WHERE {new}"
                ),
            ],
            Filling::Letters => vec![
                begun,
                format!(
                    "UPDATE webhook_delivery_sagas SET status = 'DeadLettered', attempt_count = 1,
                     final_error_code = 'HTTP_500' WHERE {new}"
                ),
                format!(
                    "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload)
                     SELECT s.id, e.id, {subscription}, 'HTTP_500', e.payload
                     FROM webhook_delivery_sagas s JOIN events e ON e.id = s.event_id WHERE s.{new} ORDER BY s.id"
                ),
            ],
        };
        self.run(&statements).await
    }

    /// Adds events with a Pending saga each; a condition that fits these sagas.
    async fn add_sagas(&self, count: i64, subscription: i64, next: &str) -> StoreResult<String> {
        let last_event = self.number("SELECT COALESCE(MAX(id), 0) FROM events").await?;
        let last_saga = self.number("SELECT COALESCE(MAX(id), 0) FROM webhook_delivery_sagas").await?;
        self.run(&[
            format!(
                "INSERT INTO events (event_type, payload, correlation_id)
                 SELECT 'bench.filling', CONCAT('{{\"n\":', n, ',\"pad\":\"', REPEAT('x', 380), '\"}}'), MD5(n) FROM {}",
                numbers(count)
            ),
            format!(
                "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, max_retry_limit, next_attempt_at)
                 SELECT id, {subscription}, 5, {next} FROM events
                 WHERE id > {last_event} AND event_type = 'bench.filling'"
            ),
        ])
        .await?;
        Ok(format!("id > {last_saga}"))
    }

    /// Runs statements, after which the server's figures are up to date.
    async fn run(&self, statements: &[String]) -> StoreResult<()> {
        let mut connection = self.0.lock().await;
        for sql in statements {
            checked(connection.query_drop(sql).await)?;
        }
        checked(
            connection
                .query_drop("ANALYZE TABLE events, webhook_delivery_sagas, webhook_delivery_jobs, dead_letters, letter_heads")
                .await,
        )
    }
}

/// A derived table with the column `n` from 0 up to `count`, at most ten millions.
fn numbers(count: i64) -> String {
    let digits = (0..10).map(|d| format!("SELECT {d} AS d")).collect::<Vec<_>>().join(" UNION ALL ");
    let places = ["a", "b", "c", "e", "f", "g", "h"];
    let sum = places.iter().rev().fold(String::new(), |sum, place| match sum.is_empty() {
        true => format!("{place}.d"),
        false => format!("10 * ({sum}) + {place}.d"),
    });
    let tables =
        places.iter().map(|place| format!("({digits}) {place}")).collect::<Vec<_>>().join(" CROSS JOIN ");
    format!("(SELECT {sum} AS n FROM {tables}) numbers WHERE n < {count}")
}
