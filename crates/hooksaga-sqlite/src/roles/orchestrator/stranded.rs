//! Sagas that lie further ahead than they could: a clock that was ahead has put them there. They count as due.

use super::schedule::INSERT_JOBS;
use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::{SagaId, SubscriptionId, Timestamp};
use std::time::Duration;

/// Subscriptions per step, and sagas of each.
const SUBSCRIPTIONS: u32 = 100;
const SAGAS: u32 = 10;

/// One index probe per subscription that has any waiting saga, as `waiting` does, and one at the end of its part.
const STRANDED: &str = "/* saga_orchestrator: stranded */
WITH RECURSIVE hops (subscription_id, hop) AS (
    SELECT min(g.subscription_id), 1 FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
     WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id > ?1
    UNION ALL
    SELECT (SELECT min(g.subscription_id) FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
             WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id > hops.subscription_id),
           hops.hop + 1
      FROM hops WHERE hops.subscription_id IS NOT NULL AND hops.hop < ?2
)
SELECT hops.subscription_id,
       coalesce((SELECT s.active AND s.verified FROM subscriptions AS s WHERE s.id = hops.subscription_id), false)
       AND EXISTS (SELECT 1 FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
                    WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = hops.subscription_id
                      AND g.next_attempt_at > ?3)
  FROM hops
 WHERE hops.subscription_id IS NOT NULL
 ORDER BY hops.subscription_id";

const STRANDED_SAGAS: &str = "/* saga_orchestrator: stranded_sagas */
SELECT g.id, g.next_attempt_at FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
 WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = ?1 AND g.next_attempt_at > ?2
   AND (g.status = 'Pending' OR g.attempt_count < g.max_retry_limit)
 ORDER BY g.next_attempt_at, g.id LIMIT ?3";

/// What a step found. The jobs exist; the sagas are still to be moved.
pub(super) struct StrandedStep {
    pub(super) sagas: Vec<(SagaId, Timestamp)>,
    pub(super) resume_after: Option<SubscriptionId>,
}

pub(super) fn create_jobs(
    tx: &Tx<'_>,
    after: Option<SubscriptionId>,
    beyond: Duration,
) -> DbResult<StrandedStep> {
    let (from, now, bound) =
        (after.map_or(0, |after| after.0), tx.now.as_micros(), tx.now.after(beyond).as_micros());
    let hops = rows::all(tx, STRANDED, (from, SUBSCRIPTIONS, bound), |row| {
        Ok((SubscriptionId(row.get(0)?), row.get::<_, bool>(1)?))
    })?;
    let resume_after = hops.last().filter(|_| hops.len() == SUBSCRIPTIONS as usize).map(|(id, _)| *id);
    let mut sagas = Vec::new();
    for (subscription, _) in hops.into_iter().filter(|(_, is_stranded)| *is_stranded) {
        let found = rows::all(tx, STRANDED_SAGAS, (subscription.0, bound, SAGAS), |row| {
            Ok((SagaId(row.get(0)?), rows::time(row, 1)?))
        })?;
        let rows: Vec<_> = found
            .iter()
            .map(|(saga, attempt_at): &(SagaId, Timestamp)| [saga.0, attempt_at.as_micros(), subscription.0])
            .collect();
        INSERT_JOBS.run(tx, now, &rows)?;
        sagas.extend(found);
    }
    Ok(StrandedStep { sagas, resume_after })
}
