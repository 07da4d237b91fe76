//! A lock on an event that reaches every node of a Galera Cluster.
//!
//! The race: the janitor removes an old event on one node while somebody sends it again on another. Row locks do not leave
//! their node, and the two transactions write different rows. So both would commit, and leave a saga without its event.
//!
//! Why this prevents it: both transactions insert and delete the same row of `event_locks`. A cluster compares the keys that
//! concurrent transactions wrote, including those of a row that was inserted and deleted again. The second commit fails
//! (1213), and its transaction is tried again. `tests/galera.rs` runs the race.
//!
//! The same row also serialises storing a dead letter on one node with sending its delivery again on another. Without
//! it neither would see the other's row, and the letter would be listed as not sent again. The row of no event, 0,
//! serialises starts of redrives, which count those that run.
//!
//! [`lock`] has to come before the reads that the decision depends on. At commit the cluster checks our writes only
//! against transactions that this node has not applied yet. A transaction that it applied earlier, while ours was open,
//! is caught only by row locks that we held at that moment. Hence the lock first, then the reads.

use super::batch::Batch;
use crate::error::DbResult;
use mysql_async::{Transaction, prelude::Queryable as _};
use std::collections::BTreeSet;

/// With ON DUPLICATE KEY, a transaction that waits for the row requests an exclusive lock at once. A plain INSERT would
/// request a shared lock first, and two of them that wait would deadlock.
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
