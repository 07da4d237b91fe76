//! A lock on an event that reaches every node of a Galera Cluster: the janitor and whoever sends an event again write one
//! common key.
//!
//! Row locks stay on the node that took them, and the rows that the two write are different ones, so both would commit and
//! leave a saga without its event. A cluster compares the keys of the rows that two transactions wrote, also of a row that
//! one inserted and deleted: the second commit fails (1213) and is tried again.
//!
//! What is compared at the commit is what was not yet applied here by then. What is applied between a statement and the commit
//! only meets the locks that were taken before it. So this comes before whatever is read to decide.

use super::batch::Batch;
use crate::error::DbResult;
use mysql_async::{Transaction, prelude::Queryable as _};
use std::collections::BTreeSet;

/// ON DUPLICATE KEY: who waits for a row takes an exclusive lock at once. A plain INSERT would take a shared one first, and
/// two that wait would be a deadlock.
pub(crate) const INSERT: &str = "/* event_locks.insert */
INSERT INTO event_locks (event_id)
SELECT u.id FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
ON DUPLICATE KEY UPDATE event_id = VALUES(event_id)";

pub(crate) const DELETE: &str = "/* event_locks.delete */
DELETE l FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN event_locks l FORCE INDEX (PRIMARY) ON l.event_id = u.id";

/// Locks events until the end of the transaction, in the order of their ids.
pub(super) async fn lock(
    transaction: &mut Transaction<'_>,
    events: impl IntoIterator<Item = i64>,
) -> DbResult<()> {
    let events: BTreeSet<i64> = events.into_iter().collect();
    for document in Batch::ids(events) {
        transaction.exec_drop(INSERT, (document.as_str(),)).await?;
        transaction.exec_drop(DELETE, (document,)).await?;
    }
    Ok(())
}
