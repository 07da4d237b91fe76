//! `lease_cleaner`: frees jobs whose worker is gone.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        batch::Batch,
        rows::{expect_rows, natural, rows, take, trace},
    },
    time::SqlTime,
};
use async_trait::async_trait;
use hooksaga_saga::{JobId, SagaId};
use hooksaga_store::{CleanerStore, ResetLease, StoreResult};
use mysql_async::{Conn, Row, TxOpts, prelude::Queryable as _};
use std::time::Duration;

/// Reads the clock, and whether there is anything to do, before a transaction begins: an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* cleaner.peek */
SELECT UTC_TIMESTAMP(6), EXISTS (SELECT 1 FROM webhook_delivery_jobs FORCE INDEX (idx_job_leased)
                                 WHERE leased_until < UTC_TIMESTAMP(6))";

/// Scans the index of Leased jobs in its own order, beyond the NULLs of all others.
pub(crate) const PICK: &str = "/* cleaner.pick */
SELECT id FROM webhook_delivery_jobs FORCE INDEX (idx_job_leased)
WHERE leased_until < ? ORDER BY leased_until LIMIT ? FOR UPDATE SKIP LOCKED";

/// The status is repeated: without that guard a job that has just finished would become active again.
pub(crate) const RESET: &str = "/* cleaner.reset */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
SET j.status = 'Pending', j.lease_until = ?, j.lease_token = NULL, j.lease_resets = j.lease_resets + 1,
    j.updated_at = ?
WHERE j.status = 'Leased'";

pub(crate) const READ: &str = "/* cleaner.read */
SELECT j.id, j.saga_id, j.lease_resets, e.tenant, e.correlation_id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = j.saga_id
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id";

/// Leases that end later than is possible with a right clock.
pub(crate) const PICK_LEASED: &str = "/* cleaner.pick_leased */
SELECT id FROM webhook_delivery_jobs FORCE INDEX (idx_job_leased)
WHERE leased_until > ? ORDER BY leased_until LIMIT ? FOR UPDATE SKIP LOCKED";

/// Not-before times that are later than is possible with a right clock. Those of parked jobs, which never come, are left out.
pub(crate) const PICK_PENDING: &str = "/* cleaner.pick_pending */
SELECT id FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
WHERE pending_until > ? AND pending_until < '9999-12-31 23:59:59.999999'
ORDER BY pending_until LIMIT ? FOR UPDATE SKIP LOCKED";

pub(crate) const FREE: &str = "/* cleaner.free */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
SET j.lease_until = ?, j.updated_at = ?
WHERE j.status = 'Pending'";

pub(crate) struct CleanerSql(pub(crate) RolePool);

#[async_trait]
impl CleanerStore for CleanerSql {
    async fn reset_expired(&self, limit: u32) -> StoreResult<Vec<ResetLease>> {
        self.0.run(|connection| reset(connection, limit)).await
    }

    async fn free_stranded(&self, limit: u32, lease: Duration, hand_back: Duration) -> StoreResult<u64> {
        self.0
            .run(|mut connection| async move {
                let freed = free(&mut connection, [PICK_LEASED, RESET], limit, lease).await?;
                Ok(freed + free(&mut connection, [PICK_PENDING, FREE], limit, hand_back).await?)
            })
            .await
    }
}

/// One transaction: picks jobs that lie further ahead than `beyond`, and changes them.
async fn free(
    connection: &mut Conn,
    [pick, change]: [&str; 2],
    limit: u32,
    beyond: Duration,
) -> DbResult<u64> {
    let now: Option<SqlTime> = connection.query_first("/* cleaner.clock */ SELECT UTC_TIMESTAMP(6)").await?;
    let now = now.ok_or_else(|| DbError::unreadable("no clock"))?;
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let mut picked: Vec<i64> = transaction.exec(pick, (SqlTime(now.0.after(beyond)), limit)).await?;
    picked.sort_unstable();
    let mut changed = 0;
    for document in Batch::ids(picked) {
        transaction.exec_drop(change, (document, now, now)).await?;
        changed += transaction.affected_rows();
    }
    transaction.commit().await?;
    Ok(changed)
}

async fn reset(mut connection: Conn, limit: u32) -> DbResult<Vec<ResetLease>> {
    let peek: Option<(SqlTime, bool)> = connection.exec_first(PEEK, ()).await?;
    let (now, waiting) = peek.ok_or_else(|| DbError::unreadable("no clock"))?;
    if !waiting {
        return Ok(Vec::new());
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let mut expired: Vec<i64> = transaction.exec(PICK, (now, limit)).await?;
    if expired.is_empty() {
        transaction.rollback().await?;
        return Ok(Vec::new());
    }
    expired.sort_unstable();
    let documents = Batch::ids(expired.iter().copied());
    let mut changed = 0;
    for document in &documents {
        transaction.exec_drop(RESET, (document, now, now)).await?;
        changed += transaction.affected_rows();
    }
    expect_rows("a reset", rows(expired.len()), changed)?;
    let mut reset = Vec::with_capacity(expired.len());
    for document in documents {
        let read: Vec<Row> = transaction.exec(READ, (document,)).await?;
        for mut row in read {
            reset.push(ResetLease {
                job_id: JobId(take(&mut row, 0)?),
                saga_id: SagaId(take(&mut row, 1)?),
                lease_resets: natural(take(&mut row, 2)?),
                trace: trace(&mut row, 3)?,
            });
        }
    }
    transaction.commit().await?;
    Ok(reset)
}
