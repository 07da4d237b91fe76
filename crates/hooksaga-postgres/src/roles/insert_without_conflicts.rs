//! Inserts whose keys are hardly ever taken.
//!
//! `ON CONFLICT DO NOTHING` looks every unique key up before it inserts, and touches the row once more afterwards: a
//! third of an insert's cost, for a conflict that needs a crash, a lost response or another process. So a batch is
//! inserted without it first. If a key is taken, the statement is undone as a whole and runs with it, and so do the
//! next ones for a while.

use crate::error::DbResult;
use deadpool_postgres::Client;
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio_postgres::{Row, error::SqlState, types::ToSql};

/// A statement in two forms that do the same as long as no key is taken.
#[derive(Clone, Copy)]
pub(crate) struct Insert {
    /// Fails if one is.
    pub(crate) plain: &'static str,
    /// Leaves out the rows whose key is taken.
    pub(crate) careful: &'static str,
}

/// Runs one [`Insert`], and remembers when a key was taken last.
#[derive(Default)]
pub(crate) struct Inserter(Mutex<Option<Instant>>);

impl Inserter {
    /// Where one key is taken there will be more (several orchestrators find the same sagas), and each failure is an
    /// error in the server's log.
    const CAREFUL_FOR: Duration = Duration::from_secs(300);

    /// Whether a key was taken lately.
    pub(crate) fn is_careful(&self) -> bool {
        let taken = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.is_some_and(|at| at.elapsed() < Self::CAREFUL_FOR)
    }

    /// Runs the statement, outside a transaction.
    pub(crate) async fn run(
        &self,
        client: &Client,
        insert: Insert,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> DbResult<Vec<Row>> {
        if !self.is_careful() {
            let plain = client.prepare_cached(insert.plain).await?;
            match client.query(&plain, parameters).await {
                Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                    *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                }
                done => return Ok(done?),
            }
        }
        let careful = client.prepare_cached(insert.careful).await?;
        Ok(client.query(&careful, parameters).await?)
    }
}
