//! What applied results say about their endpoints, counted by the orchestrator.

use crate::{
    error::{DbError, DbResult},
    roles::batch::list,
    time::SqlTime,
};
use hooksaga_saga::{ErrorCode, SubscriptionId, Timestamp};
use hooksaga_store::{EndpointNews, HeldEndpoints};
use mysql_async::{Conn, prelude::Queryable as _};
use std::{
    collections::{BTreeMap, HashSet},
    time::Instant,
};

pub(crate) const END_RUN: &str = "/* orchestrator.end_run */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = FALSE WHERE subscription_id = ?";

pub(crate) const GONE_URL: &str = "/* orchestrator.gone_url */
SELECT callback_url FROM webhook_delivery_jobs FORCE INDEX (uniq_job_saga_attempt)
WHERE saga_id = ? AND attempt_at = ?";

/// No failures: something was delivered in the same batch, and the run that ended begins no new one. The count
/// ends at the column's maximum.
const COUNT_FAILURES: &str = "/* orchestrator.count_failures */
INSERT INTO endpoint_failures (subscription_id, since, failures, last_at, last_saga_id, last_error_code, gone_url)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE since = COALESCE(since, VALUES(since)),
    failures = LEAST(failures, 2147483647 - VALUES(failures)) + VALUES(failures),
    last_at = VALUES(last_at), last_saga_id = VALUES(last_saga_id), last_error_code = VALUES(last_error_code),
    gone_url = COALESCE(VALUES(gone_url), gone_url)";

pub(crate) const FAILING: &str = "/* orchestrator.failing */
SELECT subscription_id, last_error_code FROM endpoint_failures FORCE INDEX (idx_failures_since)
WHERE since IS NOT NULL ORDER BY since, subscription_id LIMIT ?";

pub(super) async fn failing(mut connection: Conn, limit: u32) -> DbResult<Vec<(SubscriptionId, ErrorCode)>> {
    let rows: Vec<(i64, String)> = connection.exec(FAILING, (limit,)).await?;
    Ok(rows.into_iter().map(|(id, code)| (SubscriptionId(id), ErrorCode::from_stored(code))).collect())
}

/// A plain read, which locks nothing. The ids stand in the text.
pub(crate) fn deleted_statement(ids: &str) -> String {
    format!(
        "/* orchestrator.deleted */
SELECT id FROM subscriptions FORCE INDEX (PRIMARY) WHERE id IN ({ids}) AND deleted_at IS NOT NULL"
    )
}

/// Which of those that failed were deleted meanwhile: an attempt that was under way then leaves nothing behind.
async fn deleted(
    transaction: &mut Conn,
    news: &BTreeMap<SubscriptionId, EndpointNews>,
) -> DbResult<HashSet<i64>> {
    let failed = news.iter().filter(|(_, news)| news.last_failure.is_some());
    let ids: Vec<String> = failed.map(|(id, _)| id.to_string()).collect();
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let deleted: Vec<i64> = transaction.query(deleted_statement(&ids.join(","))).await?;
    Ok(deleted.into_iter().collect())
}

/// Those of the rows that nobody else has locked. The ids stand in the text.
pub(crate) fn not_held_statement(ids: &str) -> String {
    format!(
        "/* orchestrator.endpoints_not_held */
SELECT subscription_id FROM endpoint_failures FORCE INDEX (PRIMARY) WHERE subscription_id IN ({ids}) FOR UPDATE SKIP LOCKED"
    )
}

/// `failing`: subscriptions that were seen in a run of failures, so that a success of any other costs nothing. If somebody
/// has kept one of the rows for too long, `held` learns whose.
pub(super) async fn note(
    transaction: &mut Conn,
    news: &BTreeMap<SubscriptionId, EndpointNews>,
    failing: &HashSet<SubscriptionId>,
    now: Timestamp,
    held: &HeldEndpoints,
) -> DbResult<()> {
    let noted = write(transaction, news, failing, now).await;
    if noted.as_ref().is_err_and(DbError::is_locked_out) {
        // The transaction is there still. A row that is being inserted is not found.
        let is_written = |(id, news): &(&SubscriptionId, &EndpointNews)| {
            news.last_failure.is_some() || news.delivered && failing.contains(*id)
        };
        let written: Vec<SubscriptionId> = news.iter().filter(is_written).map(|(id, _)| *id).collect();
        let sql = not_held_statement(&list(written.iter().map(|id| id.0)));
        let free: Vec<i64> = transaction.query(sql).await?;
        held.note(written.into_iter().filter(|id| !free.contains(&id.0)), Instant::now());
    }
    noted
}

async fn write(
    transaction: &mut Conn,
    news: &BTreeMap<SubscriptionId, EndpointNews>,
    failing: &HashSet<SubscriptionId>,
    now: Timestamp,
) -> DbResult<()> {
    let deleted = deleted(transaction, news).await?;
    for (id, news) in news.iter().filter(|(id, _)| !deleted.contains(&id.0)) {
        if news.delivered && failing.contains(id) {
            transaction.exec_drop(END_RUN, (id.0,)).await?;
        }
        let Some((saga_id, code)) = &news.last_failure else { continue };
        let gone_url: Option<Option<String>> = match news.gone {
            Some((saga, at)) => transaction.exec_first(GONE_URL, (saga.0, SqlTime(at))).await?,
            None => None,
        };
        let counted = if news.delivered { 0 } else { news.failures };
        let since = (counted > 0).then_some(SqlTime(now));
        let row =
            (id.0, since, counted, SqlTime(now), saga_id.0, ErrorCode::as_str(code), gone_url.flatten());
        transaction.exec_drop(COUNT_FAILURES, row).await?;
    }
    Ok(())
}
