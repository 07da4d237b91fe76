//! Writes the results of attempts.

use super::{LeaseColumns, in_order};
use crate::{error::DbResult, time::SqlTime};
use deadpool_postgres::Client;
use hooksaga_saga::{JobId, Outcome};
use hooksaga_store::JobReport;
use tokio_postgres::types::ToSql;

/// Fenced by token; only the jobs that changed are queued for the orchestrator, with their results, in the same commit.
pub(crate) const REPORT: &str = "/* worker.report */
WITH done AS (
    UPDATE webhook_delivery_jobs j
    SET status = CASE WHEN u.error_code IS NULL THEN 'Completed'::job_status ELSE 'Failed' END,
        response_status = u.response_status, error_code = u.error_code, duration_ms = u.duration_ms,
        response_excerpt = u.excerpt, started_at = u.started_at, callback_url = u.callback_url,
        retry_at = u.retry_at, lease_token = NULL, updated_at = now()
    FROM unnest($1::bigint[], $2::timestamptz[], $3::bigint[], $4::bigint[], $5::int[], $6::text[], $7::int[],
                $8::text[], $9::timestamptz[], $10::text[], $11::timestamptz[])
         AS u (saga_id, attempt_at, id, token, response_status, error_code, duration_ms, excerpt, started_at,
               callback_url, retry_at)
    WHERE j.saga_id = u.saga_id AND j.attempt_at = u.attempt_at
      AND j.id = u.id AND j.lease_token = u.token AND j.status = (SELECT 'Leased'::job_status)
    RETURNING j.id, j.saga_id, j.attempt_at, j.duration_ms, j.error_code, j.retry_at
), queued AS (
    INSERT INTO finished_jobs (job_id, saga_id, attempt_at, duration_ms, error_code, retry_at)
    SELECT id, saga_id, attempt_at, duration_ms, error_code, retry_at FROM done
)
SELECT array_agg(id) FROM done";

/// The same for batches in which every result is a delivery: most batches. Columns that nothing is
/// written to cost nothing. (Whose lease it is the token says.)
pub(crate) const REPORT_DELIVERED: &str = "/* worker.report_delivered */
WITH done AS (
    UPDATE webhook_delivery_jobs j
    SET status = 'Completed', response_status = u.response_status, duration_ms = u.duration_ms,
        started_at = u.started_at, callback_url = u.callback_url, lease_token = NULL, updated_at = now()
    FROM unnest($1::bigint[], $2::timestamptz[], $3::bigint[], $4::int[], $5::int[], $6::timestamptz[], $7::text[])
         AS u (saga_id, attempt_at, token, response_status, duration_ms, started_at, callback_url)
    WHERE j.saga_id = u.saga_id AND j.attempt_at = u.attempt_at
      AND j.lease_token = u.token AND j.status = (SELECT 'Leased'::job_status)
    RETURNING j.id, j.saga_id, j.attempt_at, j.duration_ms
), queued AS (
    INSERT INTO finished_jobs (job_id, saga_id, attempt_at, duration_ms)
    SELECT id, saga_id, attempt_at, duration_ms FROM done
)
SELECT array_agg(id) FROM done";

pub(super) async fn report(client: &Client, columns: &ReportColumns<'_>) -> DbResult<Vec<JobId>> {
    let (sql, parameters) = columns.statement();
    let statement = client.prepare_cached(sql).await?;
    let row = client.query_one(&statement, &parameters).await?;
    let changed = row.try_get::<_, Option<Vec<i64>>>(0)?.unwrap_or_default();
    Ok(changed.into_iter().map(JobId).collect())
}

/// Reports as columns, side by side.
pub(super) struct ReportColumns<'a> {
    keys: LeaseColumns,
    response_statuses: Vec<Option<i32>>,
    error_codes: Vec<Option<&'a str>>,
    durations: Vec<i32>,
    excerpts: Vec<Option<String>>,
    starts: Vec<Option<SqlTime>>,
    callback_urls: Vec<Option<&'a str>>,
    retries: Vec<Option<SqlTime>>,
}

impl<'a> ReportColumns<'a> {
    pub(super) fn new(reports: &'a [JobReport]) -> Self {
        let mut sorted: Vec<&JobReport> = reports.iter().collect();
        sorted.sort_unstable_by_key(|report| in_order(&report.lease));
        Self {
            keys: LeaseColumns::new(sorted.iter().map(|report| &report.lease)),
            response_statuses: sorted.iter().map(|report| report.response_status.map(i32::from)).collect(),
            error_codes: sorted
                .iter()
                .map(|report| match &report.outcome {
                    Outcome::Delivered => None,
                    Outcome::Failed(code) => Some(code.as_str()),
                })
                .collect(),
            durations: sorted
                .iter()
                .map(|report| i32::try_from(report.duration.as_millis()).unwrap_or(i32::MAX))
                .collect(),
            excerpts: sorted.iter().map(|report| report.storable_excerpt()).collect(),
            starts: sorted.iter().map(|report| report.started_at.map(SqlTime)).collect(),
            callback_urls: sorted.iter().map(|report| report.callback_url.as_deref()).collect(),
            retries: sorted.iter().map(|report| report.retry_at.map(SqlTime)).collect(),
        }
    }

    /// The statement that writes them, and its arguments.
    fn statement(&self) -> (&'static str, Vec<&(dyn ToSql + Sync)>) {
        let LeaseColumns { sagas, attempts, ids, tokens } = &self.keys;
        let only_delivered = self.error_codes.iter().all(Option::is_none)
            && self.excerpts.iter().all(Option::is_none)
            && self.retries.iter().all(Option::is_none);
        if only_delivered {
            let (statuses, urls) = (&self.response_statuses, &self.callback_urls);
            let parameters: [&(dyn ToSql + Sync); 7] =
                [sagas, attempts, tokens, statuses, &self.durations, &self.starts, urls];
            return (REPORT_DELIVERED, parameters.into());
        }
        let parameters: [&(dyn ToSql + Sync); 11] = [
            sagas,
            attempts,
            ids,
            tokens,
            &self.response_statuses,
            &self.error_codes,
            &self.durations,
            &self.excerpts,
            &self.starts,
            &self.callback_urls,
            &self.retries,
        ];
        (REPORT, parameters.into())
    }
}
