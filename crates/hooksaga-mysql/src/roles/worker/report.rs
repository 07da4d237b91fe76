//! Writes the results of attempts.

use super::held;
use crate::{
    error::DbResult,
    roles::{
        batch::{Batch, Field},
        rows::{expect_rows, rows},
    },
};
use hooksaga_saga::{JobId, Outcome};
use hooksaga_store::{JobReport, LeaseRef};
use mysql_async::{Conn, prelude::Queryable as _};

/// Guarded by the token; reads the given ids only.
pub(crate) const REPORT: &str = "/* worker.report */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', token BIGINT PATH '$[1]', failed INT PATH '$[2]', response_status INT PATH '$[3]',
    error_code VARCHAR(200) PATH '$[4]', duration_ms INT PATH '$[5]', excerpt VARCHAR(8192) PATH '$[6]',
    started_at DATETIME(6) PATH '$[7]', callback_url VARCHAR(1000) PATH '$[8]', retry_at DATETIME(6) PATH '$[9]'
)) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
SET j.status = IF(u.failed = 1, 'Failed', 'Completed'), j.response_status = u.response_status,
    j.error_code = CONVERT(UNHEX(u.error_code) USING ascii), j.duration_ms = u.duration_ms,
    j.response_excerpt = CONVERT(UNHEX(u.excerpt) USING utf8mb4), j.started_at = u.started_at,
    j.callback_url = CONVERT(UNHEX(u.callback_url) USING ascii), j.retry_at = u.retry_at, j.lease_token = NULL,
    j.updated_at = UTC_TIMESTAMP(6)
WHERE j.status = 'Leased' AND j.lease_token = u.token";

/// A job finishes once, so its id can be in the queue only once. If it were there already, the results of the others must not
/// be lost. IGNORE can hide no other error: the table has only its key.
const QUEUE: &str = "/* worker.queue */ INSERT IGNORE INTO finished_jobs (job_id) VALUES ";

/// Only the jobs that changed are queued for the orchestrator, in the same commit.
pub(super) async fn report(connection: Conn, reports: &[JobReport]) -> DbResult<Vec<JobId>> {
    let mut sorted: Vec<&JobReport> = reports.iter().collect();
    sorted.sort_unstable_by_key(|report| report.lease.job_id);
    let leases: Vec<LeaseRef> = sorted.iter().map(|report| report.lease).collect();

    let (mut transaction, held) = held(connection, &leases).await?;
    if held.is_empty() {
        transaction.rollback().await?;
        return Ok(Vec::new());
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
            Field::maybe_at(report.started_at),
            Field::maybe_text(report.callback_url.as_deref()),
            Field::maybe_at(report.retry_at),
        ]
    }) {
        transaction.exec_drop(REPORT, (document,)).await?;
        changed += transaction.affected_rows();
    }
    expect_rows("reporting", rows(held.len()), changed)?;
    let held: Vec<JobId> = held.into_iter().map(|held| held.lease.job_id).collect();
    let values = held.iter().map(|job| format!("({job})")).collect::<Vec<_>>().join(",");
    transaction.commit(&[format!("{QUEUE}{values}")]).await?;
    Ok(held)
}
