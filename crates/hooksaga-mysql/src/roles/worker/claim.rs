//! A claim: the jobs that were admitted first, as many as the limits allow, with all that their attempts need.

use crate::{
    error::{DbError, DbResult},
    roles::{
        batch::{Batch, list},
        rows::{expect_rows, natural, rows, take},
    },
    time::{Time, micros},
};
use hooksaga_saga::{EventId, JobId, RateLimit, SagaId, SecretId, SubscriptionId, Timestamp};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, DeliveryJob, Lease, LeaseToken, SealedSecret, StoredSecret, Target,
};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable as _};
use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

/// The clock, when a lease that begins now will end, and whether there is anything to do, before a transaction is begun:
/// an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* worker.peek */
SELECT UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
       EXISTS (SELECT 1 FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
               WHERE pending_until <= UTC_TIMESTAMP(6))";

/// Reads the index of Pending jobs in its own order, beyond the NULLs of all others; parked jobs stand at its end.
pub(crate) fn pick(skip: &[SubscriptionId]) -> String {
    let skipped = match skip {
        [] => String::new(),
        skip => format!(" AND subscription_id NOT IN ({})", list(skip.iter().map(|id| id.0))),
    };
    format!(
        "/* worker.pick */
SELECT id FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
WHERE pending_until <= ?{skipped} ORDER BY pending_until, id LIMIT ? FOR UPDATE SKIP LOCKED"
    )
}

/// The picked jobs, with the sizes of their payloads.
pub(crate) const JOBS: &str = "/* worker.jobs */
SELECT j.id, j.saga_id, j.subscription_id, j.attempt_at, j.lease_resets, s.attempt_count, s.event_id, e.payload_bytes
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = j.saga_id
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id";

/// None but this transaction can have changed the picked jobs.
pub(crate) const LEASE: &str = "/* worker.lease */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
SET j.status = 'Leased', j.lease_until = ?, j.lease_token = ?, j.updated_at = ?
WHERE j.status = 'Pending'";

/// Each event once, however many subscriptions it goes to.
pub(crate) const EVENTS: &str = "/* worker.events */
SELECT e.id, e.event_type, e.correlation_id, e.payload, e.tenant
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.id";

/// The subscriptions of a claim, each with its valid secrets, newest first, and its headers: one statement, so that no URL
/// is seen with the headers of another.
pub(crate) const TARGETS: &str = "/* worker.targets */
SELECT s.id, s.callback_url, s.deliverable, k.id, k.key_id, k.sealed, s.deleted_at IS NOT NULL, h.key_id, h.sealed,
    CASE WHEN s.deleted_at IS NULL THEN s.rate_limit END
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = u.id
LEFT JOIN subscription_headers h FORCE INDEX (PRIMARY) ON h.subscription_id = s.id AND s.header_names IS NOT NULL
LEFT JOIN subscription_secrets k FORCE INDEX (idx_secret_subscription)
    ON k.subscription_id = s.id AND (k.expires_at IS NULL OR k.expires_at > UTC_TIMESTAMP(6))
ORDER BY s.id, k.id DESC";

/// All is read before the commit: what cannot be read is not claimed.
pub(super) async fn claim(
    mut connection: Conn,
    limits: &ClaimLimits,
    duration: Duration,
    token: LeaseToken,
) -> DbResult<ClaimedBatch> {
    let peek: Option<(Time, Time, bool)> = connection.exec_first(PEEK, (micros(duration),)).await?;
    let (now, until, waiting) = peek.ok_or_else(|| DbError::unreadable("no clock"))?;
    let nothing = || ClaimedBatch { now: now.0, jobs: Vec::new(), cut_short: false, targets: HashMap::new() };
    if !waiting || limits.jobs == 0 {
        return Ok(nothing());
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    // Lists of skipped subscriptions differ from call to call: preparing those would only fill the cache.
    let sql = pick(&limits.skip);
    let picked: Vec<i64> = if limits.skip.is_empty() {
        transaction.exec(sql, (now, limits.jobs)).await?
    } else {
        let sql = sql.replacen('?', &now.literal(), 1).replacen('?', &limits.jobs.to_string(), 1);
        transaction.query(sql).await?
    };
    if picked.is_empty() {
        transaction.rollback().await?;
        return Ok(nothing());
    }
    let (picked, cut_short) = within(read(&mut transaction, &picked).await?, limits.payload_bytes);
    let mut ids: Vec<i64> = picked.iter().map(|job| job.id).collect();
    ids.sort_unstable();
    let mut leased = 0;
    for document in Batch::ids(ids) {
        transaction.exec_drop(LEASE, (document, until, token.0, now)).await?;
        leased += transaction.affected_rows();
    }
    expect_rows("a claim", rows(picked.len()), leased)?;
    let subscriptions: BTreeSet<i64> = picked.iter().map(|job| job.subscription_id).collect();
    let jobs = leases(&mut transaction, picked, token, until.0).await?;
    let targets = targets(&mut transaction, subscriptions).await?;
    transaction.commit().await?;
    Ok(ClaimedBatch { now: now.0, jobs, cut_short, targets })
}

/// A job that can be claimed.
struct Picked {
    id: i64,
    saga_id: i64,
    subscription_id: i64,
    attempt_at: Timestamp,
    lease_resets: u32,
    attempt_count: u32,
    event_id: i64,
    payload_bytes: u64,
}

/// The picked jobs, in the order in which they were picked.
async fn read(transaction: &mut Transaction<'_>, ids: &[i64]) -> DbResult<Vec<Picked>> {
    let mut found: HashMap<i64, Picked> = HashMap::with_capacity(ids.len());
    for document in Batch::ids(ids.iter().copied()) {
        let read: Vec<Row> = transaction.exec(JOBS, (document,)).await?;
        for mut row in read {
            let row = &mut row;
            let job = Picked {
                id: take(row, 0)?,
                saga_id: take(row, 1)?,
                subscription_id: take(row, 2)?,
                attempt_at: take::<Time>(row, 3)?.0,
                lease_resets: natural(take(row, 4)?),
                attempt_count: natural(take(row, 5)?),
                event_id: take(row, 6)?,
                payload_bytes: take(row, 7)?,
            };
            found.insert(job.id, job);
        }
    }
    ids.iter()
        .map(|id| found.remove(id).ok_or_else(|| DbError::unreadable("a job without its event")))
        .collect()
}

/// As many as the limit of payload bytes allows, but at least one; and whether there were more.
fn within(mut picked: Vec<Picked>, payload_bytes: u64) -> (Vec<Picked>, bool) {
    let mut bytes = 0_u64;
    let fitting = picked.iter().take_while(|job| {
        bytes = bytes.saturating_add(job.payload_bytes);
        bytes <= payload_bytes
    });
    let taken = fitting.count().max(1);
    let cut_short = taken < picked.len();
    picked.truncate(taken);
    (picked, cut_short)
}

struct Event {
    tenant: String,
    event_type: String,
    correlation_id: String,
    payload: Arc<str>,
}

async fn leases(
    transaction: &mut Transaction<'_>,
    picked: Vec<Picked>,
    token: LeaseToken,
    until: Timestamp,
) -> DbResult<Vec<Lease<DeliveryJob>>> {
    let event_ids: BTreeSet<i64> = picked.iter().map(|job| job.event_id).collect();
    let mut events: HashMap<i64, Event> = HashMap::with_capacity(event_ids.len());
    for document in Batch::ids(event_ids) {
        let rows: Vec<Row> = transaction.exec(EVENTS, (document,)).await?;
        for mut row in rows {
            let event = Event {
                event_type: take(&mut row, 1)?,
                correlation_id: take(&mut row, 2)?,
                payload: Arc::from(take::<String>(&mut row, 3)?),
                tenant: take(&mut row, 4)?,
            };
            events.insert(take(&mut row, 0)?, event);
        }
    }
    let lease = |job: Picked| {
        let event =
            events.get(&job.event_id).ok_or_else(|| DbError::unreadable("a job without its event"))?;
        let held = DeliveryJob {
            saga_id: SagaId(job.saga_id),
            subscription_id: SubscriptionId(job.subscription_id),
            event_id: EventId(job.event_id),
            tenant: event.tenant.clone(),
            event_type: event.event_type.clone(),
            correlation_id: event.correlation_id.clone(),
            payload: Arc::clone(&event.payload),
            attempt: job.attempt_count.saturating_add(1),
            lease_resets: job.lease_resets,
            attempt_at: job.attempt_at,
        };
        Ok(Lease { job_id: JobId(job.id), token, until, held })
    };
    picked.into_iter().map(lease).collect()
}

async fn targets(
    transaction: &mut Transaction<'_>,
    ids: BTreeSet<i64>,
) -> DbResult<HashMap<SubscriptionId, Arc<Target>>> {
    let mut targets: HashMap<SubscriptionId, Target> = HashMap::with_capacity(ids.len());
    for document in Batch::ids(ids) {
        let rows: Vec<Row> = transaction.exec(TARGETS, (document,)).await?;
        for mut row in rows {
            let row = &mut row;
            let target = match targets.entry(SubscriptionId(take(row, 0)?)) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(Target {
                    callback_url: take(row, 1)?,
                    deliverable: take(row, 2)?,
                    deleted: take(row, 6)?,
                    rate_limit: take::<Option<i64>>(row, 9)?.map(natural).map(RateLimit::per_second),
                    secrets: Vec::new(),
                    headers: headers(row)?,
                }),
            };
            if let Some(secret_id) = take::<Option<i64>>(row, 3)? {
                let secret = SealedSecret { key_id: take(row, 4)?, sealed: take(row, 5)? };
                target.secrets.push(StoredSecret { id: SecretId(secret_id), secret });
            }
        }
    }
    Ok(targets.into_iter().map(|(id, target)| (id, Arc::new(target))).collect())
}

/// Of a row of [`TARGETS`].
fn headers(row: &mut Row) -> DbResult<Option<SealedSecret>> {
    let (key_id, sealed): (Option<String>, Option<Vec<u8>>) = (take(row, 7)?, take(row, 8)?);
    Ok(key_id.zip(sealed).map(|(key_id, sealed)| SealedSecret { key_id, sealed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_ends_before_the_job_that_would_exceed_its_bytes() {
        let jobs = |sizes: &[u64]| -> Vec<Picked> {
            let job = |(id, size): (i64, &u64)| Picked {
                id,
                saga_id: id,
                subscription_id: 1,
                attempt_at: Timestamp::from_micros(0),
                lease_resets: 0,
                attempt_count: 0,
                event_id: id,
                payload_bytes: *size,
            };
            (1..).zip(sizes).map(job).collect()
        };
        let taken = |sizes: &[u64], limit: u64| {
            let (taken, cut_short) = within(jobs(sizes), limit);
            (taken.len(), cut_short)
        };
        assert_eq!(taken(&[10, 10, 10], 30), (3, false));
        assert_eq!(taken(&[10, 10, 10], 29), (2, true));
        assert_eq!(taken(&[100, 1], 10), (1, true));
        assert_eq!(taken(&[100], 10), (1, false));
        assert_eq!(taken(&[1, 100, 1], 10), (1, true));
        assert_eq!(taken(&[u64::MAX, u64::MAX], 10), (1, true));
    }
}
