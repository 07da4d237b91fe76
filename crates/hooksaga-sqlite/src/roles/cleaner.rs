//! `lease_cleaner`: frees jobs whose worker is gone.

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{JobId, SagaId, Timestamp};
use hooksaga_store::{CleanerStore, ResetLease, StoreResult};
use std::time::Duration;

const EXPIRED_JOBS: &str = "/* cleaner.expired_jobs */
SELECT j.id, j.saga_id, e.tenant, e.correlation_id, j.lease_resets + 1
  FROM webhook_delivery_jobs AS j
 CROSS JOIN webhook_delivery_sagas AS g ON g.id = j.saga_id
 CROSS JOIN events AS e ON e.id = g.event_id
 WHERE j.status = 'Leased' AND j.lease_until < ?1
 ORDER BY j.lease_until LIMIT ?2";

/// `+status`: found by id; the planner must not consider the index over leased jobs.
const RESET: &str = "/* cleaner.reset */
UPDATE OR FAIL webhook_delivery_jobs
   SET status = 'Pending', lease_until = ?2, lease_token = NULL, lease_resets = lease_resets + 1, updated_at = ?2
 WHERE id = ?1 AND +status = 'Leased' AND +lease_until < ?2";

/// `?1` now, `?2` the latest end that a lease can have.
const RESET_STRANDED: &str = "/* cleaner.reset_stranded */
UPDATE OR FAIL webhook_delivery_jobs
   SET status = 'Pending', lease_until = ?1, lease_token = NULL, lease_resets = lease_resets + 1, updated_at = ?1
 WHERE id IN (SELECT id FROM webhook_delivery_jobs INDEXED BY idx_job_leased
               WHERE status = 'Leased' AND lease_until > ?2 ORDER BY lease_until LIMIT ?3)";

/// A parked job has a not-before that never comes (`?4`), and is not stranded.
const FREE_STRANDED: &str = "/* cleaner.free_stranded */
UPDATE OR FAIL webhook_delivery_jobs SET lease_until = ?1, updated_at = ?1
 WHERE id IN (SELECT id FROM webhook_delivery_jobs INDEXED BY idx_job_pending
               WHERE status = 'Pending' AND lease_until > ?2 AND lease_until < ?4 ORDER BY lease_until LIMIT ?3)";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[EXPIRED_JOBS, RESET];

pub(crate) struct CleanerSql(pub(crate) RoleHandle);

#[async_trait]
impl CleanerStore for CleanerSql {
    async fn reset_expired(&self, limit: u32) -> StoreResult<Vec<ResetLease>> {
        self.0.write(move |tx| reset_expired(tx, limit)).await
    }

    async fn free_stranded(&self, limit: u32, lease: Duration, hand_back: Duration) -> StoreResult<u64> {
        self.0
            .write(move |tx| {
                let now = tx.now.as_micros();
                let (lease, hand_back) =
                    (tx.now.after(lease).as_micros(), tx.now.after(hand_back).as_micros());
                let reset = tx.execute(RESET_STRANDED, (now, lease, limit))?;
                let freed = tx.execute(FREE_STRANDED, (now, hand_back, limit, Timestamp::MAX.as_micros()))?;
                Ok((reset + freed) as u64)
            })
            .await
    }
}

fn reset_expired(tx: &Tx<'_>, limit: u32) -> DbResult<Vec<ResetLease>> {
    let now = tx.now.as_micros();
    let expired = rows::all(tx, EXPIRED_JOBS, (now, limit), |row| {
        Ok(ResetLease {
            job_id: JobId(row.get(0)?),
            saga_id: SagaId(row.get(1)?),
            trace: rows::trace(row, 2)?,
            lease_resets: row.get(4)?,
        })
    })?;
    let mut reset = tx.prepare(RESET)?;
    let mut done = Vec::with_capacity(expired.len());
    for lease in expired {
        if reset.execute((lease.job_id.0, now))? > 0 {
            done.push(lease);
        }
    }
    Ok(done)
}
