//! `job_worker`: leases jobs and reports how they ended.

use super::{
    rate_limits::START,
    rows,
    several::{Write, several},
};
use crate::{
    engine::RoleHandle,
    error::{DbError, DbResult},
    session::{Commit, Tx},
};
use async_trait::async_trait;
use hooksaga_saga::{EventId, Gate, JobId, JobStatus, Outcome, RateLimit, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, DeliveryJob, JobReport, Lease, LeaseRef, LeaseRequest, Started, Starting,
    StoreError, StoreResult, Target, WorkerBeat, WorkerStore,
};
use rusqlite::{OptionalExtension, Row};
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

/// In the order of the partial index, which is that of admission: by id it would walk past every finished job. Read
/// row by row until enough are found. `?2` lists the subscriptions to pass over, each between commas; it is looked at
/// before anything else of a job is read.
const DUE_JOBS: &str = "/* job_worker: due_jobs */
SELECT j.id, j.saga_id, j.subscription_id, j.attempt_at, j.lease_resets, g.event_id, g.attempt_count + 1,
       e.tenant, e.event_type, e.correlation_id, e.payload, e.created_at
  FROM webhook_delivery_jobs AS j INDEXED BY idx_job_pending
 CROSS JOIN webhook_delivery_sagas AS g ON g.id = j.saga_id
 CROSS JOIN events AS e ON e.id = g.event_id
 WHERE j.status = 'Pending' AND j.lease_until <= ?1
   AND (?2 = '' OR instr(?2, ',' || j.subscription_id || ',') = 0)
 ORDER BY j.lease_until, j.id";

/// `+status`, here and below: found by id; the planner must not consider the indexes over active jobs.
macro_rules! lease {
    ($name:literal, $ids:expr) => {
        concat!(
            "/* job_worker: ",
            $name,
            " */
UPDATE OR FAIL webhook_delivery_jobs SET status = 'Leased', lease_until = ?1, lease_token = ?2, updated_at = ?3
 WHERE +status = 'Pending' AND id IN (",
            $ids,
            ")"
        )
    };
}
const LEASE: Write = Write { several: lease!("lease", several!("?")), one: lease!("lease_one", "?") };

const TARGET: &str = "/* job_worker: target */
SELECT callback_url, deliverable, deleted_at IS NOT NULL, header_names IS NOT NULL,
       iif(deleted_at IS NULL, rate_limit, NULL)
  FROM subscriptions WHERE id = ?1";

const SECRETS: &str = "/* job_worker: secrets */
SELECT id, key_id, sealed FROM subscription_secrets
 WHERE subscription_id = ?1 AND (expires_at IS NULL OR expires_at > ?2) ORDER BY id DESC";

const HEADERS: &str = "/* job_worker: headers */
SELECT key_id, sealed FROM subscription_headers WHERE subscription_id = ?1";

const HAND_BACK: &str = "/* job_worker: hand_back */
UPDATE OR FAIL webhook_delivery_jobs SET status = 'Pending', lease_until = ?3, lease_token = NULL, updated_at = ?4
 WHERE id = ?1 AND +status = 'Leased' AND lease_token = ?2";

/// `?4` is the time that never comes.
const PARK: &str = "/* job_worker: park */
UPDATE OR FAIL webhook_delivery_jobs
   SET status = 'Pending', lease_token = NULL, updated_at = ?3,
       lease_until = iif((SELECT s.deliverable FROM subscriptions AS s
                           WHERE s.id = webhook_delivery_jobs.subscription_id), ?3, ?4)
 WHERE id = ?1 AND +status = 'Leased' AND lease_token = ?2";

const PARKED: &str = "/* job_worker: parked */
SELECT j.id, coalesce((SELECT s.deliverable FROM subscriptions AS s WHERE s.id = j.subscription_id), false)
  FROM webhook_delivery_jobs AS j INDEXED BY idx_job_pending
 WHERE j.status = 'Pending' AND j.lease_until = ?1 AND j.id > ?2
 ORDER BY j.id LIMIT ?3";

const UNPARK: &str = "/* job_worker: unpark */
UPDATE OR FAIL webhook_delivery_jobs SET lease_until = ?2, updated_at = ?2
 WHERE id = ?1 AND +status = 'Pending' AND +lease_until = ?3";

const HEARTBEAT: &str = "/* job_worker: heartbeat */
INSERT INTO workers (id, slots, version, started_at, seen_at) VALUES (?1, ?2, ?3, ?4, ?4)
ON CONFLICT (id) DO UPDATE SET slots = excluded.slots, version = excluded.version, seen_at = excluded.seen_at";

/// There are only as many rows as there are processes.
const FORGET: &str = "/* job_worker: forget */
DELETE FROM workers WHERE seen_at < ?1";

const LEAVE: &str = "/* job_worker: leave */
DELETE FROM workers WHERE id = ?1";

const REPORT: &str = "/* job_worker: report */
UPDATE OR FAIL webhook_delivery_jobs
   SET status = ?3, response_status = ?4, error_code = ?5, duration_ms = ?6, response_excerpt = ?7,
       started_at = ?9, callback_url = ?10, retry_at = ?11, lease_token = NULL, updated_at = ?8
 WHERE id = ?1 AND +status = 'Leased' AND lease_token = ?2";

macro_rules! queue_results {
    ($name:literal, $rows:expr) => {
        concat!(
            "/* job_worker: ",
            $name,
            " */ INSERT OR FAIL INTO finished_jobs (job_id) VALUES ",
            $rows,
            " ON CONFLICT DO NOTHING"
        )
    };
}
const QUEUE_RESULTS: Write = Write {
    several: queue_results!("queue_results", several!("(?)")),
    one: queue_results!("queue_result", "(?)"),
};

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* job_worker: secret_key_ids */
SELECT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > ?1
 UNION SELECT key_id FROM subscription_headers ORDER BY key_id";

#[cfg(feature = "test-support")]
pub(crate) const HOT_CLAIM: &[&str] = &[DUE_JOBS, LEASE.several, LEASE.one, TARGET, SECRETS, HEADERS];
#[cfg(feature = "test-support")]
pub(crate) const HOT_HAND_BACK: &[&str] = &[HAND_BACK];
#[cfg(feature = "test-support")]
pub(crate) const HOT_PARK: &[&str] = &[PARK, PARKED, UNPARK];
#[cfg(feature = "test-support")]
pub(crate) const HOT_REPORT: &[&str] = &[REPORT, QUEUE_RESULTS.one];

/// A worker that has been gone for so long is forgotten.
const FORGOTTEN_AFTER_MICROS: i64 = 3_600_000_000;

pub(crate) struct Worker {
    handle: RoleHandle,
}

impl Worker {
    pub(crate) fn new(handle: RoleHandle) -> Self {
        Self { handle }
    }
}

#[async_trait]
impl WorkerStore for Worker {
    async fn claim(&self, limits: &ClaimLimits, lease: LeaseRequest) -> StoreResult<ClaimedBatch> {
        let limits = limits.clone();
        self.handle.write(move |tx| claim(tx, &limits, lease)).await
    }

    async fn start_limited(&self, starting: &[Starting]) -> StoreResult<Vec<Started>> {
        let starting = starting.to_vec();
        self.handle.write(move |tx| start_limited(tx, &starting)).await
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let leases = leases.to_vec();
        self.handle.write(move |tx| hand_back(tx, &leases, delay)).await
    }

    async fn park(&self, leases: &[LeaseRef]) -> StoreResult<Vec<JobId>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let leases = leases.to_vec();
        self.handle.write(move |tx| park(tx, &leases)).await
    }

    async fn unpark(&self, limit: u32) -> StoreResult<u64> {
        let (mut unparked, mut after) = (0, 0);
        loop {
            let look = self.handle.write(move |tx| unpark(tx, after, limit)).await?;
            unparked += look.unparked;
            after = look.resume_after;
            if after == 0 || unparked >= u64::from(limit) {
                return Ok(unparked);
            }
        }
    }

    async fn heartbeat(&self, beat: &WorkerBeat) -> StoreResult<()> {
        let beat = beat.clone();
        self.handle
            .write(move |tx| {
                let now = tx.now.as_micros();
                tx.execute(HEARTBEAT, (beat.worker_id, beat.slots, &beat.version, now))?;
                tx.execute(FORGET, [now - FORGOTTEN_AFTER_MICROS])?;
                Ok(())
            })
            .await
    }

    async fn leave(&self, worker_id: i64) -> StoreResult<()> {
        self.handle.write(move |tx| tx.execute(LEAVE, [worker_id]).map(drop)).await
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let reports = reports.to_vec();
        self.handle.write_linked(Commit::WithNext, move |tx| report(tx, &reports)).await
    }

    fn shares_commits(&self) -> bool {
        true
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        self.handle.read(|tx| rows::all(tx, SECRET_KEY_IDS, [tx.now.as_micros()], |row| row.get(0))).await
    }
}

fn claim(tx: &Tx<'_>, limits: &ClaimLimits, lease: LeaseRequest) -> DbResult<ClaimedBatch> {
    let LeaseRequest { token, lasts } = lease;
    let until = tx.now.after(lasts);
    let (due, cut_short) = due_jobs(tx, limits)?;
    let ids: Vec<_> = due.iter().map(|(job_id, _)| [job_id.0]).collect();
    let leased = LEASE.run(tx, &[until.as_micros(), token.0, tx.now.as_micros()], &ids)?;
    if leased != ids.len() {
        // They were read in this transaction, and nobody else writes.
        let text = format!("a claim leased {leased} jobs instead of {}", ids.len());
        return Err(DbError::Store(StoreError::Other(text)));
    }
    let mut jobs = Vec::with_capacity(due.len());
    let mut targets = HashMap::new();
    for (job_id, held) in due {
        if let Entry::Vacant(missing) = targets.entry(held.subscription_id) {
            let target = target(tx, *missing.key())?;
            missing.insert(Arc::new(target));
        }
        jobs.push(Lease { job_id, token, until, held });
    }
    Ok(ClaimedBatch { now: tx.now, jobs, cut_short, targets })
}

/// The next jobs within the limits, and whether that of payload bytes ended the search. Nothing is written meanwhile:
/// the walk over the index must not meet its own changes.
fn due_jobs(tx: &Tx<'_>, limits: &ClaimLimits) -> DbResult<(Vec<(JobId, DeliveryJob)>, bool)> {
    let mut skip = String::new();
    for id in &limits.skip {
        skip.push_str(if skip.is_empty() { "," } else { "" });
        skip.push_str(&id.to_string());
        skip.push(',');
    }
    let mut found = Vec::new();
    let mut bytes = 0;
    let mut statement = tx.prepare(DUE_JOBS)?;
    let mut rows = statement.query((tx.now.as_micros(), skip))?;
    while found.len() < limits.jobs as usize
        && let Some(row) = rows.next()?
    {
        let job = DeliveryJob {
            saga_id: SagaId(row.get(1)?),
            subscription_id: SubscriptionId(row.get(2)?),
            attempt_at: rows::time(row, 3)?,
            lease_resets: row.get(4)?,
            event_id: EventId(row.get(5)?),
            attempt: row.get(6)?,
            tenant: row.get(7)?,
            event_type: row.get(8)?,
            correlation_id: row.get(9)?,
            payload: rows::shared_text(row, 10)?,
            accepted_at: rows::time(row, 11)?,
        };
        bytes += job.payload.len() as u64;
        if bytes > limits.payload_bytes && !found.is_empty() {
            return Ok((found, true));
        }
        found.push((JobId(row.get(0)?), job));
    }
    Ok((found, false))
}

fn target(tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Target> {
    let read = |row: &Row<'_>| {
        let rate_limit = row.get::<_, Option<u32>>(4)?.map(RateLimit::per_second);
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, rate_limit))
    };
    let found = tx.prepare(TARGET)?.query_row([id.0], read).optional()?;
    // Rows of subscriptions stay; a job without one would only be parked.
    let (callback_url, deliverable, deleted, has_headers, rate_limit) = found.unwrap_or_default();
    let headers = if has_headers { rows::headers(tx, HEADERS, id)? } else { None };
    Ok(Target {
        callback_url,
        deliverable,
        deleted,
        rate_limit,
        secrets: rows::secrets(tx, SECRETS, id)?,
        headers,
    })
}

fn start_limited(tx: &Tx<'_>, starting: &[Starting]) -> DbResult<Vec<Started>> {
    let mut started = Vec::with_capacity(starting.len());
    for Starting { subscription_id, limit, jobs } in starting.iter().copied() {
        let bucket = START.full_at(tx, subscription_id)?;
        let jobs = limit.pass(Gate::Start, bucket, jobs, tx.now).passed;
        let full_at = START.pass(tx, subscription_id, limit, bucket, jobs)?;
        let wait = limit.wait(Gate::Start, Some(full_at), 1, tx.now);
        started.push(Started { subscription_id, jobs, wait });
    }
    Ok(started)
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

fn park(tx: &Tx<'_>, leases: &[LeaseRef]) -> DbResult<Vec<JobId>> {
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

/// One look at parked jobs.
struct UnparkStep {
    unparked: u64,
    /// The job that was looked at last; 0 at the end.
    resume_after: i64,
}

fn unpark(tx: &Tx<'_>, after: i64, limit: u32) -> DbResult<UnparkStep> {
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

fn report(tx: &Tx<'_>, reports: &[JobReport]) -> DbResult<Vec<JobId>> {
    let mut update = tx.prepare(REPORT)?;
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
            report.started_at.map(Timestamp::as_micros),
            &report.callback_url,
            report.retry_at.map(Timestamp::as_micros),
        ))?;
        if written > 0 {
            changed.push(lease.job_id);
        }
    }
    let queued: Vec<_> = changed.iter().map(|job| [job.0]).collect();
    QUEUE_RESULTS.run(tx, &[], &queued)?;
    Ok(changed)
}
