//! Sagas whose next attempt is further ahead than any can be, because the clock was ahead. They count as due.

use super::schedule::{INSERT_JOBS, waiting_subscriptions};
use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::{FurthestAttempt, SagaId, SubscriptionId, Timestamp};
use rusqlite::Row;

/// Subscriptions per step, and sagas of each.
const SUBSCRIPTIONS: u32 = 100;
const SAGAS: u32 = 10;
/// How many of the attempts that are planned next are read, of each kind.
const LOOKED_AT: u32 = 100;

/// One index probe at the end of each subscription's part.
const STRANDED: &str = waiting_subscriptions!("stranded", "g.next_attempt_at > ?3");

const STRANDED_SAGAS: &str = "/* orchestrator.stranded_sagas */
SELECT g.id, g.next_attempt_at FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
 WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = ?1 AND g.next_attempt_at > ?2
   AND (g.status = 'Pending' OR g.attempt_count < g.max_retry_limit)
 ORDER BY g.next_attempt_at, g.id LIMIT ?3";

/// First attempts among the retries that are planned next: the index has both, so only a bounded number is read.
const STRANDED_FIRST: &str = "/* orchestrator.stranded_first */
SELECT w.id, w.next_attempt_at
  FROM (SELECT g.id, g.next_attempt_at, g.status FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
         WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = ?1
           AND g.next_attempt_at > ?2 AND g.next_attempt_at <= ?3
         ORDER BY g.next_attempt_at, g.id LIMIT ?4) AS w
 WHERE w.status = 'Pending' LIMIT ?5";

/// What a step found. The jobs exist; the sagas are still to be moved.
pub(super) struct StrandedJobs {
    pub(super) sagas: Vec<(SagaId, Timestamp)>,
    pub(super) resume_after: Option<SubscriptionId>,
}

pub(super) fn create_jobs(
    tx: &Tx<'_>,
    after: Option<SubscriptionId>,
    beyond: FurthestAttempt,
) -> DbResult<StrandedJobs> {
    let (from, now) = (after.map_or(0, |after| after.0), tx.now.as_micros());
    let [first, retry] = [beyond.first, beyond.retry].map(|beyond| tx.now.after(beyond).as_micros());
    let hops = rows::all(tx, STRANDED, (from, SUBSCRIPTIONS, first.min(retry)), |row| {
        Ok((SubscriptionId(row.get(0)?), row.get::<_, bool>(1)?))
    })?;
    let resume_after = hops.last().filter(|_| hops.len() == SUBSCRIPTIONS as usize).map(|(id, _)| *id);
    let mut sagas = Vec::new();
    for (subscription, _) in hops.into_iter().filter(|(_, is_stranded)| *is_stranded) {
        let saga = |row: &Row<'_>| Ok((SagaId(row.get(0)?), rows::time(row, 1)?));
        let mut found = rows::all(tx, STRANDED_SAGAS, (subscription.0, retry, SAGAS), saga)?;
        let window = (subscription.0, first, retry, LOOKED_AT, SAGAS);
        found.extend(rows::all(tx, STRANDED_FIRST, window, saga)?);
        let rows: Vec<_> = found
            .iter()
            .map(|(saga, attempt_at): &(SagaId, Timestamp)| [saga.0, attempt_at.as_micros(), subscription.0])
            .collect();
        INSERT_JOBS.run(tx, now, &rows)?;
        sagas.extend(found);
    }
    Ok(StrandedJobs { sagas, resume_after })
}
