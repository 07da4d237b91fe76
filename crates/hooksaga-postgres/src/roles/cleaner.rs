//! `lease_cleaner`: frees jobs whose worker is gone.

use crate::{
    pool::RolePool,
    roles::rows::{bigint, natural, trace},
    time::micros,
};
use async_trait::async_trait;
use hooksaga_saga::{JobId, SagaId};
use hooksaga_store::{CleanerStore, ResetLease, StoreResult};
use std::time::Duration;

/// Scans the partial index of Leased jobs in its own order. The update finds the picked rows by their `ctid`, which
/// nobody can change while they are locked, and repeats the status: without that guard a job that has just finished
/// would become active again. (The status is hidden from the planner, which would use its index instead.)
pub(crate) const RESET_EXPIRED: &str = "/* cleaner.reset_expired */
WITH expired AS MATERIALIZED (
    SELECT ctid AS place FROM webhook_delivery_jobs
    WHERE status = 'Leased' AND lease_until < now()
    ORDER BY lease_until LIMIT $1
    FOR UPDATE SKIP LOCKED
), reset AS (
    UPDATE webhook_delivery_jobs j
    SET status = 'Pending', lease_until = now(), lease_token = NULL, lease_resets = j.lease_resets + 1,
        updated_at = now()
    WHERE j.ctid = ANY (ARRAY(SELECT place FROM expired)) AND j.status = (SELECT 'Leased'::job_status)
    RETURNING j.id, j.saga_id, j.event_id, j.lease_resets
)
SELECT r.id, r.saga_id, r.lease_resets, e.tenant, e.correlation_id
FROM reset r JOIN events e ON e.id = r.event_id";

/// Resets leases that end later than any could.
pub(crate) const RESET_STRANDED: &str = "/* cleaner.reset_stranded */
WITH stranded AS MATERIALIZED (
    SELECT ctid AS place FROM webhook_delivery_jobs
    WHERE status = 'Leased' AND lease_until > now() + $2::bigint * interval '1 microsecond'
    ORDER BY lease_until LIMIT $1
    FOR UPDATE SKIP LOCKED
)
UPDATE webhook_delivery_jobs j
SET status = 'Pending', lease_until = now(), lease_token = NULL, lease_resets = j.lease_resets + 1,
    updated_at = now()
WHERE j.ctid = ANY (ARRAY(SELECT place FROM stranded)) AND j.status = (SELECT 'Leased'::job_status)";

/// A parked job has a not-before that never comes, and is not stranded.
pub(crate) const FREE_STRANDED: &str = "/* cleaner.free_stranded */
WITH stranded AS MATERIALIZED (
    SELECT ctid AS place FROM webhook_delivery_jobs
    WHERE status = 'Pending' AND lease_until > now() + $2::bigint * interval '1 microsecond'
      AND lease_until < '9999-12-31 23:59:59.999999+00'
    ORDER BY lease_until LIMIT $1
    FOR UPDATE SKIP LOCKED
)
UPDATE webhook_delivery_jobs j SET lease_until = now(), updated_at = now()
WHERE j.ctid = ANY (ARRAY(SELECT place FROM stranded)) AND j.status = (SELECT 'Pending'::job_status)";

pub(crate) struct CleanerSql(pub(crate) RolePool);

#[async_trait]
impl CleanerStore for CleanerSql {
    async fn reset_expired(&self, limit: u32) -> StoreResult<Vec<ResetLease>> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(RESET_EXPIRED).await?;
                let rows = client.query(&statement, &[&bigint(limit)]).await?;
                rows.iter()
                    .map(|row| {
                        Ok(ResetLease {
                            job_id: JobId(row.try_get(0)?),
                            saga_id: SagaId(row.try_get(1)?),
                            lease_resets: natural(row.try_get(2)?),
                            trace: trace(row, 3)?,
                        })
                    })
                    .collect()
            })
            .await
    }

    async fn free_stranded(&self, limit: u32, lease: Duration, hand_back: Duration) -> StoreResult<u64> {
        self.0
            .run(|client| async move {
                let reset = client.prepare_cached(RESET_STRANDED).await?;
                let reset = client.execute(&reset, &[&bigint(limit), &micros(lease)]).await?;
                let free = client.prepare_cached(FREE_STRANDED).await?;
                Ok(reset + client.execute(&free, &[&bigint(limit), &micros(hand_back)]).await?)
            })
            .await
    }
}
