//! Finds due sagas, subscription by subscription, and creates their jobs.

use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::{JobId, SagaId, SubscriptionId};
use hooksaga_store::{Admission, Scheduled, ScheduledSaga};
use std::collections::HashMap;

/// The deliverable subscriptions with due work: one index probe per subscription that has any waiting
/// saga, however many it has. INDEXED BY: only this index finds the smallest subscription without reading every waiting
/// saga.
const DUE_SUBSCRIPTIONS: &str = "/* saga_orchestrator: due_subscriptions */
WITH RECURSIVE waiting (subscription_id) AS (
    SELECT min(subscription_id) FROM webhook_delivery_sagas INDEXED BY idx_saga_waiting
     WHERE status IN ('Pending', 'PendingRetry')
    UNION ALL
    SELECT (SELECT min(g.subscription_id) FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
             WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id > waiting.subscription_id)
      FROM waiting WHERE waiting.subscription_id IS NOT NULL
)
SELECT s.id FROM waiting CROSS JOIN subscriptions AS s ON s.id = waiting.subscription_id
 WHERE +s.active AND s.verified
   AND EXISTS (SELECT 1 FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
                WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = s.id
                  AND g.next_attempt_at <= ?1)";

/// INDEXED BY: the partial index over just the rows that are counted.
const OPEN_JOBS: &str = "/* saga_orchestrator: open_jobs */
SELECT subscription_id, count(*) FROM (
    SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_pending WHERE status = 'Pending'
    UNION ALL
    SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_leased WHERE status = 'Leased'
    UNION ALL
    SELECT j.subscription_id FROM finished_jobs AS q CROSS JOIN webhook_delivery_jobs AS j ON j.id = q.job_id
) GROUP BY subscription_id";

/// INDEXED BY: see above; this way they come in order, and no more are read than asked for.
const DUE_SAGAS: &str = "/* saga_orchestrator: due_sagas */
SELECT g.id, g.next_attempt_at, e.correlation_id
  FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
 CROSS JOIN events AS e ON e.id = g.event_id
 WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = ?1 AND g.next_attempt_at <= ?2
   AND (g.status = 'Pending' OR g.attempt_count < g.max_retry_limit)
 ORDER BY g.next_attempt_at LIMIT ?3 OFFSET ?4";

/// No conflict target: there are two unique keys, (saga, attempt) and one active job per saga.
const INSERT_JOB: &str = "/* saga_orchestrator: insert_job */
INSERT INTO webhook_delivery_jobs
    (saga_id, subscription_id, attempt_at, status, lease_until, created_at, updated_at)
VALUES (?1, ?2, ?3, 'Pending', ?3, ?4, ?4)
ON CONFLICT DO NOTHING";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[DUE_SUBSCRIPTIONS, DUE_SAGAS, INSERT_JOB];
#[cfg(feature = "test-support")]
pub(crate) const HOT_OPEN_JOBS: &[&str] = &[OPEN_JOBS];

/// One pass.
pub(super) struct Pass {
    pub(super) scheduled: Scheduled,
    /// The subscription that was served last.
    pub(super) stopped_at: SubscriptionId,
}

/// A subscription with due work.
struct Waiting {
    id: SubscriptionId,
    room: u32,
    taken: u32,
}

/// The pass's limit is shared in rounds: each subscription may take an equal share of what is left, and
/// what some do not need is shared again. So none can take the whole pass while others wait.
pub(super) fn schedule(tx: &Tx<'_>, admission: &Admission, behind: SubscriptionId) -> DbResult<Pass> {
    let mut waiting = rows::all(tx, DUE_SUBSCRIPTIONS, [tx.now.as_micros()], |row| {
        let id = SubscriptionId(row.get(0)?);
        let room = admission.room.get(&id).copied().unwrap_or(admission.default_room);
        Ok(Waiting { id, room, taken: 0 })
    })?;
    let first = waiting.partition_point(|subscription| subscription.id <= behind);
    waiting.rotate_left(first);

    let mut sagas = Vec::new();
    let mut left = admission.limit;
    let mut stopped_at = behind;
    while left > 0 && !waiting.is_empty() {
        let share = (left / u32::try_from(waiting.len()).unwrap_or(u32::MAX)).max(1);
        let mut hungry = Vec::new();
        for mut subscription in waiting {
            if left == 0 {
                break;
            }
            stopped_at = subscription.id;
            let wanted = share.min(left).min(subscription.room - subscription.taken);
            let got = create_jobs(tx, &subscription, wanted, &mut sagas)?;
            left -= got;
            subscription.taken += got;
            if got == wanted && subscription.taken < subscription.room {
                hungry.push(subscription);
            }
        }
        waiting = hungry;
    }
    Ok(Pass { scheduled: Scheduled { now: tx.now, sagas }, stopped_at })
}

/// How many jobs of each subscription are open.
pub(super) fn open_jobs(tx: &Tx<'_>) -> DbResult<HashMap<SubscriptionId, u32>> {
    let jobs = rows::all(tx, OPEN_JOBS, [], |row| Ok((SubscriptionId(row.get(0)?), row.get(1)?)))?;
    Ok(jobs.into_iter().collect())
}

/// Jobs for the next `wanted` due sagas of a subscription; how many sagas there were.
fn create_jobs(
    tx: &Tx<'_>,
    subscription: &Waiting,
    wanted: u32,
    sagas: &mut Vec<ScheduledSaga>,
) -> DbResult<u32> {
    if wanted == 0 {
        return Ok(0);
    }
    let begin = sagas.len();
    // Creating jobs changes no saga: those of earlier rounds are the first `taken` still.
    let mut due = tx.prepare(DUE_SAGAS)?;
    let found =
        due.query_map((subscription.id.0, tx.now.as_micros(), wanted, subscription.taken), |row| {
            Ok(ScheduledSaga {
                saga_id: SagaId(row.get(0)?),
                subscription_id: subscription.id,
                attempt_at: rows::time(row, 1)?,
                correlation_id: row.get(2)?,
                job_id: None,
            })
        })?;
    for saga in found {
        sagas.push(saga?);
    }
    let mut insert = tx.prepare(INSERT_JOB)?;
    for saga in &mut sagas[begin..] {
        let key = (saga.saga_id.0, saga.subscription_id.0, saga.attempt_at.as_micros(), tx.now.as_micros());
        if insert.execute(key)? > 0 {
            saga.job_id = Some(JobId(tx.last_id()));
        }
    }
    Ok(u32::try_from(sagas.len() - begin).unwrap_or(wanted))
}
