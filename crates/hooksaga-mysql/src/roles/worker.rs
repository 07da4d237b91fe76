//! `job_worker`: leases jobs and reports how they ended.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        batch::{Batch, Field, list},
        rows::{expect_rows, natural, rows, take},
    },
    time::{Time, micros},
};
use async_trait::async_trait;
use hooksaga_saga::{EventId, JobId, Outcome, SagaId, SecretId, SubscriptionId, Timestamp};
use hooksaga_store::{
    ClaimedBatch, DeliveryJob, JobReport, Lease, LeaseRef, LeaseToken, SealedSecret, StoreResult,
    StoredSecret, Target, WorkerStore,
};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable as _};
use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

/// The clock, when a lease that begins now will end, and whether there is anything to do, before a transaction is begun:
/// an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* worker.peek */
SELECT UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
       EXISTS (SELECT 1 FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
               WHERE pending_until <= UTC_TIMESTAMP(6))";

/// Walks the index of Pending jobs in its own order, beyond the NULLs of all others.
pub(crate) const PICK: &str = "/* worker.pick */
SELECT id FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
WHERE pending_until <= ? ORDER BY pending_until LIMIT ? FOR UPDATE SKIP LOCKED";

/// The picked jobs by their ids, which stand in the text: none but this transaction can have changed them.
pub(crate) fn lease(picked: &str, until: Time, token: LeaseToken, now: Time) -> String {
    let (until, token, now) = (until.literal(), token.0, now.literal());
    format!(
        "/* worker.lease */
UPDATE webhook_delivery_jobs FORCE INDEX (PRIMARY)
SET status = 'Leased', lease_until = {until}, lease_token = {token}, updated_at = {now}
WHERE status = 'Pending' AND id IN ({picked})"
    )
}

pub(crate) const JOBS: &str = "/* worker.jobs */
SELECT j.id, j.saga_id, j.subscription_id, j.attempt_at, j.lease_resets, s.attempt_count, s.event_id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = j.saga_id";

/// Each event once, however many subscriptions it goes to.
pub(crate) const EVENTS: &str = "/* worker.events */
SELECT e.id, e.event_type, e.correlation_id, e.payload
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.id";

/// The subscriptions of a claim, each with its valid secrets, newest first.
pub(crate) const TARGETS: &str = "/* worker.targets */
SELECT s.id, s.callback_url, s.active AND s.verified, k.id, k.key_id, k.sealed
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = u.id
LEFT JOIN subscription_secrets k FORCE INDEX (idx_secret_subscription)
    ON k.subscription_id = s.id AND (k.expires_at IS NULL OR k.expires_at > UTC_TIMESTAMP(6))
ORDER BY s.id, k.id DESC";

/// Fenced by token; driven by the given ids.
pub(crate) const HAND_BACK: &str = "/* worker.hand_back */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', token BIGINT PATH '$[1]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
SET j.status = 'Pending', j.lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, j.lease_token = NULL,
    j.updated_at = UTC_TIMESTAMP(6)
WHERE j.status = 'Leased' AND j.lease_token = u.token";

/// Fenced by token; driven by the given ids.
pub(crate) const REPORT: &str = "/* worker.report */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', token BIGINT PATH '$[1]', failed INT PATH '$[2]', response_status INT PATH '$[3]',
    error_code VARCHAR(200) PATH '$[4]', duration_ms INT PATH '$[5]', excerpt VARCHAR(8192) PATH '$[6]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
SET j.status = IF(u.failed = 1, 'Failed', 'Completed'), j.response_status = u.response_status,
    j.error_code = UNHEX(u.error_code), j.duration_ms = u.duration_ms,
    j.response_excerpt = CONVERT(UNHEX(u.excerpt) USING utf8mb4), j.lease_token = NULL,
    j.updated_at = UTC_TIMESTAMP(6)
WHERE j.status = 'Leased' AND j.lease_token = u.token";

/// A job finishes once, so its id can be in the queue only once; were it there already, that is no reason to lose the
/// others' results. IGNORE can hide nothing else: the table has its key and no more.
const QUEUE: &str = "/* worker.queue */ INSERT IGNORE INTO finished_jobs (job_id) VALUES ";

/// Which of the leases are held, locked in the order of their ids: there is no RETURNING to tell it afterwards.
pub(crate) const HELD: &str = "/* worker.held */
SELECT id, lease_token FROM webhook_delivery_jobs FORCE INDEX (PRIMARY) WHERE status = 'Leased' AND id IN ";

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* secret_key_ids */
SELECT DISTINCT key_id FROM subscription_secrets
WHERE expires_at IS NULL OR expires_at > UTC_TIMESTAMP(6) ORDER BY key_id";

pub(crate) struct Worker {
    pool: RolePool,
}

impl Worker {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl WorkerStore for Worker {
    async fn claim(&self, limit: u32, lease: Duration, token: LeaseToken) -> StoreResult<ClaimedBatch> {
        self.pool.run(|connection| claim(connection, limit, lease, token)).await
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        self.pool.run(|connection| hand_back(connection, leases, delay)).await
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        self.pool.run(|connection| report(connection, reports)).await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        secret_key_ids(&self.pool).await
    }
}

/// The key ids of valid secrets: for each of the roles that may see them.
pub(crate) async fn secret_key_ids(pool: &RolePool) -> StoreResult<Vec<String>> {
    pool.run(|mut connection| async move { Ok(connection.query(SECRET_KEY_IDS).await?) }).await
}

/// All is read before the commit: what cannot be read is not claimed.
async fn claim(
    mut connection: Conn,
    limit: u32,
    duration: Duration,
    token: LeaseToken,
) -> DbResult<ClaimedBatch> {
    let peek: Option<(Time, Time, bool)> = connection.exec_first(PEEK, (micros(duration),)).await?;
    let (now, until, waiting) = peek.ok_or_else(|| DbError::unreadable("no clock"))?;
    if !waiting {
        return Ok(ClaimedBatch { now: now.0, jobs: Vec::new(), targets: HashMap::new() });
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let picked: Vec<i64> = transaction.exec(PICK, (now, limit)).await?;
    if picked.is_empty() {
        transaction.rollback().await?;
        return Ok(ClaimedBatch { now: now.0, jobs: Vec::new(), targets: HashMap::new() });
    }
    let mut sorted = picked.clone();
    sorted.sort_unstable();
    transaction.query_drop(lease(&list(sorted), until, token, now)).await?;
    expect_rows("a claim", rows(picked.len()), transaction.affected_rows())?;
    let jobs = jobs(&mut transaction, &picked, token, until.0).await?;
    let subscriptions: BTreeSet<i64> = jobs.iter().map(|job| job.held.subscription_id.0).collect();
    let targets = targets(&mut transaction, &subscriptions).await?;
    transaction.commit().await?;
    Ok(ClaimedBatch { now: now.0, jobs, targets })
}

struct Event {
    event_type: String,
    correlation_id: String,
    payload: Arc<str>,
}

async fn jobs(
    transaction: &mut Transaction<'_>,
    picked: &[i64],
    token: LeaseToken,
    until: Timestamp,
) -> DbResult<Vec<Lease<DeliveryJob>>> {
    let mut read: Vec<Row> = Vec::with_capacity(picked.len());
    for document in Batch::of(picked, |id| [Field::Int(*id)]) {
        read.extend(transaction.exec::<Row, _, _>(JOBS, (document,)).await?);
    }
    let read: Vec<(i64, Row)> =
        read.into_iter().map(|mut row| Ok((take(&mut row, 6)?, row))).collect::<DbResult<_>>()?;
    let event_ids: BTreeSet<i64> = read.iter().map(|(event_id, _)| *event_id).collect();
    let mut events: HashMap<i64, Event> = HashMap::with_capacity(event_ids.len());
    for document in Batch::of(event_ids, |id| [Field::Int(id)]) {
        let rows: Vec<Row> = transaction.exec(EVENTS, (document,)).await?;
        for mut row in rows {
            let event = Event {
                event_type: take(&mut row, 1)?,
                correlation_id: take(&mut row, 2)?,
                payload: Arc::from(take::<String>(&mut row, 3)?),
            };
            events.insert(take(&mut row, 0)?, event);
        }
    }
    let mut jobs = Vec::with_capacity(read.len());
    for (event_id, mut row) in read {
        let row = &mut row;
        let event = events.get(&event_id).ok_or_else(|| DbError::unreadable("a job without its event"))?;
        let held = DeliveryJob {
            saga_id: SagaId(take(row, 1)?),
            subscription_id: SubscriptionId(take(row, 2)?),
            event_id: EventId(event_id),
            event_type: event.event_type.clone(),
            correlation_id: event.correlation_id.clone(),
            payload: Arc::clone(&event.payload),
            attempt: natural(take(row, 5)?).saturating_add(1),
            lease_resets: natural(take(row, 4)?),
            attempt_at: take::<Time>(row, 3)?.0,
        };
        jobs.push(Lease { job_id: JobId(take(row, 0)?), token, until, held });
    }
    Ok(jobs)
}

async fn targets(
    transaction: &mut Transaction<'_>,
    ids: &BTreeSet<i64>,
) -> DbResult<HashMap<SubscriptionId, Arc<Target>>> {
    let mut targets: HashMap<SubscriptionId, Target> = HashMap::with_capacity(ids.len());
    for document in Batch::of(ids, |id| [Field::Int(*id)]) {
        let rows: Vec<Row> = transaction.exec(TARGETS, (document,)).await?;
        for mut row in rows {
            let row = &mut row;
            let target = match targets.entry(SubscriptionId(take(row, 0)?)) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(Target {
                    callback_url: take(row, 1)?,
                    deliverable: take(row, 2)?,
                    secrets: Vec::new(),
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

/// The jobs of these leases that are still held, locked; in the order of their ids.
async fn held(transaction: &mut Transaction<'_>, leases: &[LeaseRef]) -> DbResult<Vec<JobId>> {
    let mut ids: Vec<i64> = leases.iter().map(|lease| lease.job_id.0).collect();
    ids.sort_unstable();
    let found: Vec<(i64, i64)> =
        transaction.query(format!("{HELD}({}) ORDER BY id FOR UPDATE", list(ids))).await?;
    // A job can be here more than once: under the lease that it had, and under the one that it has.
    let given: HashSet<(i64, i64)> = leases.iter().map(|lease| (lease.job_id.0, lease.token.0)).collect();
    Ok(found.into_iter().filter(|row| given.contains(row)).map(|(id, _)| JobId(id)).collect())
}

async fn hand_back(mut connection: Conn, leases: &[LeaseRef], delay: Duration) -> DbResult<Vec<JobId>> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let held = held(&mut transaction, leases).await?;
    if held.is_empty() {
        transaction.rollback().await?;
        return Ok(held);
    }
    let mut sorted = leases.to_vec();
    sorted.sort_unstable_by_key(|lease| lease.job_id);
    let mut changed = 0;
    for document in Batch::of(sorted, |lease| [Field::Int(lease.job_id.0), Field::Int(lease.token.0)]) {
        transaction.exec_drop(HAND_BACK, (document, micros(delay))).await?;
        changed += transaction.affected_rows();
    }
    expect_rows("handing back", rows(held.len()), changed)?;
    transaction.commit().await?;
    Ok(held)
}

/// Only the jobs that changed are queued for the orchestrator, in the same commit.
async fn report(mut connection: Conn, reports: &[JobReport]) -> DbResult<Vec<JobId>> {
    let mut sorted: Vec<&JobReport> = reports.iter().collect();
    sorted.sort_unstable_by_key(|report| report.lease.job_id);
    let leases: Vec<LeaseRef> = sorted.iter().map(|report| report.lease).collect();

    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let held = held(&mut transaction, &leases).await?;
    if held.is_empty() {
        transaction.rollback().await?;
        return Ok(held);
    }
    let mut changed = 0;
    let excerpts: Vec<Option<String>> = sorted.iter().map(|report| report.storable_excerpt()).collect();
    for document in Batch::of(sorted.iter().zip(&excerpts), |(report, excerpt)| {
        let code = match &report.outcome {
            Outcome::Delivered => None,
            Outcome::Failed(code) => Some(code.as_str()),
        };
        [
            Field::Int(report.lease.job_id.0),
            Field::Int(report.lease.token.0),
            Field::Int(code.is_some().into()),
            Field::maybe_int(report.response_status),
            Field::maybe_text(code),
            Field::Int(i32::try_from(report.duration.as_millis()).unwrap_or(i32::MAX).into()),
            Field::maybe_text(excerpt.as_deref()),
        ]
    }) {
        transaction.exec_drop(REPORT, (document,)).await?;
        changed += transaction.affected_rows();
    }
    expect_rows("reporting", rows(held.len()), changed)?;
    let values = held.iter().map(|job| format!("({job})")).collect::<Vec<_>>().join(",");
    transaction.query_drop(format!("{QUEUE}{values}")).await?;
    transaction.commit().await?;
    Ok(held)
}
