//! Sagas whose next attempt is further ahead than any can be, because the clock was ahead. They count as due.

use super::schedule::MOVE_WITH_JOB;
use crate::{
    error::{DbError, DbResult},
    time::{SqlTime, micros},
};
use deadpool_postgres::Client;
use hooksaga_saga::{FurthestAttempt, SubscriptionId};
use hooksaga_store::StrandedStep;

/// Subscriptions per step, and sagas of each.
const SUBSCRIPTIONS: i64 = 100;
const SAGAS: i64 = 10;
/// How many of the attempts that are planned next are read, of each kind.
const LOOKED_AT: i64 = 100;

/// Hops through `idx_saga_waiting` from one subscription to the next as `orchestrator.waiting` does, and looks at the end
/// of each one's part, where nothing is as a rule. First attempts are also looked for among the retries that are planned
/// next: the index has both, so only a bounded number is read.
///
/// The first line is the last subscription that was examined, and how many there were; then come the sagas. A saga whose
/// job is there already (a crash came before its move) is moved all the same.
pub(crate) const SCHEDULE_STRANDED: &str = "/* orchestrator.schedule_stranded */
WITH RECURSIVE hops AS (
    SELECT 0::bigint AS hop, $1::bigint AS subscription_id
    UNION ALL
    SELECT h.hop + 1, following.subscription_id
    FROM hops h CROSS JOIN LATERAL (
        SELECT s.subscription_id FROM webhook_delivery_sagas s
        WHERE s.status IN ('Pending', 'PendingRetry') AND s.subscription_id > h.subscription_id
        ORDER BY s.subscription_id, s.next_attempt_at LIMIT 1
    ) following
    WHERE h.hop < $2::bigint
), due AS MATERIALIZED (
    SELECT d.* FROM hops h
    CROSS JOIN LATERAL (
        SELECT id FROM subscriptions WHERE id = h.subscription_id AND deliverable OFFSET 0
    ) sub
    CROSS JOIN LATERAL (
        (SELECT s.id, s.subscription_id, s.event_id, s.attempt_count, s.next_attempt_at
         FROM webhook_delivery_sagas s
         WHERE s.subscription_id = sub.id AND s.status IN ('Pending', 'PendingRetry')
           AND s.next_attempt_at > now() + $3::bigint * interval '1 microsecond'
           AND (s.status = 'Pending' OR s.attempt_count < s.max_retry_limit)
         ORDER BY s.next_attempt_at, s.id
         LIMIT $4::bigint)
        UNION ALL
        (SELECT w.id, w.subscription_id, w.event_id, w.attempt_count, w.next_attempt_at FROM (
             SELECT s.id, s.subscription_id, s.event_id, s.attempt_count, s.next_attempt_at, s.status
             FROM webhook_delivery_sagas s
             WHERE s.subscription_id = sub.id AND s.status IN ('Pending', 'PendingRetry')
               AND s.next_attempt_at > now() + $5::bigint * interval '1 microsecond'
               AND s.next_attempt_at <= now() + $3::bigint * interval '1 microsecond'
             ORDER BY s.next_attempt_at, s.id
             LIMIT $6::bigint
         ) w WHERE w.status = 'Pending' LIMIT $4::bigint)
    ) d
    WHERE h.hop > 0
), jobs AS (
    INSERT INTO webhook_delivery_jobs
        (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until, created_at, updated_at)
    SELECT id, subscription_id, event_id, attempt_count + 1, next_attempt_at, now(), now(), now()
    FROM due ORDER BY id
    ON CONFLICT DO NOTHING
)
SELECT max(subscription_id), max(hop), NULL::timestamptz FROM hops
UNION ALL
SELECT id, NULL, next_attempt_at FROM due";

pub(super) async fn schedule_stranded(
    client: &Client,
    after: Option<SubscriptionId>,
    beyond: FurthestAttempt,
) -> DbResult<StrandedStep> {
    let statement = client.prepare_cached(SCHEDULE_STRANDED).await?;
    let from = after.map_or(i64::MIN, |id| id.0);
    let (first, retry) = (micros(beyond.first), micros(beyond.retry));
    let rows = client.query(&statement, &[&from, &SUBSCRIPTIONS, &retry, &SAGAS, &first, &LOOKED_AT]).await?;
    // A UNION ALL returns its parts in order.
    let (looked, rows) = rows.split_first().ok_or_else(|| DbError::unreadable("no hops"))?;
    let (last, hops): (i64, i64) = (looked.try_get(0)?, looked.try_get(1)?);
    let mut keys = Vec::with_capacity(rows.len());
    for row in rows {
        keys.push((row.try_get::<_, i64>(0)?, row.try_get::<_, SqlTime>(2)?));
    }
    if !keys.is_empty() {
        keys.sort_unstable();
        let (ids, times): (Vec<i64>, Vec<SqlTime>) = keys.into_iter().unzip();
        let statement = client.prepare_cached(MOVE_WITH_JOB).await?;
        client.execute(&statement, &[&ids, &times]).await?;
    }
    let resume_after = (hops == SUBSCRIPTIONS).then_some(SubscriptionId(last));
    Ok(StrandedStep { sagas: rows.len() as u64, resume_after })
}
