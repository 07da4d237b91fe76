//! Results of finished jobs, applied to their sagas exactly once.

use super::counts::{COUNT_RESULTS, Counts, add_counts};
use crate::{
    error::{DbError, DbResult},
    roles::{
        correlations::Correlations,
        endpoint,
        rows::{bigint, integer, natural, parsed},
        scan_position::Frontier,
    },
    time::SqlTime,
};
use deadpool_postgres::{Client, Transaction};
use hooksaga_saga::{
    Applied, ErrorCode, JobId, JobResult, Outcome, Saga, SagaId, SagaStatus, SubscriptionId, Timestamp,
};
use hooksaga_store::{ApplyBatch, Decide, FinishedJob, HeldEndpoints, QueuedResult, Trace, endpoint_news};
use std::{
    collections::HashSet,
    time::{Duration, Instant},
};
use tokio_postgres::{Row, Statement, types::ToSql};

/// One statement. The queue's rows hold the results, which were committed together with the finished jobs. Its snapshot
/// shows them with everything that came before; nothing but such a result can change what is read of its saga here,
/// besides the move to InProgress, and the write below looks at that again. Sagas need no lock before it, then.
/// The rows of the queue are locked, and deleted by their place in the table; one whose saga is not seen has no
/// line in `finished`, and so stays queued. (The usual status is written out: turning one into text is a look into the
/// catalogue for every row.) The first line is the clock, and how far the scan came.
macro_rules! take_results {
    ($without:literal) => {
        concat!(
            "/* orchestrator.take_results */
WITH batch AS MATERIALIZED (
    SELECT seq, job_id, saga_id, attempt_at, duration_ms, error_code, retry_at, ctid AS place FROM finished_jobs q
    ",
            "WHERE seq >= $2",
            $without,
            " ORDER BY seq LIMIT $1
    FOR UPDATE SKIP LOCKED
), finished AS MATERIALIZED (
    SELECT b.place, b.job_id, b.saga_id, s.subscription_id, b.attempt_at, b.error_code, b.duration_ms,
           CASE s.status WHEN 'InProgress' THEN 'InProgress' ELSE s.status::text END AS status,
           s.attempt_count, s.max_retry_limit, s.next_attempt_at, s.final_error_code, s.event_id, b.retry_at
    FROM batch b JOIN webhook_delivery_sagas s ON s.id = b.saga_id
), gone AS (
    DELETE FROM finished_jobs WHERE ctid = ANY (ARRAY(SELECT place FROM finished))
)
SELECT now(), (SELECT max(seq) FROM batch), NULL::bigint, NULL::bigint, NULL::timestamptz, NULL::text, NULL::int,
       NULL::text, NULL::int, NULL::int, NULL::timestamptz, NULL::text, NULL::bigint,
       NULL::timestamptz
UNION ALL
SELECT NULL, job_id, saga_id, subscription_id, attempt_at, error_code, duration_ms,
       status, attempt_count, max_retry_limit, next_attempt_at, final_error_code, event_id, retry_at
FROM finished"
        )
    };
}

pub(crate) const TAKE_RESULTS: &str = take_results!("");

/// Without the results of some subscriptions, which stay queued.
pub(crate) const TAKE_OTHER_RESULTS: &str = take_results!(
    " AND (SELECT s.subscription_id FROM webhook_delivery_sagas s WHERE s.id = q.saga_id) <> ALL ($3::bigint[])"
);

/// The worker was faster than the move to InProgress: the move comes first. The job is there, finished.
pub(crate) const PROMOTE: &str = super::schedule::MOVE;

/// The decisions. Guarded by InProgress and the JOB's attempt_at: this and the queue's lock each keep a result
/// from being applied twice. (The usual status is written out, as above.)
///
/// Counters are added to for what this update changed and nothing else: if that is all of it, as it nearly always is, by
/// the sums that came along, else by those of what it has changed ([`COUNT_RESULTS`]). The last column: whether one of
/// the endpoints that was delivered to has failed before, a look by key into a table that holds only those.
pub(crate) const WRITE_RESULTS: &str = concat!(
    "/* orchestrator.write_results */
WITH changed AS (
    UPDATE webhook_delivery_sagas s
    SET status = CASE u.status WHEN 'Completed' THEN 'Completed'::saga_status ELSE u.status::saga_status END,
        attempt_count = u.attempt_count, next_attempt_at = u.next_attempt_at,
        final_error_code = u.final_error_code, updated_at = now()
    FROM unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::int[], $5::timestamptz[], $6::text[],
                $7::bigint[])
         AS u (id, attempt_at, status, attempt_count, next_attempt_at, final_error_code, job_id)
    WHERE s.id = u.id AND s.next_attempt_at = u.attempt_at AND s.status = (SELECT 'InProgress'::saga_status)
    RETURNING u.job_id
), counted AS (
    ",
    add_counts!("$8", "$9", "WHERE (SELECT count(*) FROM changed) = cardinality($1::bigint[])"),
    "
)
SELECT array_agg(job_id),
       EXISTS (SELECT FROM endpoint_failures WHERE subscription_id = ANY ($10::bigint[]) AND since IS NOT NULL)
FROM changed"
);

/// What the update has made DeadLettered.
pub(crate) const QUEUE_DEAD: &str = "/* orchestrator.queue_dead */
INSERT INTO pending_dead_letters (saga_id) SELECT unnest($1::bigint[]) ON CONFLICT DO NOTHING";

/// Reporters commit in another order than they draw numbers in, one batch at a time in each process. What commits later
/// than that much after it is applied within a second.
pub(super) const MARGIN: i64 = 2000;

pub(super) async fn apply(
    client: &mut Client,
    limit: u32,
    shard: i32,
    frontier: &Frontier,
    correlations: &Correlations,
    decide: &Decide,
    held: &HeldEndpoints,
) -> DbResult<ApplyBatch> {
    let without: Vec<i64> = held.at(Instant::now()).into_iter().map(|id| id.0).collect();
    let transaction = client.transaction().await?;
    let (take, promote, write) = tokio::try_join!(
        transaction.prepare_cached(if without.is_empty() { TAKE_RESULTS } else { TAKE_OTHER_RESULTS }),
        transaction.prepare_cached(PROMOTE),
        transaction.prepare_cached(WRITE_RESULTS),
    )?;
    let (now, mut read) = frontier.scan(|from| take_from(&transaction, &take, limit, from, &without)).await?;
    if read.is_empty() {
        transaction.rollback().await?;
        return Ok(ApplyBatch { now, results: Vec::new() });
    }
    // Sagas are written, and so locked, in the order of their ids (those that are promoted before the others, which
    // can meet another orchestrator's move in the wrong order: then the database picks one, and it is tried again).
    read.sort_unstable_by_key(|(read, _)| read.finished.saga_id);
    let (mut read, events): (Vec<QueuedResult>, Vec<i64>) = read.into_iter().unzip();
    let applied: Vec<Applied> = read.iter().map(|read| decide(&read.finished, now)).collect();
    let changes = Changes::new(&read, &applied);

    // Statements that are polled together travel together, and the server runs them in the order of their
    // first poll: `biased` makes that the order written here.
    let promotion: [&(dyn ToSql + Sync); 2] = [&changes.promoted_ids, &changes.promoted_attempts];
    let counts = Counts::of(read.iter().zip(&applied)).rows();
    let writing = changes.parameters(&shard, &counts);
    let (_, row) = tokio::try_join!(
        biased;
        async {
            if changes.promoted_ids.is_empty() {
                Ok(0)
            } else {
                transaction.execute(&promote, &promotion).await
            }
        },
        transaction.query_one(&write, &writing),
    )?;
    let written: Vec<i64> = row.try_get::<_, Option<_>>(0)?.unwrap_or_default();
    let is_all = written.len() == changes.ids.len();
    // A job that was queued twice counts once.
    let mut written: HashSet<i64> = written.into_iter().collect();
    let changed: Vec<bool> = read.iter().map(|read| written.remove(&read.finished.job_id.0)).collect();
    let new = read.iter().zip(&applied).zip(&changed).filter(|(_, changed)| **changed).map(|(one, _)| one);
    if !is_all {
        count(&transaction, shard, &Counts::of(new.clone())).await?;
    }
    queue_dead(&transaction, new.clone()).await?;
    let finished = new.map(|(read, _)| &read.finished);
    let has_failed: bool = row.try_get(1)?;
    if has_failed || finished.clone().any(|finished| finished.result.outcome != Outcome::Delivered) {
        let news = endpoint_news(finished);
        if let Err(error) = endpoint::note_failures(&transaction, &news).await {
            if error.is_lock_timeout() {
                transaction.rollback().await?;
                held.note(endpoint::held(client, &news).await?, Instant::now());
            }
            return Err(error);
        }
    }
    transaction.commit().await?;

    // Only for the log: what is applied stays applied if this fails.
    let known = correlations.of(client, &events).await.unwrap_or_default();
    for (read, trace) in read.iter_mut().zip(known) {
        read.trace = trace;
    }
    let results = read
        .into_iter()
        .zip(applied)
        .zip(changed)
        .map(|((read, applied), changed)| read.into_applied(applied, changed))
        .collect();
    Ok(ApplyBatch { now, results })
}

async fn count(transaction: &Transaction<'_>, shard: i32, counts: &Counts) -> DbResult<()> {
    let statement = transaction.prepare_cached(COUNT_RESULTS).await?;
    transaction.execute(&statement, &[&shard, &counts.rows()]).await?;
    Ok(())
}

/// Queues the dead letters among what was written.
async fn queue_dead<'a>(
    transaction: &Transaction<'_>,
    written: impl Iterator<Item = (&'a QueuedResult, &'a Applied)>,
) -> DbResult<()> {
    let is_dead = |applied: &Applied| matches!(applied, Applied::Changed { saga, .. } if saga.status == SagaStatus::DeadLettered);
    let dead = written.filter(|(_, applied)| is_dead(applied)).map(|(read, _)| read.finished.saga_id.0);
    let dead: Vec<i64> = dead.collect();
    if !dead.is_empty() {
        let statement = transaction.prepare_cached(QUEUE_DEAD).await?;
        transaction.execute(&statement, &[&dead]).await?;
    }
    Ok(())
}

/// The database's clock and the results that were taken, each with its event, and how far the scan came.
type TakenResults = ((Timestamp, Vec<(QueuedResult, i64)>), Option<i64>);

async fn take_from(
    transaction: &Transaction<'_>,
    take: &Statement,
    limit: u32,
    from: i64,
    without: &[i64],
) -> DbResult<TakenResults> {
    let limit = bigint(limit);
    let parameters: [&(dyn ToSql + Sync); 3] = [&limit, &from, &without];
    let parameters = if without.is_empty() { &parameters[..2] } else { &parameters[..] };
    let rows = transaction.query(take, parameters).await?;
    // A UNION ALL returns its halves in order.
    let (clock, rows) = rows.split_first().ok_or_else(|| DbError::unreadable("no clock"))?;
    let now = clock.try_get::<_, SqlTime>(0)?.0;
    let read = |row| -> DbResult<_> { Ok((read_result(row)?, row.try_get(12)?)) };
    let read = rows.iter().map(read).collect::<Result<_, _>>()?;
    Ok(((now, read), clock.try_get(1)?))
}

/// Without its tenant and correlation id, which only the log needs.
fn read_result(row: &Row) -> DbResult<QueuedResult> {
    let code = |column| -> DbResult<Option<ErrorCode>> {
        Ok(row.try_get::<_, Option<String>>(column)?.map(ErrorCode::from_stored))
    };
    // A failed job has a code, and no other.
    let outcome = code(5)?.map_or(Outcome::Delivered, Outcome::Failed);
    let saga = Saga {
        status: parsed(row.try_get(7)?)?,
        attempt_count: natural(row.try_get(8)?),
        max_retry_limit: natural(row.try_get(9)?),
        next_attempt_at: row.try_get::<_, SqlTime>(10)?.0,
        final_error_code: code(11)?,
    };
    let finished = FinishedJob {
        job_id: JobId(row.try_get(1)?),
        saga_id: SagaId(row.try_get(2)?),
        subscription_id: SubscriptionId(row.try_get(3)?),
        saga,
        result: JobResult {
            attempt_at: row.try_get::<_, SqlTime>(4)?.0,
            outcome,
            retry_at: row.try_get::<_, Option<SqlTime>>(13)?.map(|time| time.0),
        },
    };
    let duration_ms = natural(row.try_get(6)?);
    Ok(QueuedResult {
        finished,
        trace: Trace::default(),
        duration: Duration::from_millis(duration_ms.into()),
    })
}

/// The decisions as columns, in the order of saga ids.
#[derive(Default)]
struct Changes<'a> {
    promoted_ids: Vec<i64>,
    promoted_attempts: Vec<SqlTime>,
    ids: Vec<i64>,
    attempts: Vec<SqlTime>,
    statuses: Vec<&'static str>,
    attempt_counts: Vec<i32>,
    next_attempts: Vec<SqlTime>,
    error_codes: Vec<Option<&'a str>>,
    job_ids: Vec<i64>,
    /// The subscriptions that were delivered to.
    delivered_to: Vec<i64>,
}

impl<'a> Changes<'a> {
    fn new(read: &[QueuedResult], applied: &'a [Applied]) -> Self {
        let mut changes = Self::default();
        for (read, applied) in read.iter().zip(applied) {
            let Applied::Changed { saga, promoted } = applied else { continue };
            let attempt_at = SqlTime(read.finished.result.attempt_at);
            if *promoted {
                changes.promoted_ids.push(read.finished.saga_id.0);
                changes.promoted_attempts.push(attempt_at);
            }
            changes.ids.push(read.finished.saga_id.0);
            changes.attempts.push(attempt_at);
            changes.statuses.push(saga.status.as_str());
            changes.attempt_counts.push(integer(saga.attempt_count));
            changes.next_attempts.push(SqlTime(saga.next_attempt_at));
            changes.error_codes.push(saga.final_error_code.as_ref().map(ErrorCode::as_str));
            changes.job_ids.push(read.finished.job_id.0);
            if saga.status == SagaStatus::Completed {
                changes.delivered_to.push(read.finished.subscription_id.0);
            }
        }
        changes.delivered_to.sort_unstable();
        changes.delivered_to.dedup();
        changes
    }

    fn parameters<'p>(&'p self, shard: &'p i32, counts: &'p Vec<i64>) -> [&'p (dyn ToSql + Sync); 10] {
        [
            &self.ids,
            &self.attempts,
            &self.statuses,
            &self.attempt_counts,
            &self.next_attempts,
            &self.error_codes,
            &self.job_ids,
            shard,
            counts,
            &self.delivered_to,
        ]
    }
}
