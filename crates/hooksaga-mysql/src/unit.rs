//! A transaction that begins with its first statement and ends with its last: neither costs a round trip of its own.
//!
//! Statements that go together are one text. The server runs them one after the other and stops at the first that fails:
//! so a COMMIT at the end of a text is reached only if all before it was done.
//!
//! The driver does not know that a transaction is open. Whatever happens to it before its end, a failure or a caller that
//! gives up, it is rolled back before its connection is used again.

use crate::{error::DbResult, pool::ANSWER};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::ops::{Deref, DerefMut};

pub(crate) struct Unit {
    /// Nothing only once it has ended.
    connection: Option<Conn>,
}

impl Unit {
    /// Begins one with a query; its rows.
    pub(crate) async fn begin(connection: Conn, query: &str) -> DbResult<(Self, Vec<Row>)> {
        let mut unit = Self { connection: Some(connection) };
        let mut results = unit.query_iter(format!("START TRANSACTION; {query}")).await?;
        results.collect::<Row>().await?;
        let rows = results.collect().await?;
        results.drop_result().await?;
        Ok((unit, rows))
    }

    /// Runs a write and the queries that follow it, in one text. Returns how many rows the write changed, and the rows of
    /// each query.
    pub(crate) async fn write_and_read(
        &mut self,
        write: &str,
        queries: &[String],
    ) -> DbResult<(u64, Vec<Vec<Row>>)> {
        let mut results = self.query_iter(format!("{write}; {}", queries.join("; "))).await?;
        let changed = results.affected_rows();
        results.collect::<Row>().await?;
        let mut read = Vec::with_capacity(queries.len());
        for _ in queries {
            read.push(results.collect().await?);
        }
        results.drop_result().await?;
        Ok((changed, read))
    }

    /// Runs the last statements, if any, and commits.
    pub(crate) async fn commit(mut self, last: &[String]) -> DbResult<()> {
        let mut text = String::new();
        for sql in last {
            text.push_str(sql);
            text.push_str("; ");
        }
        text.push_str("COMMIT");
        self.query_drop(text).await?;
        self.connection = None;
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> DbResult<()> {
        self.query_drop("ROLLBACK").await?;
        self.connection = None;
        Ok(())
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        // One that was given up in the middle of a statement is closed by the pool, and the server ends what it had begun.
        if !connection.is_disconnected()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                let ended = tokio::time::timeout(ANSWER, connection.query_drop("ROLLBACK")).await;
                if !matches!(ended, Ok(Ok(()))) {
                    let _ = connection.disconnect().await;
                }
            });
        }
    }
}

impl Deref for Unit {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        self.connection.as_ref().expect("it is there until the end")
    }
}

impl DerefMut for Unit {
    fn deref_mut(&mut self) -> &mut Conn {
        self.connection.as_mut().expect("it is there until the end")
    }
}
