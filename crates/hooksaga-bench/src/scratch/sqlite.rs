//! Fills and watches a scratch database for measurements. Never the live tables.

use super::Filling;
use hooksaga_sqlite::store_error;
use hooksaga_store::{StoreError, StoreResult};
use rusqlite::{Connection, InterruptHandle};
use std::{fs, path::Path};
use tokio::task::spawn_blocking;

/// How many transactions have changed the database since its log was opened: a count in the header of the log's index,
/// which is a file of its own (SQLite's documentation, "WAL-mode File Format").
pub(crate) fn commits(path: &Path) -> Option<u64> {
    const AT: usize = 8;
    let mut name = path.file_name()?.to_owned();
    name.push("-shm");
    let header = fs::read(path.with_file_name(name)).ok()?;
    let count = header.get(AT..AT + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(count).into())
}

const EVENTS: &str = "
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
INSERT INTO events (id, event_type, created_at, payload, correlation_id)
SELECT :first + i, 'bench.filling', :now, '{\"n\":' || (i - 1) || ',\"pad\":\"' || hex(zeroblob(190)) || '\"}', hex(randomblob(16)) FROM n";

const FINISHED: &[&str] = &[
    "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count,
       max_retry_limit, next_attempt_at, created_at, updated_at)
     SELECT id, :subscription, 0, 'Completed', 1, 5, :now, :now, :now FROM events WHERE id > :first",
    "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, status, lease_until, lease_resets,
       response_status, duration_ms, created_at, updated_at)
     SELECT id, :subscription, :now, 'Completed', :now, 0, 200, 3, :now, :now
     FROM webhook_delivery_sagas WHERE event_id > :first",
];

const WAITING: &[&str] =
    &["INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count,
       max_retry_limit, next_attempt_at, final_error_code, created_at, updated_at)
     SELECT id, :subscription, 0, 'PendingRetry', 1, 5, :now + 86400000000, 'TIMEOUT', :now, :now
     FROM events WHERE id > :first"];

const LETTERS: &[&str] = &[
    "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count,
       max_retry_limit, next_attempt_at, final_error_code, created_at, updated_at)
     SELECT id, :subscription, 0, 'DeadLettered', 5, 5, :now, 'HTTP_500', :now, :now FROM events WHERE id > :first",
    "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at)
     SELECT g.id, e.id, :subscription, 'HTTP_500', e.payload, :now
     FROM events e JOIN webhook_delivery_sagas g ON g.event_id = e.id WHERE e.id > :first ORDER BY g.id",
    // The trigger that keeps them is set aside, too.
    "INSERT INTO letter_heads (letter_id, saga_id, subscription_id, tenant, event_type, final_error_code, created_at,
       saga_created_at, requeued)
     SELECT d.id, d.saga_id, :subscription, e.tenant, e.event_type, d.final_error_code, :now, :now, 0
     FROM dead_letters d JOIN events e ON e.id = d.event_id WHERE e.id > :first",
];

/// Ends a statement that takes minutes as soon as nobody waits for it any more.
struct Abandon(InterruptHandle);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.interrupt();
    }
}

/// Adds deliveries, as if they had been made.
pub(crate) async fn fill(path: &Path, filling: Filling, count: i64, subscription: i64) -> StoreResult<()> {
    let statements = match filling {
        Filling::Finished => FINISHED,
        Filling::Waiting => WAITING,
        Filling::Letters => LETTERS,
    };
    let mut connection = Connection::open(path).map_err(|error| store_error(&error))?;
    let sql = "SELECT EXISTS (SELECT 1 FROM subscriptions WHERE event_type NOT LIKE 'bench.%')";
    let live: bool = connection.query_row(sql, [], |row| row.get(0)).map_err(|error| store_error(&error))?;
    if live {
        return Err(StoreError::Setup(
            "this is not a scratch database: it has other subscriptions".to_owned(),
        ));
    }
    let _abandoned = Abandon(connection.get_interrupt_handle());
    // On a thread of its own: a run can be interrupted meanwhile.
    let filling = spawn_blocking(move || try_fill(&mut connection, count, subscription, statements));
    let filled =
        filling.await.map_err(|error| StoreError::Setup(format!("the filling was given up: {error}")))?;
    filled.map_err(|error| store_error(&error))
}

fn try_fill(
    connection: &mut Connection,
    count: i64,
    subscription: i64,
    statements: &[&str],
) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    // The triggers refuse rows that are not born Pending: set aside for the filling, and put back as they were.
    let triggers: Vec<(String, String)> = transaction
        .prepare("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (name, _) in &triggers {
        transaction.execute_batch(&format!("DROP TRIGGER \"{name}\""))?;
    }
    let first: i64 =
        transaction.query_row("SELECT coalesce(max(id), 0) FROM events", [], |row| row.get(0))?;
    let now: i64 = transaction.query_row("SELECT unixepoch() * 1000000", [], |row| row.get(0))?;
    for sql in [EVENTS].iter().chain(statements) {
        let mut statement = transaction.prepare(sql)?;
        for (name, value) in
            [(":count", count), (":first", first), (":now", now), (":subscription", subscription)]
        {
            if let Some(index) = statement.parameter_index(name)? {
                statement.raw_bind_parameter(index, value)?;
            }
        }
        statement.raw_execute()?;
    }
    for (_, sql) in &triggers {
        transaction.execute_batch(sql)?;
    }
    transaction.commit()?;
    connection.execute_batch("ANALYZE; PRAGMA wal_checkpoint(TRUNCATE)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_counted_from_outside() {
        let folder = std::env::temp_dir().join(format!("hooksaga_commits_{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a scratch folder");
        let path = folder.join("scratch.db");
        let counted = (|| {
            let connection = Connection::open(&path).ok()?;
            connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (i)").ok()?;
            let before = commits(&path)?;
            for _ in 0..3 {
                connection
                    .execute_batch("BEGIN; INSERT INTO t VALUES (1); INSERT INTO t VALUES (2); COMMIT")
                    .ok()?;
            }
            Some(commits(&path)? - before)
        })();
        fs::remove_dir_all(&folder).expect("it was made here");
        assert_eq!(counted, Some(3));
        assert_eq!(commits(&path), None);
    }
}
