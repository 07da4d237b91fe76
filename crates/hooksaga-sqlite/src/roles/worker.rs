//! `job_worker`: leases jobs and reports how they ended.

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{EventId, JobId, JobStatus, Outcome, SagaId, SubscriptionId};
use hooksaga_store::{
    ClaimedBatch, DeliveryJob, JobReport, Lease, LeaseRef, LeaseToken, StoreResult, Target, WorkerStore,
};
use rusqlite::OptionalExtension;
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

/// In the order of the partial index: by id it would walk past every finished job.
const DUE_JOBS: &str = "/* job_worker: due_jobs */
SELECT j.id, j.saga_id, j.subscription_id, j.attempt_at, j.lease_resets, g.event_id, g.attempt_count + 1,
       e.event_type, e.correlation_id, e.payload
  FROM webhook_delivery_jobs AS j
 CROSS JOIN webhook_delivery_sagas AS g ON g.id = j.saga_id
 CROSS JOIN events AS e ON e.id = g.event_id
 WHERE j.status = 'Pending' AND j.lease_until <= ?1
 ORDER BY j.lease_until LIMIT ?2";

/// `+status`, here and below: found by id; the planner must not consider the indexes over active jobs.
const LEASE: &str = "/* job_worker: lease */
UPDATE OR FAIL webhook_delivery_jobs SET status = 'Leased', lease_until = ?2, lease_token = ?3, updated_at = ?4
 WHERE id = ?1 AND +status = 'Pending'";

const TARGET: &str = "/* job_worker: target */
SELECT callback_url, active AND verified FROM subscriptions WHERE id = ?1";

const SECRETS: &str = "/* job_worker: secrets */
SELECT id, key_id, sealed FROM subscription_secrets
 WHERE subscription_id = ?1 AND (expires_at IS NULL OR expires_at > ?2) ORDER BY id DESC";

const HAND_BACK: &str = "/* job_worker: hand_back */
UPDATE OR FAIL webhook_delivery_jobs SET status = 'Pending', lease_until = ?3, lease_token = NULL, updated_at = ?4
 WHERE id = ?1 AND +status = 'Leased' AND lease_token = ?2";

const REPORT: &str = "/* job_worker: report */
UPDATE OR FAIL webhook_delivery_jobs
   SET status = ?3, response_status = ?4, error_code = ?5, duration_ms = ?6, response_excerpt = ?7,
       lease_token = NULL, updated_at = ?8
 WHERE id = ?1 AND +status = 'Leased' AND lease_token = ?2";

const QUEUE_RESULT: &str = "/* job_worker: queue_result */
INSERT INTO finished_jobs (job_id) VALUES (?1) ON CONFLICT DO NOTHING";

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* job_worker: secret_key_ids */
SELECT DISTINCT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > ?1 ORDER BY key_id";

#[cfg(feature = "test-support")]
pub(crate) const HOT_CLAIM: &[&str] = &[DUE_JOBS, LEASE, TARGET, SECRETS];
#[cfg(feature = "test-support")]
pub(crate) const HOT_HAND_BACK: &[&str] = &[HAND_BACK];
#[cfg(feature = "test-support")]
pub(crate) const HOT_REPORT: &[&str] = &[REPORT, QUEUE_RESULT];

pub(crate) struct Worker(pub(crate) RoleHandle);

#[async_trait]
impl WorkerStore for Worker {
    async fn claim(&self, limit: u32, lease: Duration, token: LeaseToken) -> StoreResult<ClaimedBatch> {
        self.0.write(move |tx| claim(tx, limit, lease, token)).await
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let leases = leases.to_vec();
        self.0.write(move |tx| hand_back(tx, &leases, delay)).await
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let reports = reports.to_vec();
        self.0.write(move |tx| report(tx, &reports)).await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        self.0.read(|tx| rows::all(tx, SECRET_KEY_IDS, [tx.now.as_micros()], |row| row.get(0))).await
    }
}

fn claim(tx: &Tx<'_>, limit: u32, lease: Duration, token: LeaseToken) -> DbResult<ClaimedBatch> {
    let now = tx.now.as_micros();
    let until = tx.now.after(lease);
    let due = rows::all(tx, DUE_JOBS, (now, limit), |row| {
        let held = DeliveryJob {
            saga_id: SagaId(row.get(1)?),
            subscription_id: SubscriptionId(row.get(2)?),
            attempt_at: rows::time(row, 3)?,
            lease_resets: row.get(4)?,
            event_id: EventId(row.get(5)?),
            attempt: row.get(6)?,
            event_type: row.get(7)?,
            correlation_id: row.get(8)?,
            payload: rows::shared_text(row, 9)?,
        };
        Ok(Lease { job_id: JobId(row.get(0)?), token, until, held })
    })?;
    let mut update = tx.prepare(LEASE)?;
    let mut jobs = Vec::with_capacity(due.len());
    let mut targets = HashMap::new();
    for job in due {
        if update.execute((job.job_id.0, until.as_micros(), token.0, now))? == 0 {
            continue;
        }
        if let Entry::Vacant(missing) = targets.entry(job.held.subscription_id) {
            let target = target(tx, *missing.key())?;
            missing.insert(Arc::new(target));
        }
        jobs.push(job);
    }
    Ok(ClaimedBatch { now: tx.now, jobs, targets })
}

fn target(tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Target> {
    let found = tx.prepare(TARGET)?.query_row([id.0], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    // Subscriptions are never deleted; a job without one would only be handed back.
    let (callback_url, deliverable) = found.unwrap_or_default();
    Ok(Target { callback_url, deliverable, secrets: rows::secrets(tx, SECRETS, id)? })
}

fn hand_back(tx: &Tx<'_>, leases: &[LeaseRef], delay: Duration) -> DbResult<Vec<JobId>> {
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

fn report(tx: &Tx<'_>, reports: &[JobReport]) -> DbResult<Vec<JobId>> {
    let mut update = tx.prepare(REPORT)?;
    let mut queue = tx.prepare(QUEUE_RESULT)?;
    let mut changed = Vec::with_capacity(reports.len());
    for report in reports {
        let JobReport { lease, outcome, response_status, duration, .. } = report;
        let (status, error_code) = match outcome {
            Outcome::Delivered => (JobStatus::Completed, None),
            Outcome::Failed(code) => (JobStatus::Failed, Some(code.as_str())),
        };
        let duration_ms = u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        let written = update.execute((
            lease.job_id.0,
            lease.token.0,
            status.as_str(),
            response_status,
            error_code,
            duration_ms,
            report.storable_excerpt(),
            tx.now.as_micros(),
        ))?;
        if written > 0 {
            queue.execute([lease.job_id.0])?;
            changed.push(lease.job_id);
        }
    }
    Ok(changed)
}
