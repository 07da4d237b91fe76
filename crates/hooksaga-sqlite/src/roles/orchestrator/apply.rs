//! Applies finished jobs to their sagas.

use super::{MARK_IN_PROGRESS, counts::Counts};
use crate::{
    error::DbResult,
    roles::{
        endpoint,
        multi_row::{Write, several},
        rows,
    },
    session::Tx,
};
use hooksaga_saga::{
    Applied, JobId, JobResult, JobStatus, Outcome, Saga, SagaId, SagaStatus, SubscriptionId, Timestamp,
};
use hooksaga_store::{AppliedResult, ApplyBatch, Decide, FinishedJob, Trace, endpoint_news};
use rusqlite::{CachedStatement, Row};
use std::time::Duration;

/// A queued job that is not seen finished is left where it is.
const TAKE_RESULTS: &str = "/* orchestrator.take_results */
SELECT j.id, j.saga_id, j.subscription_id, j.attempt_at, j.status, j.error_code, coalesce(j.duration_ms, 0),
       g.status, g.attempt_count, g.max_retry_limit, g.next_attempt_at, g.final_error_code,
       e.tenant, e.correlation_id, j.retry_at
  FROM finished_jobs AS q
 CROSS JOIN webhook_delivery_jobs AS j ON j.id = q.job_id
 CROSS JOIN webhook_delivery_sagas AS g ON g.id = j.saga_id
 CROSS JOIN events AS e ON e.id = g.event_id
 WHERE +j.status IN ('Completed', 'Failed')
 ORDER BY q.job_id LIMIT ?1";

/// `?2` is the JOB's attempt_at: a result that was applied before finds nothing.
const UPDATE_SAGA: &str = "/* orchestrator.update_saga */
UPDATE OR FAIL webhook_delivery_sagas
   SET status = ?3, attempt_count = ?4, next_attempt_at = ?5, final_error_code = ?6, updated_at = ?7
 WHERE id = ?1 AND +status = 'InProgress' AND +next_attempt_at = ?2";

const READ_SAGA: &str = "/* orchestrator.read_saga */
SELECT status, attempt_count, next_attempt_at FROM webhook_delivery_sagas WHERE id = ?1";

const QUEUE_DEAD: &str = "/* orchestrator.queue_dead */
INSERT OR FAIL INTO pending_dead_letters (saga_id) VALUES (?1) ON CONFLICT DO NOTHING";

const LEAVE_QUEUE: Write = Write {
    several: concat!(
        "/* orchestrator.leave_queue */ DELETE FROM finished_jobs WHERE job_id IN (",
        several!("?"),
        ")"
    ),
    one: "/* orchestrator.leave_queue_alone */ DELETE FROM finished_jobs WHERE job_id = ?1",
};

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[
    TAKE_RESULTS,
    UPDATE_SAGA,
    READ_SAGA,
    QUEUE_DEAD,
    LEAVE_QUEUE.several,
    LEAVE_QUEUE.one,
    super::counts::COUNT,
    endpoint::END_RUN,
    endpoint::COUNT_FAILURES,
    endpoint::GONE_URL,
];

/// A finished job and what is shown of it afterwards.
pub(super) struct Finished {
    pub(super) job: FinishedJob,
    trace: Trace,
    pub(super) duration: Duration,
}

pub(super) fn apply(tx: &Tx<'_>, limit: u32, decide: &Decide) -> DbResult<ApplyBatch> {
    let batch = rows::all(tx, TAKE_RESULTS, [limit], finished)?;
    let mut results = Vec::with_capacity(batch.len());
    let mut counts = Counts::default();
    let mut update = tx.prepare(UPDATE_SAGA)?;
    let mut written = Vec::with_capacity(batch.len());
    for finished in &batch {
        let (saga, changed) = write(tx, &mut update, &finished.job, decide(&finished.job, tx.now))?;
        if changed {
            counts.add(finished, saga.status);
        }
        written.push((saga, changed));
    }
    let jobs: Vec<_> = batch.iter().map(|finished| [finished.job.job_id.0]).collect();
    LEAVE_QUEUE.run(tx, &[], &jobs)?;
    counts.write(tx)?;
    let changed = batch.iter().zip(&written).filter(|(_, (_, changed))| *changed);
    endpoint::note(tx, &endpoint_news(changed.map(|(finished, _)| &finished.job)))?;
    for (finished, (saga, changed)) in batch.into_iter().zip(written) {
        results.push(result(finished, &saga, changed));
    }
    Ok(ApplyBatch { now: tx.now, results })
}

/// Where a saga stands after a result.
struct SagaAfter {
    status: SagaStatus,
    attempt_count: u32,
    next_attempt_at: Timestamp,
}

/// Writes one decision; the saga's state after it, and whether this changed it.
fn write(
    tx: &Tx<'_>,
    update: &mut CachedStatement<'_>,
    job: &FinishedJob,
    applied: Applied,
) -> DbResult<(SagaAfter, bool)> {
    let id = job.saga_id.0;
    let attempt_at = job.result.attempt_at.as_micros();
    let now = tx.now.as_micros();
    let changed = match applied {
        Applied::Already => None,
        Applied::Changed { saga, promoted } => {
            if promoted {
                MARK_IN_PROGRESS.run(tx, &[now, attempt_at], &[[id]])?;
            }
            let written = update.execute((
                id,
                attempt_at,
                saga.status.as_str(),
                saga.attempt_count,
                saga.next_attempt_at.as_micros(),
                saga.final_error_code.as_ref().map(hooksaga_saga::ErrorCode::as_str),
                now,
            ))?;
            (written > 0).then_some(saga)
        }
    };
    let Some(Saga { status, attempt_count, next_attempt_at, .. }) = changed else {
        let standing = tx.prepare(READ_SAGA)?.query_row([id], |row| {
            Ok(SagaAfter {
                status: rows::parsed(row, 0)?,
                attempt_count: row.get(1)?,
                next_attempt_at: rows::time(row, 2)?,
            })
        })?;
        return Ok((standing, false));
    };
    if status == SagaStatus::DeadLettered {
        tx.execute(QUEUE_DEAD, [id])?;
    }
    Ok((SagaAfter { status, attempt_count, next_attempt_at }, true))
}

fn finished(row: &Row<'_>) -> rusqlite::Result<Finished> {
    let outcome = match rows::parsed(row, 4)? {
        JobStatus::Failed => Outcome::Failed(rows::error_code(row, 5)?),
        // The query admits only finished jobs.
        JobStatus::Completed | JobStatus::Pending | JobStatus::Leased => Outcome::Delivered,
    };
    Ok(Finished {
        job: FinishedJob {
            job_id: JobId(row.get(0)?),
            saga_id: SagaId(row.get(1)?),
            subscription_id: SubscriptionId(row.get(2)?),
            saga: Saga {
                status: rows::parsed(row, 7)?,
                attempt_count: row.get(8)?,
                max_retry_limit: row.get(9)?,
                next_attempt_at: rows::time(row, 10)?,
                final_error_code: rows::optional_error_code(row, 11)?,
            },
            result: JobResult {
                attempt_at: rows::time(row, 3)?,
                outcome,
                retry_at: rows::optional_time(row, 14)?,
            },
        },
        duration: Duration::from_millis(row.get::<_, u32>(6)?.into()),
        trace: rows::trace(row, 12)?,
    })
}

fn result(finished: Finished, saga: &SagaAfter, changed: bool) -> AppliedResult {
    AppliedResult {
        job_id: finished.job.job_id,
        saga_id: finished.job.saga_id,
        subscription_id: finished.job.subscription_id,
        trace: finished.trace,
        status: saga.status,
        attempt_count: saga.attempt_count,
        next_attempt_at: saga.next_attempt_at,
        changed,
        result: finished.job.result,
        duration: finished.duration,
    }
}
