//! A transaction that begins with its first statement and ends with its last: neither beginning nor end costs a round trip.
//!
//! Statements that belong together are one text. The server runs them one after the other and stops at the first that fails:
//! so a COMMIT at the end of a text runs only if all statements before it succeeded. On a node of a Galera Cluster that does
//! not hold ([`crate::cluster`]): there each statement is a separate command.
//!
//! The driver does not know that a transaction is open. If the transaction fails, or its caller gives up, it is rolled back
//! before its connection is used again.

use crate::{cluster::may_be_node, error::DbResult, pool::ANSWER};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::ops::{Deref, DerefMut};

pub(crate) struct BatchedTransaction {
    /// `None` only after the end.
    connection: Option<Conn>,
}

/// What one statement returned.
pub(crate) struct StatementResult {
    /// Of a write.
    pub(crate) changed: u64,
    /// Of a query.
    pub(crate) rows: Vec<Row>,
}

impl BatchedTransaction {
    /// The first statement of those that begin one.
    pub(crate) const START: &str = "START TRANSACTION";
    /// The last statement of those that end one.
    pub(crate) const COMMIT: &str = "COMMIT";

    /// Opens a transaction; nothing is sent until its first statements run.
    pub(crate) fn on(connection: Conn) -> Self {
        Self { connection: Some(connection) }
    }

    /// Begins one with a query; its rows.
    pub(crate) async fn begin(connection: Conn, query: &str) -> DbResult<(Self, Vec<Row>)> {
        let mut unit = Self::on(connection);
        let [_, answer] = unit.run([Self::START, query]).await?;
        Ok((unit, answer.rows))
    }

    /// Runs statements that go together.
    pub(crate) async fn run<const N: usize>(
        &mut self,
        statements: [&str; N],
    ) -> DbResult<[StatementResult; N]> {
        let mut answers = [const { StatementResult { changed: 0, rows: Vec::new() } }; N];
        if may_be_node(self) {
            for (statement, answer) in statements.iter().zip(answers.each_mut()) {
                self.text(statement, [answer]).await?;
            }
        } else {
            self.text(&statements.join("; "), &mut answers).await?;
        }
        Ok(answers)
    }

    /// Runs one text, of as many statements as there are results.
    async fn text(
        &mut self,
        text: &str,
        answers: impl IntoIterator<Item = &mut StatementResult>,
    ) -> DbResult<()> {
        let mut results = self.query_iter(text).await?;
        for answer in answers {
            // The first packet of a result is here once the result before it has been read.
            answer.changed = results.affected_rows();
            answer.rows = results.collect().await?;
        }
        Ok(results.drop_result().await?)
    }

    /// Runs the last statements, if any, and commits.
    pub(crate) async fn commit(mut self, last: &[String]) -> DbResult<()> {
        let mut statements: Vec<&str> = last.iter().map(String::as_str).collect();
        statements.push(Self::COMMIT);
        if may_be_node(&self) {
            for statement in statements {
                self.query_drop(statement).await?;
            }
        } else {
            self.query_drop(statements.join("; ")).await?;
        }
        self.connection = None;
        Ok(())
    }

    /// [`Self::COMMIT`] was run.
    pub(crate) fn committed(mut self) {
        self.connection = None;
    }

    pub(crate) async fn rollback(mut self) -> DbResult<()> {
        self.query_drop("ROLLBACK").await?;
        self.connection = None;
        Ok(())
    }
}

impl Drop for BatchedTransaction {
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

impl Deref for BatchedTransaction {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        self.connection.as_ref().expect("it is there until the end")
    }
}

impl DerefMut for BatchedTransaction {
    fn deref_mut(&mut self) -> &mut Conn {
        self.connection.as_mut().expect("it is there until the end")
    }
}
