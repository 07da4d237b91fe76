//! Results of finished jobs, applied to their sagas exactly once.

use super::{
    counts::count,
    schedule::{CLOCK, MARK_IN_PROGRESS},
};
use crate::{
    error::{DbError, DbResult},
    roles::{
        batch::{Batch, Field, list},
        endpoint,
        rows::{expect_rows, natural, parsed, rows, take, trace},
    },
    time::SqlTime,
    transaction::BatchedTransaction,
};
use hooksaga_saga::{
    Applied, ErrorCode, JobId, JobResult, JobStatus, Outcome, Saga, SagaId, SagaStatus, SubscriptionId,
    Timestamp,
};
use hooksaga_store::{ApplyBatch, Decide, FinishedJob, HeldEndpoints, QueuedResult, endpoint_news};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

/// Reads the clock, and whether there is anything to do, before a transaction begins: an idle pass is this one statement. After
/// a pass that found something it is left out.
pub(crate) const PEEK: &str =
    "/* orchestrator.peek */ SELECT UTC_TIMESTAMP(6), EXISTS (SELECT 1 FROM finished_jobs)";

/// Without the results of these subscriptions. (A scalar subquery: EXISTS could become a scan of all jobs.)
pub(crate) fn lock_results(limit: u32, without: &[SubscriptionId]) -> String {
    let passed_over = match without {
        [] => String::new(),
        ids => format!(
            "WHERE (SELECT j.subscription_id FROM webhook_delivery_jobs j FORCE INDEX (PRIMARY) WHERE j.id = finished_jobs.job_id)
    NOT IN ({}) ",
            list(ids.iter().map(|id| id.0))
        ),
    };
    format!(
        "/* orchestrator.lock_results */
SELECT job_id FROM finished_jobs FORCE INDEX (PRIMARY) {passed_over}ORDER BY job_id LIMIT {limit} FOR UPDATE SKIP LOCKED"
    )
}

/// A statement of its own, after the queue's rows are locked. A job that is not seen finished has no line here, and so
/// stays queued. Whether an endpoint is in a run of failures, which a success ends, is looked up by key on the way.
pub(crate) const READ_JOBS: &str = "/* orchestrator.read_jobs */
SELECT j.id, j.saga_id, j.subscription_id, j.attempt_at, j.status, j.error_code, j.duration_ms, e.tenant,
       e.correlation_id, j.retry_at, f.since IS NOT NULL
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = j.saga_id
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id
LEFT JOIN endpoint_failures f ON f.subscription_id = j.subscription_id
WHERE j.status IN ('Completed', 'Failed')";

/// Locks the sagas in the order of their ids; a locking read sees a row's newest state, also when the lock had to be
/// waited for.
pub(crate) const LOCK_SAGAS: &str = "/* orchestrator.lock_sagas */
SELECT s.id, s.status, s.attempt_count, s.max_retry_limit, s.next_attempt_at, s.final_error_code
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = u.id FOR UPDATE";

/// The decisions. Guarded by InProgress and the JOB's attempt_at: this and the queue's lock each keep a result from
/// being applied twice.
pub(crate) const WRITE_RESULTS: &str = "/* orchestrator.write_results */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', attempt_at DATETIME(6) PATH '$[1]', status VARCHAR(40) PATH '$[2]',
    attempt_count INT PATH '$[3]', next_attempt_at DATETIME(6) PATH '$[4]',
    final_error_code VARCHAR(200) PATH '$[5]', now DATETIME(6) PATH '$[6]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = u.id
SET s.status = CONVERT(UNHEX(u.status) USING ascii), s.attempt_count = u.attempt_count,
    s.next_attempt_at = u.next_attempt_at,
    s.final_error_code = CONVERT(UNHEX(u.final_error_code) USING ascii), s.updated_at = u.now
WHERE s.next_attempt_at = u.attempt_at AND s.status = 'InProgress'";

/// IGNORE can hide nothing here but an id that is queued already: the table has its key and no more.
const QUEUE_DEAD: &str =
    "/* orchestrator.queue_dead */ INSERT IGNORE INTO pending_dead_letters (saga_id) VALUES ";

/// By key, so that it never waits for rows that another orchestrator has locked. `ids`: a batch of numbers.
pub(crate) fn forget_results(ids: &str) -> String {
    format!(
        "/* orchestrator.forget_results */
DELETE q FROM (SELECT * FROM JSON_TABLE('{ids}', '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN finished_jobs q FORCE INDEX (PRIMARY) ON q.job_id = u.id"
    )
}

/// Whether a pass checks the queue for results before it begins a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peek {
    First,
    Skip,
}

pub(super) async fn apply(
    mut connection: Conn,
    limit: u32,
    shard: u32,
    decide: &Decide,
    peek: Peek,
    held: &HeldEndpoints,
) -> DbResult<ApplyBatch> {
    if peek == Peek::First {
        let peeked: Option<(SqlTime, bool)> = connection.exec_first(PEEK, ()).await?;
        let (SqlTime(now), waiting) = peeked.ok_or_else(|| DbError::unreadable("no clock"))?;
        if !waiting {
            return Ok(ApplyBatch { now, results: Vec::new() });
        }
    }
    let mut transaction = BatchedTransaction::on(connection);
    let lock = lock_results(limit, &held.at(Instant::now()));
    let [_, clock, queued] = transaction.run([BatchedTransaction::START, CLOCK, &lock]).await?;
    let clock = clock.rows.into_iter().next();
    let SqlTime(now) = take(&mut clock.ok_or_else(|| DbError::unreadable("no clock"))?, 0)?;
    let queued = queued.rows.into_iter().map(|mut row| take(&mut row, 0)).collect::<DbResult<Vec<i64>>>()?;
    if queued.is_empty() {
        transaction.rollback().await?;
        return Ok(ApplyBatch { now, results: Vec::new() });
    }
    let (read, failing) = read(&mut transaction, &queued).await?;
    let applied: Vec<Applied> = read.iter().map(|read| decide(&read.finished, now)).collect();
    // The sagas are locked and were read under the lock: whom the guards let through is known here.
    let changed: Vec<bool> =
        read.iter().zip(&applied).map(|(read, applied)| lets_through(read, applied)).collect();

    write(&mut transaction, &read, &applied, &changed, now).await?;
    let new = read.iter().zip(&changed).filter(|(_, changed)| **changed).map(|(read, _)| &read.finished);
    endpoint::note(&mut transaction, &endpoint_news(new), &failing, now, held).await?;
    let mut seen: Vec<i64> = read.iter().map(|read| read.finished.job_id.0).collect();
    seen.sort_unstable();
    let mut last: Vec<String> = Vec::new();
    last.extend(queue_dead(&read, &applied, &changed));
    last.extend(count(&read, &applied, &changed, now, shard));
    last.extend(Batch::ids(seen).iter().map(|document| forget_results(document)));
    transaction.commit(&last).await?;

    let results = read.into_iter().zip(applied).zip(changed);
    let results = results.map(|((read, applied), changed)| read.into_applied(applied, changed));
    Ok(ApplyBatch { now, results: results.collect() })
}

/// The finished jobs beside their locked sagas, in the order of the sagas' ids; and the subscriptions that are in a run of
/// failures.
async fn read(
    transaction: &mut Conn,
    queued: &[i64],
) -> DbResult<(Vec<QueuedResult>, HashSet<SubscriptionId>)> {
    let mut failing = HashSet::new();
    let mut jobs: Vec<Row> = Vec::with_capacity(queued.len());
    for document in Batch::ids(queued.iter().copied()) {
        jobs.extend(transaction.exec::<Row, _, _>(READ_JOBS, (document,)).await?);
    }
    let mut by_saga: BTreeMap<i64, Vec<Row>> = BTreeMap::new();
    for mut job in jobs {
        let saga: i64 = take(&mut job, 1)?;
        if take(&mut job, 10)? {
            failing.insert(SubscriptionId(job.get::<i64, _>(2).unwrap_or_default()));
        }
        by_saga.entry(saga).or_default().push(job);
    }
    let mut sagas: Vec<Row> = Vec::with_capacity(by_saga.len());
    for document in Batch::ids(by_saga.keys().copied()) {
        sagas.extend(transaction.exec::<Row, _, _>(LOCK_SAGAS, (document,)).await?);
    }
    let mut read = Vec::with_capacity(queued.len());
    for mut row in sagas {
        let id: i64 = take(&mut row, 0)?;
        let saga = Saga {
            status: parsed(&take::<String>(&mut row, 1)?)?,
            attempt_count: natural(take(&mut row, 2)?),
            max_retry_limit: natural(take(&mut row, 3)?),
            next_attempt_at: take::<SqlTime>(&mut row, 4)?.0,
            final_error_code: take::<Option<String>>(&mut row, 5)?.map(ErrorCode::from_stored),
        };
        for job in by_saga.remove(&id).unwrap_or_default() {
            read.push(read_result(job, SagaId(id), saga.clone())?);
        }
    }
    Ok((read, failing))
}

async fn write(
    transaction: &mut Conn,
    read: &[QueuedResult],
    applied: &[Applied],
    changed: &[bool],
    now: Timestamp,
) -> DbResult<()> {
    let mut promoted = Vec::new();
    let mut written = Vec::new();
    for ((read, applied), changed) in read.iter().zip(applied).zip(changed) {
        let (Applied::Changed { saga, promoted: is_promoted }, true) = (applied, changed) else { continue };
        let (id, attempt_at) = (read.finished.saga_id.0, read.finished.result.attempt_at);
        // The worker was faster than the move to InProgress: the move comes first.
        if *is_promoted {
            promoted.push((id, attempt_at));
        }
        written.push((id, attempt_at, saga));
    }
    let mut moved = 0;
    for document in Batch::of(&promoted, |&(id, at)| [Field::Int(id), Field::At(at)]) {
        transaction.exec_drop(MARK_IN_PROGRESS, (document,)).await?;
        moved += transaction.affected_rows();
    }
    expect_rows("a promotion", rows(promoted.len()), moved)?;
    let mut changed = 0;
    for document in Batch::of(&written, |(id, attempt_at, saga)| {
        [
            Field::Int(*id),
            Field::At(*attempt_at),
            Field::Text(saga.status.as_str()),
            Field::Int(saga.attempt_count.into()),
            Field::At(saga.next_attempt_at),
            Field::maybe_text(saga.final_error_code.as_ref().map(ErrorCode::as_str)),
            Field::At(now),
        ]
    }) {
        transaction.exec_drop(WRITE_RESULTS, (document,)).await?;
        changed += transaction.affected_rows();
    }
    expect_rows("applying results", rows(written.len()), changed)
}

/// The statement that queues the sagas which this pass made DeadLettered, if it made any.
fn queue_dead(read: &[QueuedResult], applied: &[Applied], changed: &[bool]) -> Option<String> {
    let dead = read.iter().zip(applied).zip(changed).filter_map(|((read, applied), changed)| match applied {
        Applied::Changed { saga, .. } if *changed && saga.status == SagaStatus::DeadLettered => {
            Some(format!("({})", read.finished.saga_id.0))
        }
        _ => None,
    });
    let values = dead.collect::<Vec<_>>().join(",");
    (!values.is_empty()).then(|| format!("{QUEUE_DEAD}{values}"))
}

fn read_result(mut row: Row, saga_id: SagaId, saga: Saga) -> DbResult<QueuedResult> {
    let row = &mut row;
    let outcome = match parsed::<JobStatus>(&take::<String>(row, 4)?)? {
        JobStatus::Completed => Outcome::Delivered,
        _ => Outcome::Failed(
            take::<Option<String>>(row, 5)?.map_or(ErrorCode::INTERNAL, ErrorCode::from_stored),
        ),
    };
    let duration_ms = natural(take::<Option<i64>>(row, 6)?.unwrap_or(0));
    Ok(QueuedResult {
        finished: FinishedJob {
            job_id: JobId(take(row, 0)?),
            saga_id,
            subscription_id: SubscriptionId(take(row, 2)?),
            saga,
            result: JobResult {
                attempt_at: take::<SqlTime>(row, 3)?.0,
                outcome,
                retry_at: take::<Option<SqlTime>>(row, 9)?.map(|time| time.0),
            },
        },
        trace: trace(row, 7)?,
        duration: Duration::from_millis(duration_ms.into()),
    })
}

/// Whether the guards of the promotion and of the write hold.
fn lets_through(read: &QueuedResult, applied: &Applied) -> bool {
    let Applied::Changed { promoted, .. } = applied else { return false };
    let saga = &read.finished.saga;
    let in_progress = match saga.status {
        SagaStatus::InProgress => !promoted,
        SagaStatus::Pending | SagaStatus::PendingRetry => *promoted,
        SagaStatus::Completed | SagaStatus::DeadLettered => false,
    };
    in_progress && saga.next_attempt_at == read.finished.result.attempt_at
}
