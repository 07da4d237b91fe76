//! Writes the results of attempts.

use crate::{
    error::DbResult,
    roles::multi_row::{Write, several},
    session::Tx,
};
use hooksaga_saga::{JobId, JobStatus, Outcome, Timestamp};
use hooksaga_store::JobReport;

/// `+status`: found by id; the planner must not consider the indexes over active jobs.
const REPORT: &str = "/* worker.report */
UPDATE OR FAIL webhook_delivery_jobs
   SET status = ?3, response_status = ?4, error_code = ?5, duration_ms = ?6, response_excerpt = ?7,
       started_at = ?9, callback_url = ?10, retry_at = ?11, lease_token = NULL, updated_at = ?8
 WHERE id = ?1 AND +status = 'Leased' AND lease_token = ?2";

macro_rules! queue_results {
    ($name:literal, $rows:expr) => {
        concat!(
            "/* worker.",
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

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[REPORT, QUEUE_RESULTS.one];

pub(super) fn report(tx: &Tx<'_>, reports: &[JobReport]) -> DbResult<Vec<JobId>> {
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
