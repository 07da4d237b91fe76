//! Results of finished jobs, applied to their sagas exactly once.

use crate::{
    error::{DbError, DbResult},
    roles::{
        correlations::Correlations,
        endpoint,
        frontier::Frontier,
        rows::{bigint, integer, natural, parsed},
    },
    time::Time,
};
use deadpool_postgres::{Client, Transaction};
use hooksaga_saga::{
    Applied, ErrorCode, JobId, JobResult, Latencies, Outcome, Saga, SagaId, SubscriptionId, Timestamp,
};
use hooksaga_store::{ApplyBatch, Decide, FinishedJob, QueuedResult, endpoint_news};
use std::{collections::HashSet, time::Duration};
use tokio_postgres::{Row, Statement};

/// One statement. The queue's rows hold the results, which were committed together with the finished jobs. Its snapshot
/// shows them with everything that came before; nothing but such a result can change what is read of its saga here,
/// besides the move to InProgress, and the write below looks at that again. Sagas need no lock before it, then.
/// The rows of the queue are locked, and deleted by their place in the table; one whose saga is not seen has no
/// line in `finished`, and so stays queued. (The usual status is written out: turning one into text is a look into the
/// catalogue for every row.) The first line is the clock, and how far the walk came.
pub(crate) const TAKE_RESULTS: &str = "/* orchestrator.take_results */
WITH batch AS MATERIALIZED (
    SELECT seq, job_id, saga_id, attempt_at, duration_ms, error_code, retry_at, ctid AS place FROM finished_jobs
    WHERE seq >= $2 ORDER BY seq LIMIT $1
    FOR UPDATE SKIP LOCKED
), finished AS MATERIALIZED (
    SELECT b.place, s.created_at, b.job_id, b.saga_id, s.subscription_id, b.attempt_at, b.error_code, b.duration_ms,
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
SELECT created_at, job_id, saga_id, subscription_id, attempt_at, error_code, duration_ms,
       status, attempt_count, max_retry_limit, next_attempt_at, final_error_code, event_id, retry_at
FROM finished";

/// The worker was faster than the move to InProgress: the move comes first. The job is there, finished.
pub(crate) const PROMOTE: &str = super::schedule::MOVE;

/// The decisions. Guarded by InProgress and the JOB's attempt_at: this and the queue's lock each keep a result
/// from being applied twice. (The usual status is written out, as above.) Dead letters are queued, and counters added
/// to, for what this update changed and nothing else; how long its attempts took is counted in the same row, by range, which is
/// null where no request was sent. A success ends its endpoint's run of failures: a look by key into a
/// table that holds only endpoints that have failed.
pub(crate) const WRITE_RESULTS: &str = "/* orchestrator.write_results */
WITH changed AS (
    UPDATE webhook_delivery_sagas s
    SET status = CASE u.status WHEN 'Completed' THEN 'Completed'::saga_status ELSE u.status::saga_status END,
        attempt_count = u.attempt_count, next_attempt_at = u.next_attempt_at,
        final_error_code = u.final_error_code, updated_at = now()
    FROM unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::int[], $5::timestamptz[], $6::text[],
                $7::bigint[], $9::smallint[], $10::int[])
         AS u (id, attempt_at, status, attempt_count, next_attempt_at, final_error_code, job_id, range, took_ms)
    WHERE s.id = u.id AND s.next_attempt_at = u.attempt_at AND s.status = (SELECT 'InProgress'::saga_status)
    RETURNING s.id, s.subscription_id, s.status, u.job_id, u.range, u.took_ms
), dead AS (
    INSERT INTO pending_dead_letters (saga_id)
    SELECT id FROM changed WHERE status = 'DeadLettered' ORDER BY id
    ON CONFLICT DO NOTHING
), counted AS (
    INSERT INTO delivery_counts AS c
        (minute, subscription_id, shard, delivered, failed, dead_lettered, ms_10, ms_20, ms_50, ms_100, ms_200, ms_500,
         ms_1000, ms_2000, ms_5000, ms_10000, ms_20000, ms_more, slowest_ms)
    SELECT date_trunc('minute', now(), 'UTC'), subscription_id, $8::int,
           count(*) FILTER (WHERE status = 'Completed'),
           count(*) FILTER (WHERE status <> 'Completed'),
           count(*) FILTER (WHERE status = 'DeadLettered'),
           count(*) FILTER (WHERE range = 0),
           count(*) FILTER (WHERE range = 1),
           count(*) FILTER (WHERE range = 2),
           count(*) FILTER (WHERE range = 3),
           count(*) FILTER (WHERE range = 4),
           count(*) FILTER (WHERE range = 5),
           count(*) FILTER (WHERE range = 6),
           count(*) FILTER (WHERE range = 7),
           count(*) FILTER (WHERE range = 8),
           count(*) FILTER (WHERE range = 9),
           count(*) FILTER (WHERE range = 10),
           count(*) FILTER (WHERE range = 11),
           coalesce(max(took_ms), 0)
    FROM changed GROUP BY subscription_id ORDER BY subscription_id
    ON CONFLICT (minute, subscription_id, shard) DO UPDATE
    SET delivered = c.delivered + excluded.delivered,
        failed = c.failed + excluded.failed,
        dead_lettered = c.dead_lettered + excluded.dead_lettered,
        ms_10 = c.ms_10 + excluded.ms_10,
        ms_20 = c.ms_20 + excluded.ms_20,
        ms_50 = c.ms_50 + excluded.ms_50,
        ms_100 = c.ms_100 + excluded.ms_100,
        ms_200 = c.ms_200 + excluded.ms_200,
        ms_500 = c.ms_500 + excluded.ms_500,
        ms_1000 = c.ms_1000 + excluded.ms_1000,
        ms_2000 = c.ms_2000 + excluded.ms_2000,
        ms_5000 = c.ms_5000 + excluded.ms_5000,
        ms_10000 = c.ms_10000 + excluded.ms_10000,
        ms_20000 = c.ms_20000 + excluded.ms_20000,
        ms_more = c.ms_more + excluded.ms_more,
        slowest_ms = greatest(c.slowest_ms, excluded.slowest_ms)
), well AS (
    UPDATE endpoint_failures SET since = NULL, failures = 0, announced = false
    WHERE subscription_id = ANY (ARRAY(
              SELECT DISTINCT subscription_id FROM changed WHERE status = 'Completed' ORDER BY subscription_id))
      AND since IS NOT NULL
      AND (SELECT count(*) FROM changed WHERE status <> 'Completed') = 0
)
SELECT array_agg(job_id) FROM changed";

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
) -> DbResult<ApplyBatch> {
    let transaction = client.transaction().await?;
    let (take, promote, write) = tokio::try_join!(
        transaction.prepare_cached(TAKE_RESULTS),
        transaction.prepare_cached(PROMOTE),
        transaction.prepare_cached(WRITE_RESULTS),
    )?;
    let (now, mut read) = frontier.walk(|from| take_from(&transaction, &take, limit, from)).await?;
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
    let promotion: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
        [&changes.promoted_ids, &changes.promoted_attempts];
    let writing = changes.parameters(&shard);
    let (_, changed) = tokio::try_join!(
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
    let changed: Option<Vec<i64>> = changed.try_get(0)?;
    let mut changed: HashSet<i64> = changed.into_iter().flatten().collect();
    let new = read.iter().map(|read| &read.finished).filter(|finished| changed.contains(&finished.job_id.0));
    if new.clone().any(|finished| finished.result.outcome != Outcome::Delivered) {
        endpoint::note_failures(&transaction, &endpoint_news(new)).await?;
    }
    transaction.commit().await?;

    // Only for the log: what is applied stays applied if this fails.
    let known = correlations.of(client, &events).await.unwrap_or_default();
    for (read, correlation_id) in read.iter_mut().zip(known) {
        read.correlation_id = correlation_id;
    }
    let results = read
        .into_iter()
        .zip(applied)
        .map(|(read, applied)| {
            // A job that was queued twice counts once.
            let changed = changed.remove(&read.finished.job_id.0);
            read.into_applied(applied, changed)
        })
        .collect();
    Ok(ApplyBatch { now, results })
}

/// The database's clock and the results that were taken, each with its event, and how far the walk came.
type Taken = ((Timestamp, Vec<(QueuedResult, i64)>), Option<i64>);

async fn take_from(
    transaction: &Transaction<'_>,
    take: &Statement,
    limit: u32,
    from: i64,
) -> DbResult<Taken> {
    let rows = transaction.query(take, &[&bigint(limit), &from]).await?;
    // A UNION ALL returns its halves in turn.
    let (clock, rows) = rows.split_first().ok_or_else(|| DbError::unreadable("no clock"))?;
    let now = clock.try_get::<_, Time>(0)?.0;
    let read = |row| -> DbResult<_> { Ok((read_result(row)?, row.try_get(12)?)) };
    let read = rows.iter().map(read).collect::<Result<_, _>>()?;
    Ok(((now, read), clock.try_get(1)?))
}

/// Without its correlation id, which only the log needs.
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
        next_attempt_at: row.try_get::<_, Time>(10)?.0,
        final_error_code: code(11)?,
    };
    let finished = FinishedJob {
        job_id: JobId(row.try_get(1)?),
        saga_id: SagaId(row.try_get(2)?),
        subscription_id: SubscriptionId(row.try_get(3)?),
        saga,
        result: JobResult {
            attempt_at: row.try_get::<_, Time>(4)?.0,
            outcome,
            retry_at: row.try_get::<_, Option<Time>>(13)?.map(|time| time.0),
        },
    };
    let duration_ms = natural(row.try_get(6)?);
    Ok(QueuedResult {
        finished,
        correlation_id: String::new(),
        duration: Duration::from_millis(duration_ms.into()),
        saga_created_at: row.try_get::<_, Time>(0)?.0,
    })
}

/// The decisions as columns, in the order of saga ids.
#[derive(Default)]
struct Changes<'a> {
    promoted_ids: Vec<i64>,
    promoted_attempts: Vec<Time>,
    ids: Vec<i64>,
    attempts: Vec<Time>,
    statuses: Vec<&'static str>,
    attempt_counts: Vec<i32>,
    next_attempts: Vec<Time>,
    error_codes: Vec<Option<&'a str>>,
    job_ids: Vec<i64>,
    ranges: Vec<Option<i16>>,
    took_ms: Vec<Option<i32>>,
}

impl<'a> Changes<'a> {
    fn new(read: &[QueuedResult], applied: &'a [Applied]) -> Self {
        let mut changes = Self::default();
        for (read, applied) in read.iter().zip(applied) {
            let Applied::Changed { saga, promoted } = applied else { continue };
            let attempt_at = Time(read.finished.result.attempt_at);
            if *promoted {
                changes.promoted_ids.push(read.finished.saga_id.0);
                changes.promoted_attempts.push(attempt_at);
            }
            changes.ids.push(read.finished.saga_id.0);
            changes.attempts.push(attempt_at);
            changes.statuses.push(saga.status.as_str());
            changes.attempt_counts.push(integer(saga.attempt_count));
            changes.next_attempts.push(Time(saga.next_attempt_at));
            changes.error_codes.push(saga.final_error_code.as_ref().map(ErrorCode::as_str));
            changes.job_ids.push(read.finished.job_id.0);
            let took = Latencies::measured(&read.finished.result.outcome, read.duration);
            changes.ranges.push(took.and_then(|ms| i16::try_from(Latencies::range_of(ms)).ok()));
            changes.took_ms.push(took.map(integer));
        }
        changes
    }

    fn parameters<'p>(&'p self, shard: &'p i32) -> [&'p (dyn tokio_postgres::types::ToSql + Sync); 10] {
        [
            &self.ids,
            &self.attempts,
            &self.statuses,
            &self.attempt_counts,
            &self.next_attempts,
            &self.error_codes,
            &self.job_ids,
            shard,
            &self.ranges,
            &self.took_ms,
        ]
    }
}
