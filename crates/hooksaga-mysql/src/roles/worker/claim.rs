//! A claim: the jobs that were admitted first, as many as the limits allow, with everything that their attempts need.
//!
//! A read finds these jobs and the sizes of their payloads. Then one transaction leases them, reads what their attempts
//! need, and commits, in one round trip. Other workers may have taken or locked some of them meanwhile. The claim never
//! waits for them. If it met any, the next hundred claims use the other way ([`pick`]): lock free jobs with SKIP LOCKED
//! first, then read and lease them.

use crate::{
    error::{DbError, DbResult},
    roles::{
        batch::{Batch, list},
        rows::{expect_rows, natural, rows, take},
    },
    time::{SqlTime, micros},
    transaction::BatchedTransaction,
};
use hooksaga_saga::{EventId, JobId, RateLimit, SagaId, SecretId, SubscriptionId, Timestamp};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, DeliveryJob, Lease, LeaseRequest, LeaseToken, SealedSecret, StoredSecret,
    Target,
};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

/// The clock, when a lease that begins now will end (in a row without a job), and the jobs that can be claimed, before a
/// transaction is begun: an idle pass is this one statement. What it reads of a job never changes while the job is Pending,
/// except its not-before and `lease_resets`. A job whose event was removed is claimed, too, and never sent: otherwise it
/// would be first in the index forever.
pub(crate) fn peek(lease: Duration, limits: &ClaimLimits) -> String {
    format!(
        "/* worker.peek */
(SELECT NULL, NULL, NULL, UTC_TIMESTAMP(6), NULL, NULL, NULL, UTC_TIMESTAMP(6) + INTERVAL {lease} MICROSECOND)
UNION ALL
(SELECT j.id, j.saga_id, j.subscription_id, j.attempt_at, s.attempt_count, s.event_id, COALESCE(e.payload_bytes, 0),
        j.lease_until
 FROM (SELECT id FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
       WHERE pending_until <= UTC_TIMESTAMP(6){skipped} ORDER BY pending_until, id LIMIT {jobs}) u
 STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
 STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = j.saga_id
 LEFT JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id)",
        lease = micros(lease),
        skipped = skipped(&limits.skip),
        jobs = limits.jobs,
    )
}

fn skipped(skip: &[SubscriptionId]) -> String {
    match skip {
        [] => String::new(),
        skip => format!(" AND subscription_id NOT IN ({})", list(skip.iter().map(|id| id.0))),
    }
}

/// Reads the index of Pending jobs in its own order, after the NULLs of all other jobs; parked jobs are at its end.
pub(crate) fn pick(now: SqlTime, limits: &ClaimLimits) -> String {
    format!(
        "/* worker.pick */
SELECT id, lease_resets FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
WHERE pending_until <= {now}{skipped} ORDER BY pending_until, id LIMIT {jobs} FOR UPDATE SKIP LOCKED",
        now = now.literal(),
        skipped = skipped(&limits.skip),
        jobs = limits.jobs,
    )
}

/// Picked jobs that the first read did not return, with the sizes of their payloads.
pub(crate) const JOBS: &str = "/* worker.jobs */
SELECT j.id, j.saga_id, j.subscription_id, j.attempt_at, s.attempt_count, s.event_id, COALESCE(e.payload_bytes, 0),
       j.lease_until
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = j.saga_id
LEFT JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id";

/// Locks those of the jobs that can still be claimed. Fails at once if somebody has one of them locked: the write that
/// follows would wait for them.
pub(crate) fn lock(ids: &str, now: SqlTime) -> String {
    format!(
        "/* worker.lock */
SELECT j.id, j.lease_resets
FROM (SELECT * FROM JSON_TABLE('{ids}', '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
WHERE j.status = 'Pending' AND j.lease_until <= {now} FOR UPDATE NOWAIT",
        now = now.literal(),
    )
}

/// Only this transaction can have changed the locked jobs.
pub(crate) fn lease(ids: &str, until: SqlTime, token: LeaseToken, now: SqlTime) -> String {
    format!(
        "/* worker.lease */
UPDATE (SELECT * FROM JSON_TABLE('{ids}', '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
SET j.status = 'Leased', j.lease_until = {until}, j.lease_token = {token}, j.updated_at = {now}
WHERE j.status = 'Pending' AND j.lease_until <= {now}",
        until = until.literal(),
        token = token.0,
        now = now.literal(),
    )
}

/// Each event once, for however many subscriptions.
pub(crate) fn events_statement(ids: &str) -> String {
    format!(
        "/* worker.events */
SELECT e.id, e.event_type, e.correlation_id, e.payload, e.tenant, e.created_at
FROM (SELECT * FROM JSON_TABLE('{ids}', '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.id"
    )
}

/// The subscriptions of a claim, each with its valid secrets, newest first, and its headers: one statement, so that no URL
/// is seen with the headers of another.
pub(crate) fn targets_statement(ids: &str) -> String {
    format!(
        "/* worker.targets */
SELECT s.id, s.callback_url, s.deliverable, k.id, k.key_id, k.sealed, s.deleted_at IS NOT NULL, h.key_id, h.sealed,
    CASE WHEN s.deleted_at IS NULL THEN s.rate_limit END
FROM (SELECT * FROM JSON_TABLE('{ids}', '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = u.id
LEFT JOIN subscription_headers h FORCE INDEX (PRIMARY) ON h.subscription_id = s.id AND s.header_names IS NOT NULL
LEFT JOIN subscription_secrets k FORCE INDEX (idx_secret_subscription)
    ON k.subscription_id = s.id AND (k.expires_at IS NULL OR k.expires_at > UTC_TIMESTAMP(6))
ORDER BY s.id, k.id DESC"
    )
}

/// How the jobs of a claim are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The jobs of the first read, locked and leased together ([`BatchedTransaction`]).
    Seen,
    /// Jobs that no other worker has locked: they are locked first, then leased. (Locked jobs are left to those workers.)
    Picked,
}

/// The claimed jobs, and whether other workers had some of those that the first read returned.
pub(super) struct Claimed {
    pub(super) batch: ClaimedBatch,
    pub(super) contended: bool,
}

pub(super) async fn claim(
    mut connection: Conn,
    limits: &ClaimLimits,
    asked: LeaseRequest,
    way: Way,
) -> DbResult<Claimed> {
    let Claimable { now, until, seen } = find_claimable(&mut connection, limits, asked.lasts).await?;
    let lease = NewLease { token: asked.token, until, now };
    match way {
        _ if seen.is_empty() => Ok(lease.of_nothing()),
        Way::Seen => take_seen(connection, seen, limits, lease).await,
        Way::Picked => pick_and_take(connection, seen, limits, lease).await,
    }
}

/// The jobs that can be claimed, in the order of admission, before anything is locked.
struct Claimable {
    now: SqlTime,
    until: SqlTime,
    seen: Vec<Picked>,
}

async fn find_claimable(
    connection: &mut Conn,
    limits: &ClaimLimits,
    duration: Duration,
) -> DbResult<Claimable> {
    let mut read: Vec<Row> = connection.query(peek(duration, limits)).await?;
    let mut clock = None;
    for row in read.extract_if(.., |row| matches!(row.get_opt::<Option<i64>, _>(0), Some(Ok(None)))) {
        let mut row = row;
        clock = Some((take(&mut row, 3)?, take(&mut row, 7)?));
    }
    let (now, until) = clock.ok_or_else(|| DbError::unreadable("no clock"))?;
    let mut seen = read.into_iter().map(read_job).collect::<DbResult<Vec<Picked>>>()?;
    seen.sort_unstable_by_key(|job| (job.not_before, job.id));
    Ok(Claimable { now, until, seen })
}

/// The lease that a claim's jobs get.
#[derive(Clone, Copy)]
struct NewLease {
    token: LeaseToken,
    until: SqlTime,
    now: SqlTime,
}

impl NewLease {
    fn of_nothing(self) -> Claimed {
        let batch =
            ClaimedBatch { now: self.now.0, jobs: Vec::new(), cut_short: false, targets: HashMap::new() };
        Claimed { batch, contended: false }
    }
}

/// A whole transaction in one round trip. The server reads everything before it commits: jobs that cannot be read are not
/// claimed.
async fn take_seen(
    connection: Conn,
    seen: Vec<Picked>,
    limits: &ClaimLimits,
    lease: NewLease,
) -> DbResult<Claimed> {
    let (wanted, cut_short) = within(seen, limits.payload_bytes);
    let Statements { lock, lease: write, events, targets } = Statements::of(&wanted, lease);
    let mut transaction = BatchedTransaction::on(connection);
    let statements =
        [BatchedTransaction::START, &lock, &write, &events, &targets, BatchedTransaction::COMMIT];
    let [_, locked, leased, events, targets, _] = transaction.run(statements).await.map_err(|error| {
        if error.is_locked_out() {
            DbError::Held("jobs are being claimed by others".to_owned())
        } else {
            error
        }
    })?;
    transaction.committed();
    let locked = locked.rows.into_iter().map(resets).collect::<DbResult<HashMap<i64, u32>>>()?;
    expect_rows("a claim", rows(locked.len()), leased.changed)?;
    // Others have all of them. There may be more, which a pick finds.
    if locked.is_empty() {
        return Err(DbError::Held("jobs were claimed by others".to_owned()));
    }
    let contended = locked.len() < wanted.len();
    let claimed = wanted.into_iter().filter_map(|job| {
        let lease_resets = *locked.get(&job.id)?;
        Some(Picked { lease_resets, ..job })
    });
    let batch = ClaimedBatch {
        now: lease.now.0,
        jobs: leases(events.rows, claimed, lease)?,
        cut_short: cut_short || contended,
        targets: read_targets(targets.rows)?,
    };
    Ok(Claimed { batch, contended })
}

/// Locks jobs first, and leases them when the sizes of their payloads are known. Everything is read before the commit.
async fn pick_and_take(
    connection: Conn,
    seen: Vec<Picked>,
    limits: &ClaimLimits,
    lease: NewLease,
) -> DbResult<Claimed> {
    let (mut transaction, locked) = BatchedTransaction::begin(connection, &pick(lease.now, limits)).await?;
    if locked.is_empty() {
        transaction.rollback().await?;
        return Ok(lease.of_nothing());
    }
    let locked = locked.into_iter().map(resets).collect::<DbResult<Vec<(i64, u32)>>>()?;
    let mut seen: HashMap<i64, Picked> = seen.into_iter().map(|job| (job.id, job)).collect();
    // Where other workers are at work, these can be others than those that the look saw.
    let unseen = locked.iter().map(|(id, _)| *id).filter(|id| !seen.contains_key(id));
    for document in Batch::ids(unseen) {
        for row in transaction.exec::<Row, _, _>(JOBS, (document,)).await? {
            let job = read_job(row)?;
            seen.insert(job.id, job);
        }
    }
    let picked = locked.into_iter().map(|(id, lease_resets)| {
        let job = seen.remove(&id).ok_or_else(|| DbError::unreadable("a job without its event"))?;
        Ok(Picked { lease_resets, ..job })
    });
    let (picked, cut_short) = within(picked.collect::<DbResult<_>>()?, limits.payload_bytes);
    let statements = Statements::of(&picked, lease);
    let [leased, events, targets] =
        transaction.run([&statements.lease, &statements.events, &statements.targets]).await?;
    expect_rows("a claim", rows(picked.len()), leased.changed)?;
    let jobs = leases(events.rows, picked, lease)?;
    let targets = read_targets(targets.rows)?;
    transaction.commit(&[]).await?;
    let batch = ClaimedBatch { now: lease.now.0, jobs, cut_short, targets };
    Ok(Claimed { batch, contended: false })
}

/// The statements that take jobs and read what their attempts need.
struct Statements {
    lock: String,
    lease: String,
    events: String,
    targets: String,
}

impl Statements {
    fn of(jobs: &[Picked], NewLease { token, until, now }: NewLease) -> Self {
        let ids = |id: fn(&Picked) -> i64| {
            let ids: BTreeSet<i64> = jobs.iter().map(id).collect();
            Batch::ids(ids).concat()
        };
        let job_ids = ids(|job| job.id);
        Self {
            lock: lock(&job_ids, now),
            lease: lease(&job_ids, until, token, now),
            events: events_statement(&ids(|job| job.event_id)),
            targets: targets_statement(&ids(|job| job.subscription_id)),
        }
    }
}

/// The id of a locked job, and how often its lease ran out.
fn resets(mut row: Row) -> DbResult<(i64, u32)> {
    Ok((take(&mut row, 0)?, natural(take(&mut row, 1)?)))
}

/// A job that can be claimed.
struct Picked {
    id: i64,
    saga_id: i64,
    subscription_id: i64,
    attempt_at: Timestamp,
    not_before: Timestamp,
    lease_resets: u32,
    attempt_count: u32,
    event_id: i64,
    payload_bytes: u64,
}

/// From a row of [`peek`] or [`JOBS`].
fn read_job(mut row: Row) -> DbResult<Picked> {
    let row = &mut row;
    Ok(Picked {
        id: take(row, 0)?,
        saga_id: take(row, 1)?,
        subscription_id: take(row, 2)?,
        attempt_at: take::<SqlTime>(row, 3)?.0,
        not_before: take::<SqlTime>(row, 7)?.0,
        lease_resets: 0,
        attempt_count: natural(take(row, 4)?),
        event_id: take(row, 5)?,
        payload_bytes: take(row, 6)?,
    })
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

struct JobEvent {
    tenant: String,
    event_type: String,
    correlation_id: String,
    payload: Arc<str>,
    accepted_at: Timestamp,
}

fn leases(
    read: Vec<Row>,
    picked: impl IntoIterator<Item = Picked>,
    NewLease { token, until, .. }: NewLease,
) -> DbResult<Vec<Lease<DeliveryJob>>> {
    let mut events: HashMap<i64, JobEvent> = HashMap::with_capacity(read.len());
    for mut row in read {
        let event = JobEvent {
            event_type: take(&mut row, 1)?,
            correlation_id: take(&mut row, 2)?,
            payload: Arc::from(take::<String>(&mut row, 3)?),
            tenant: take(&mut row, 4)?,
            accepted_at: take::<SqlTime>(&mut row, 5)?.0,
        };
        events.insert(take(&mut row, 0)?, event);
    }
    let lease = |job: Picked| {
        // Without its event a job cannot be sent. It stays leased, and is no reason to lose the others.
        let event = events.get(&job.event_id)?;
        let held = DeliveryJob {
            saga_id: SagaId(job.saga_id),
            subscription_id: SubscriptionId(job.subscription_id),
            event_id: EventId(job.event_id),
            tenant: event.tenant.clone(),
            event_type: event.event_type.clone(),
            correlation_id: event.correlation_id.clone(),
            payload: Arc::clone(&event.payload),
            accepted_at: event.accepted_at,
            attempt: job.attempt_count.saturating_add(1),
            lease_resets: job.lease_resets,
            attempt_at: job.attempt_at,
        };
        Some(Lease { job_id: JobId(job.id), token, until: until.0, held })
    };
    Ok(picked.into_iter().filter_map(lease).collect())
}

fn read_targets(read: Vec<Row>) -> DbResult<HashMap<SubscriptionId, Arc<Target>>> {
    let mut targets: HashMap<SubscriptionId, Target> = HashMap::new();
    for mut row in read {
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
    Ok(targets.into_iter().map(|(id, target)| (id, Arc::new(target))).collect())
}

/// From a row of [`targets_statement`].
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
                not_before: Timestamp::from_micros(0),
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
