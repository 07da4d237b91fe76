//! Jobs that are given back: to be claimed again soon, or only when their subscriptions can be delivered to.

use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::{JobId, Timestamp};
use hooksaga_store::LeaseRef;
use std::time::Duration;

/// `+status`, here and below: found by id; the planner must not consider the indexes over active jobs.
const HAND_BACK: &str = "/* worker.hand_back */
UPDATE OR FAIL webhook_delivery_jobs SET status = 'Pending', lease_until = ?3, lease_token = NULL, updated_at = ?4
 WHERE id = ?1 AND +status = 'Leased' AND lease_token = ?2";

/// `?4` is the time that never comes.
const PARK: &str = "/* worker.park */
UPDATE OR FAIL webhook_delivery_jobs
   SET status = 'Pending', lease_token = NULL, updated_at = ?3,
       lease_until = iif((SELECT s.deliverable FROM subscriptions AS s
                           WHERE s.id = webhook_delivery_jobs.subscription_id), ?3, ?4)
 WHERE id = ?1 AND +status = 'Leased' AND lease_token = ?2";

const PARKED: &str = "/* worker.parked */
SELECT j.id, coalesce((SELECT s.deliverable FROM subscriptions AS s WHERE s.id = j.subscription_id), false)
  FROM webhook_delivery_jobs AS j INDEXED BY idx_job_pending
 WHERE j.status = 'Pending' AND j.lease_until = ?1 AND j.id > ?2
 ORDER BY j.id LIMIT ?3";

const UNPARK: &str = "/* worker.unpark */
UPDATE OR FAIL webhook_delivery_jobs SET lease_until = ?2, updated_at = ?2
 WHERE id = ?1 AND +status = 'Pending' AND +lease_until = ?3";

#[cfg(feature = "test-support")]
pub(crate) const HOT_HAND_BACK: &[&str] = &[HAND_BACK];
#[cfg(feature = "test-support")]
pub(crate) const HOT_PARK: &[&str] = &[PARK, PARKED, UNPARK];

pub(super) fn hand_back(tx: &Tx<'_>, leases: &[LeaseRef], delay: Duration) -> DbResult<Vec<JobId>> {
    let mut update = tx.prepare(HAND_BACK)?;
    let not_before = tx.now.after(delay).as_micros();
    let mut changed = Vec::with_capacity(leases.len());
    for lease in leases {
        if update.execute((lease.job_id.0, lease.token.0, not_before, tx.now.as_micros()))? > 0 {
            changed.push(lease.job_id);
        }
    }
    Ok(changed)
}

pub(super) fn park(tx: &Tx<'_>, leases: &[LeaseRef]) -> DbResult<Vec<JobId>> {
    let mut update = tx.prepare(PARK)?;
    let never = Timestamp::MAX.as_micros();
    let mut changed = Vec::with_capacity(leases.len());
    for lease in leases {
        if update.execute((lease.job_id.0, lease.token.0, tx.now.as_micros(), never))? > 0 {
            changed.push(lease.job_id);
        }
    }
    Ok(changed)
}

/// One step of unparking.
pub(super) struct UnparkStep {
    pub(super) unparked: u64,
    /// The job that was examined last; 0 at the end.
    pub(super) resume_after: i64,
}

pub(super) fn unpark(tx: &Tx<'_>, after: i64, limit: u32) -> DbResult<UnparkStep> {
    let never = Timestamp::MAX.as_micros();
    let parked = rows::all(tx, PARKED, (never, after, limit), |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?))
    })?;
    let more = parked.len() == limit as usize;
    let mut look = UnparkStep { unparked: 0, resume_after: 0 };
    let mut update = tx.prepare(UNPARK)?;
    for (id, is_deliverable) in parked {
        if is_deliverable {
            look.unparked += update.execute((id, tx.now.as_micros(), never))? as u64;
        }
        if more {
            look.resume_after = id;
        }
    }
    Ok(look)
}
