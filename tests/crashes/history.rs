//! Old history that no test waits for: rows of two hours ago, by statements that the schema allows.

use crate::support::*;
use hooksaga_testkit::{mariadb, postgres};
use mysql_async::prelude::Queryable as _;
use std::collections::BTreeSet;

/// Types of old events: without deliveries; with one; with two, of which one is dead and has a letter. They may all go.
pub(super) const FINISHED: [&str; 3] = ["none", "one", "dead"];
/// Types of events that have to stay: one delivery is open, ended just now, or the event is young.
pub(super) const STAYING: [&str; 3] = ["open", "late", "young"];

/// Two hours ago, and now, in each dialect. Statements name them so.
const TIMES: [(&str, [&str; 3]); 2] = [
    (
        "@OLD",
        [
            "(CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 7200000000)",
            "(now() - interval '2 hours')",
            "(UTC_TIMESTAMP(6) - INTERVAL 2 HOUR)",
        ],
    ),
    ("@NOW", ["CAST(unixepoch('subsec') * 1000000 AS INTEGER)", "now()", "UTC_TIMESTAMP(6)"]),
];

/// The tables of an installation, seen directly.
pub(super) struct Tables {
    /// A URL, or the file of the embedded database.
    place: String,
    dialect: usize,
}

impl Tables {
    pub(super) fn of(installation: &Installation) -> Self {
        match installation.database_url() {
            Some(url) => {
                Self { place: url.to_owned(), dialect: if url.starts_with("postgres") { 1 } else { 2 } }
            }
            None => {
                let file = installation.folder.path().join("hooksaga-data/hooksaga.db");
                Self { place: file.to_str().unwrap().to_owned(), dialect: 0 }
            }
        }
    }

    async fn execute(&self, sql: &str) {
        let sql =
            TIMES.iter().fold(sql.to_owned(), |sql, (name, times)| sql.replace(name, times[self.dialect]));
        match self.dialect {
            0 => rusqlite::Connection::open(&self.place).unwrap().execute_batch(&sql).unwrap(),
            1 => postgres::execute(&self.place, &sql).await,
            _ => mariadb::execute(&self.place, &sql).await,
        }
    }

    /// The numbers in the first column.
    pub(super) async fn numbers(&self, sql: &str) -> BTreeSet<i64> {
        match self.dialect {
            0 => {
                let database = rusqlite::Connection::open(&self.place).unwrap();
                let mut statement = database.prepare(sql).unwrap();
                let rows = statement.query_map([], |row| row.get(0)).unwrap();
                rows.map(Result::unwrap).collect()
            }
            1 => {
                let connected = tokio_postgres::connect(&self.place, tokio_postgres::NoTls).await;
                let (client, connection) = connected.unwrap();
                tokio::spawn(connection);
                let rows = client.query(sql, &[]).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            _ => {
                let opts = mysql_async::Opts::from_url(&self.place).unwrap();
                let mut connection = mysql_async::Conn::new(opts).await.unwrap();
                let rows: Vec<i64> = connection.query(sql).await.unwrap();
                connection.disconnect().await.unwrap();
                rows.into_iter().collect()
            }
        }
    }

    /// So many events of each of the finished types, and ten of each that stays. Their deliveries go to this subscription and
    /// to one that there is not.
    pub(super) async fn fill(&self, of_each: usize, subscription: i64) {
        let finished = FINISHED.iter().flat_map(|kind| (0..of_each).map(move |n| (*kind, n, "@OLD")));
        let times = ["@OLD", "@OLD", "@NOW"];
        let staying = STAYING.iter().zip(times).flat_map(|(kind, at)| (0..10).map(move |n| (*kind, n, at)));
        let mut events: Vec<_> = finished.chain(staying).collect();
        // All kinds take turns.
        events.sort_by_key(|(_, n, _)| *n);
        let padding = "0123456789".repeat(50);
        let rows: Vec<String> = events
            .iter()
            .map(|(kind, n, at)| {
                format!("('{kind}', {at}, '{kind}-{n}', 'c', '{{\"n\":{n},\"p\":\"{padding}\"}}')")
            })
            .collect();
        self.execute(&format!(
            "INSERT INTO events (event_type, created_at, external_id, correlation_id, payload) VALUES {}",
            rows.join(",")
        ))
        .await;
        // Only PostgreSQL's jobs have these.
        let (columns, values) =
            if self.dialect == 1 { (", event_id, attempt", ", event_id, 1") } else { ("", "") };
        let of = |kinds: &str| format!("event_id IN (SELECT id FROM events WHERE event_type IN ({kinds}))");
        let tried = of("'one','dead','late'");
        let dead = format!("{} AND generation = 0 AND subscription_id = {subscription}", of("'dead'"));
        let jobs = |sagas: &str| format!("saga_id IN (SELECT id FROM webhook_delivery_sagas WHERE {sagas})");
        let sagas = |to: i64, kinds: &str| {
            format!(
                "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count, \
                 max_retry_limit, next_attempt_at, created_at, updated_at) \
                 SELECT id, {to}, 0, 'Pending', 0, 5, @OLD, @OLD, @OLD FROM events WHERE event_type IN ({kinds})"
            )
        };
        for sql in [
            sagas(subscription, "'one','dead','late','open'"),
            sagas(subscription + 1, "'dead'"),
            format!(
                "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, status, lease_until, \
                 created_at, updated_at{columns}) SELECT id, subscription_id, next_attempt_at, 'Pending', @OLD, @OLD, \
                 @OLD{values} FROM webhook_delivery_sagas WHERE {tried}"
            ),
            format!("UPDATE webhook_delivery_jobs SET status = 'Leased', lease_token = 1 WHERE {}", jobs(&tried)),
            format!(
                "UPDATE webhook_delivery_jobs SET status = 'Failed', lease_token = NULL, error_code = 'TIMEOUT', \
                 duration_ms = 5, updated_at = @OLD WHERE {}",
                jobs(&dead)
            ),
            "UPDATE webhook_delivery_jobs SET status = 'Completed', lease_token = NULL, response_status = 200, \
             duration_ms = 5, updated_at = @OLD WHERE status = 'Leased'"
                .to_owned(),
            format!("UPDATE webhook_delivery_sagas SET status = 'InProgress' WHERE {tried}"),
            format!(
                "UPDATE webhook_delivery_sagas SET status = 'DeadLettered', attempt_count = 1, \
                 final_error_code = 'TIMEOUT', updated_at = @OLD WHERE {dead}"
            ),
            format!(
                "UPDATE webhook_delivery_sagas SET status = 'Completed', attempt_count = 1, updated_at = @NOW \
                 WHERE {}",
                of("'late'")
            ),
            "UPDATE webhook_delivery_sagas SET status = 'Completed', attempt_count = 1, updated_at = @OLD \
             WHERE status = 'InProgress'"
                .to_owned(),
            format!(
                "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at) \
                 SELECT id, event_id, subscription_id, 'TIMEOUT', '1', @OLD FROM webhook_delivery_sagas WHERE {dead}"
            ),
        ] {
            self.execute(&sql).await;
        }
    }
}
