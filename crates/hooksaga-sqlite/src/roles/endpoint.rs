//! What applied results say about their endpoints, counted by the orchestrator.

use super::rows;
use crate::{error::DbResult, session::Tx};
use hooksaga_saga::{ErrorCode, SubscriptionId};
use hooksaga_store::EndpointNews;
use rusqlite::OptionalExtension;
use std::collections::BTreeMap;

/// A success of an endpoint that does not fail finds nothing, by key.
pub(super) const END_RUN: &str = "/* orchestrator.end_run */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = 0
 WHERE subscription_id = ?1 AND since IS NOT NULL";

/// `?3` of 0 counts nothing: something was delivered in the same batch. An attempt that was under way when its subscription
/// was deleted leaves nothing behind. The count ends where those of the servers end.
pub(super) const COUNT_FAILURES: &str = "/* orchestrator.count_failures */
INSERT OR FAIL INTO endpoint_failures (subscription_id, since, failures, last_at, last_saga_id, last_error_code, gone_url)
SELECT ?1, iif(?3 > 0, ?2, NULL), ?3, ?2, ?4, ?5, ?6
 WHERE EXISTS (SELECT 1 FROM subscriptions WHERE id = ?1 AND deleted_at IS NULL)
ON CONFLICT (subscription_id) DO UPDATE SET
    since = coalesce(since, excluded.since), last_at = excluded.last_at,
    failures = min(failures, 2147483647 - excluded.failures) + excluded.failures,
    last_saga_id = excluded.last_saga_id, last_error_code = excluded.last_error_code,
    gone_url = coalesce(excluded.gone_url, gone_url)";

pub(super) const GONE_URL: &str = "/* orchestrator.gone_url */
SELECT callback_url FROM webhook_delivery_jobs WHERE saga_id = ?1 AND attempt_at = ?2";

/// INDEXED BY: only that index is as short as the list.
pub(super) const FAILING: &str = "/* orchestrator.failing */
SELECT subscription_id, last_error_code FROM endpoint_failures INDEXED BY idx_failures_since
 WHERE since IS NOT NULL ORDER BY since, subscription_id LIMIT ?1";

pub(super) fn failing(tx: &Tx<'_>, limit: u32) -> DbResult<Vec<(SubscriptionId, ErrorCode)>> {
    rows::all(tx, FAILING, [limit], |row| Ok((SubscriptionId(row.get(0)?), rows::error_code(row, 1)?)))
}

pub(super) fn note(tx: &Tx<'_>, news: &BTreeMap<SubscriptionId, EndpointNews>) -> DbResult<()> {
    let mut end_run = tx.prepare(END_RUN)?;
    for (id, news) in news {
        if news.delivered {
            end_run.execute([id.0])?;
        }
        let Some((saga_id, code)) = &news.last_failure else { continue };
        let gone_url: Option<String> = match news.gone {
            Some((saga, at)) => tx
                .prepare(GONE_URL)?
                .query_row((saga.0, at.as_micros()), |row| row.get(0))
                .optional()?
                .flatten(),
            None => None,
        };
        let counted = if news.delivered { 0 } else { news.failures };
        let now = tx.now.as_micros();
        tx.execute(COUNT_FAILURES, (id.0, now, counted, saga_id.0, ErrorCode::as_str(code), gone_url))?;
    }
    Ok(())
}
