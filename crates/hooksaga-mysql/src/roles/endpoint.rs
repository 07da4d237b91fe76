//! What applied results say about their endpoints, counted by the orchestrator.

use crate::{error::DbResult, time::Time};
use hooksaga_saga::{ErrorCode, SubscriptionId, Timestamp};
use hooksaga_store::EndpointNews;
use mysql_async::{Transaction, prelude::Queryable as _};
use std::collections::{BTreeMap, HashSet};

pub(crate) const END_RUN: &str = "/* orchestrator.end_run */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = FALSE WHERE subscription_id = ?";

pub(crate) const GONE_URL: &str = "/* orchestrator.gone_url */
SELECT callback_url FROM webhook_delivery_jobs FORCE INDEX (uniq_job_saga_attempt)
WHERE saga_id = ? AND attempt_at = ?";

/// No failures: something was delivered in the same batch, and the run that ended begins no new one.
const COUNT_FAILURES: &str = "/* orchestrator.count_failures */
INSERT INTO endpoint_failures (subscription_id, since, failures, last_at, last_saga_id, last_error_code, gone_url)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE since = COALESCE(since, VALUES(since)), failures = failures + VALUES(failures),
    last_at = VALUES(last_at), last_saga_id = VALUES(last_saga_id), last_error_code = VALUES(last_error_code),
    gone_url = COALESCE(VALUES(gone_url), gone_url)";

/// `failing`: subscriptions that were seen in a run of failures, so that a success of any other costs nothing.
pub(super) async fn note(
    transaction: &mut Transaction<'_>,
    news: &BTreeMap<SubscriptionId, EndpointNews>,
    failing: &HashSet<SubscriptionId>,
    now: Timestamp,
) -> DbResult<()> {
    for (id, news) in news {
        if news.delivered && failing.contains(id) {
            transaction.exec_drop(END_RUN, (id.0,)).await?;
        }
        let Some((saga_id, code)) = &news.last_failure else { continue };
        let gone_url: Option<Option<String>> = match news.gone {
            Some((saga, at)) => transaction.exec_first(GONE_URL, (saga.0, Time(at))).await?,
            None => None,
        };
        let counted = if news.delivered { 0 } else { news.failures };
        let since = (counted > 0).then_some(Time(now));
        let row = (id.0, since, counted, Time(now), saga_id.0, ErrorCode::as_str(code), gone_url.flatten());
        transaction.exec_drop(COUNT_FAILURES, row).await?;
    }
    Ok(())
}
