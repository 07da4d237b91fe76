//! What applied results say about their endpoints, counted by the orchestrator.

use crate::{
    error::DbResult,
    roles::rows::{bigint, integer},
    time::SqlTime,
};
use deadpool_postgres::{Client, Transaction};
use hooksaga_saga::{ErrorCode, SubscriptionId};
use hooksaga_store::EndpointNews;
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::Row;

/// In the order of subscriptions, so that two batches wait for each other instead of deadlocking. No failures: something
/// was delivered in the same batch, and the run that ended begins no new one. The job that an endpoint answered with "gone"
/// says which URL that was. An attempt that was under way when its subscription was deleted leaves nothing behind.
/// The count ends at the column's maximum.
pub(crate) const COUNT_FAILURES: &str = "/* orchestrator.count_failures */
INSERT INTO endpoint_failures AS f
    (subscription_id, since, failures, last_at, last_saga_id, last_error_code, gone_url)
SELECT u.id, CASE WHEN u.failures > 0 THEN now() END, u.failures, now(), u.saga_id, u.code, j.callback_url
FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::text[], $5::bigint[], $6::timestamptz[])
     AS u (id, failures, saga_id, code, gone_saga_id, gone_at)
LEFT JOIN webhook_delivery_jobs j ON j.saga_id = u.gone_saga_id AND j.attempt_at = u.gone_at
WHERE NOT EXISTS (SELECT FROM subscriptions s WHERE s.id = u.id AND s.deleted_at IS NOT NULL)
ORDER BY u.id
ON CONFLICT (subscription_id) DO UPDATE
SET since = coalesce(f.since, excluded.since), failures = least(f.failures, 2147483647 - excluded.failures) + excluded.failures,
    last_at = excluded.last_at, last_saga_id = excluded.last_saga_id, last_error_code = excluded.last_error_code,
    gone_url = coalesce(excluded.gone_url, f.gone_url)";

/// Every row that the batch writes, in one order: two batches wait for each other instead of deadlocking. The second list:
/// those that failed.
pub(crate) const LOCK_FAILURES: &str = "/* orchestrator.lock_failures */
SELECT FROM endpoint_failures
WHERE subscription_id = ANY ($1::bigint[]) AND (since IS NOT NULL OR subscription_id = ANY ($2::bigint[]))
ORDER BY subscription_id FOR UPDATE";

/// Those of the rows that nobody else has locked.
pub(crate) const NOT_HELD: &str = "/* orchestrator.endpoints_not_held */
SELECT subscription_id FROM endpoint_failures WHERE subscription_id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED";

/// Those that are in a run of failures.
pub(crate) const IN_A_RUN: &str = "/* orchestrator.endpoints_in_a_run */
SELECT subscription_id FROM endpoint_failures WHERE subscription_id = ANY ($1::bigint[]) AND since IS NOT NULL";

pub(crate) const END_RUNS: &str = "/* orchestrator.end_runs */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = false
WHERE subscription_id = ANY ($1::bigint[]) AND since IS NOT NULL";

pub(crate) const FAILING: &str = "/* orchestrator.failing */
SELECT subscription_id, last_error_code FROM endpoint_failures
WHERE since IS NOT NULL ORDER BY since, subscription_id LIMIT $1";

pub(super) async fn failing(client: &Client, limit: u32) -> DbResult<Vec<(SubscriptionId, ErrorCode)>> {
    let statement = client.prepare_cached(FAILING).await?;
    let rows = client.query(&statement, &[&bigint(limit)]).await?;
    let read = |row: &Row| {
        Ok((SubscriptionId(row.try_get(0)?), ErrorCode::from_stored(row.try_get::<_, String>(1)?)))
    };
    rows.iter().map(read).collect()
}

/// The subscriptions with news, and those of them that failed.
fn ids(news: &BTreeMap<SubscriptionId, EndpointNews>) -> [Vec<i64>; 2] {
    let failed = news.iter().filter(|(_, news)| news.last_failure.is_some());
    [news.keys().map(|id| id.0).collect(), failed.map(|(id, _)| id.0).collect()]
}

/// Whose row somebody else has locked, of those that these news are written to. A row that is being inserted is not found:
/// whoever failed and has none is one of them.
pub(super) async fn held(
    client: &Client,
    news: &BTreeMap<SubscriptionId, EndpointNews>,
) -> DbResult<Vec<SubscriptionId>> {
    let [all, failed] = ids(news);
    let mut written: BTreeSet<i64> = failed.into_iter().collect();
    for row in client.query(&client.prepare_cached(IN_A_RUN).await?, &[&all]).await? {
        let id: i64 = row.try_get(0)?;
        written.insert(id);
    }
    for row in client.query(&client.prepare_cached(NOT_HELD).await?, &[&all]).await? {
        let id: i64 = row.try_get(0)?;
        written.remove(&id);
    }
    Ok(written.into_iter().map(SubscriptionId).collect())
}

/// Counts the failures of a batch, and ends the runs of those that were delivered to.
pub(super) async fn note_failures(
    transaction: &Transaction<'_>,
    news: &BTreeMap<SubscriptionId, EndpointNews>,
) -> DbResult<()> {
    let (mut ids, mut failures, mut sagas, mut codes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut gone_sagas, mut gone_times) = (Vec::new(), Vec::new());
    for (id, news) in news {
        let Some((saga_id, code)) = &news.last_failure else { continue };
        ids.push(id.0);
        failures.push(if news.delivered { 0 } else { integer(news.failures) });
        sagas.push(saga_id.0);
        codes.push(ErrorCode::as_str(code));
        gone_sagas.push(news.gone.map(|(saga, _)| saga.0));
        gone_times.push(news.gone.map(|(_, at)| SqlTime(at)));
    }
    let [all, failed] = self::ids(news);
    let delivered: Vec<i64> = news.iter().filter(|(_, news)| news.delivered).map(|(id, _)| id.0).collect();
    let statement = transaction.prepare_cached(LOCK_FAILURES).await?;
    transaction.execute(&statement, &[&all, &failed]).await?;
    if !delivered.is_empty() {
        let statement = transaction.prepare_cached(END_RUNS).await?;
        transaction.execute(&statement, &[&delivered]).await?;
    }
    if ids.is_empty() {
        return Ok(());
    }
    let statement = transaction.prepare_cached(COUNT_FAILURES).await?;
    transaction.execute(&statement, &[&ids, &failures, &sagas, &codes, &gone_sagas, &gone_times]).await?;
    Ok(())
}
