//! Sagas whose next attempt is further ahead than any can be, because the clock was ahead. They count as due.

use super::schedule::{JobCheck, clock, insert, mark_in_progress};
use crate::{error::DbResult, time::SqlTime};
use hooksaga_saga::{FurthestAttempt, SagaId, SubscriptionId};
use hooksaga_store::{ScheduledSaga, StrandedStep, Trace};
use mysql_async::{Conn, prelude::Queryable as _};

/// Sagas per step. Those of paused subscriptions, which stay where they are, do not count.
const SAGAS: u32 = 1000;

/// The far end of each status's part of the index, where nothing is as a rule.
pub(crate) const STRANDED: &str = "/* orchestrator.stranded */
(SELECT s.id, s.subscription_id, s.next_attempt_at
 FROM webhook_delivery_sagas s FORCE INDEX (idx_saga_status_retry)
 STRAIGHT_JOIN subscriptions sub FORCE INDEX (PRIMARY) ON sub.id = s.subscription_id
 WHERE s.status = 'Pending' AND s.next_attempt_at > ? AND sub.deliverable LIMIT ?)
UNION ALL
(SELECT s.id, s.subscription_id, s.next_attempt_at
 FROM webhook_delivery_sagas s FORCE INDEX (idx_saga_status_retry)
 STRAIGHT_JOIN subscriptions sub FORCE INDEX (PRIMARY) ON sub.id = s.subscription_id
 WHERE s.status = 'PendingRetry' AND s.next_attempt_at > ? AND s.attempt_count < s.max_retry_limit
   AND sub.deliverable LIMIT ?)";

pub(super) async fn schedule_stranded(
    mut connection: Conn,
    beyond: FurthestAttempt,
) -> DbResult<StrandedStep> {
    let now = clock(&mut connection).await?;
    let (first, retry) = (SqlTime(now.after(beyond.first)), SqlTime(now.after(beyond.retry)));
    let found: Vec<(i64, i64, SqlTime)> = connection.exec(STRANDED, (first, SAGAS, retry, SAGAS)).await?;
    let mut sagas: Vec<ScheduledSaga> = found
        .into_iter()
        .map(|(saga, subscription, at)| ScheduledSaga {
            saga_id: SagaId(saga),
            subscription_id: SubscriptionId(subscription),
            attempt_at: at.0,
            trace: Trace::default(),
            job_id: None,
        })
        .collect();
    if !sagas.is_empty() {
        insert(&mut connection, &mut sagas, now, JobCheck::First).await?;
        mark_in_progress(&mut connection, &sagas).await?;
    }
    Ok(StrandedStep { sagas: sagas.len() as u64, resume_after: None })
}
