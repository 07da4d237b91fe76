//! Claims: which jobs are leased, in the order in which they were admitted, and all that their attempts need.

use crate::{
    error::{DbError, DbResult},
    roles::{
        multi_row::{Write, several},
        rows,
    },
    session::Tx,
};
use hooksaga_saga::{EventId, JobId, RateLimit, SagaId, SubscriptionId};
use hooksaga_store::{ClaimLimits, ClaimedBatch, DeliveryJob, Lease, LeaseRequest, StoreError, Target};
use rusqlite::{OptionalExtension, Row};
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

/// In the order of the partial index, which is that of admission: by id it would pass every finished job. Read
/// row by row until enough are found. `?2` lists the subscriptions to pass over, each between commas; it is examined
/// before anything else of a job is read.
const DUE_JOBS: &str = "/* worker.due_jobs */
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
            "/* worker.",
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

const TARGET: &str = "/* worker.target */
SELECT callback_url, deliverable, deleted_at IS NOT NULL, header_names IS NOT NULL,
       iif(deleted_at IS NULL, rate_limit, NULL)
  FROM subscriptions WHERE id = ?1";

const SECRETS: &str = "/* worker.secrets */
SELECT id, key_id, sealed FROM subscription_secrets
 WHERE subscription_id = ?1 AND (expires_at IS NULL OR expires_at > ?2) ORDER BY id DESC";

const HEADERS: &str = "/* worker.headers */
SELECT key_id, sealed FROM subscription_headers WHERE subscription_id = ?1";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[DUE_JOBS, LEASE.several, LEASE.one, TARGET, SECRETS, HEADERS];

pub(super) fn claim(tx: &Tx<'_>, limits: &ClaimLimits, lease: LeaseRequest) -> DbResult<ClaimedBatch> {
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
/// the scan over the index must not meet its own changes.
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
