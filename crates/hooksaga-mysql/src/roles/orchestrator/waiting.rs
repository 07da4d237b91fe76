//! Which subscriptions wait, and the load of the workers.

use crate::{
    error::{DbError, DbResult},
    roles::batch::Batch,
    time::{SqlTime, micros},
};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{WORKER_GONE_AFTER, WORKER_LEASES_END_AFTER, WaitingPage, WorkerLoad};
use mysql_async::{Conn, prelude::Queryable as _};
use std::collections::HashSet;
use std::time::Duration;

/// Scans the index of waiting sagas from one subscription on, some entries at a time: each subscription's first entry is its
/// earliest. One scan covers many small backlogs, and a large backlog costs one scan, since the next begins with the next
/// subscription. (One statement for all hops would be a recursive one, whose inner lookup MariaDB turns into a scan of the
/// index.)
pub(crate) const WAITING: &str = "/* orchestrator.waiting */
SELECT waiting_subscription_id, next_attempt_at, UTC_TIMESTAMP(6)
FROM webhook_delivery_sagas FORCE INDEX (idx_saga_waiting)
WHERE waiting_subscription_id > ?
ORDER BY waiting_subscription_id, next_attempt_at LIMIT 64";
const STRETCH: usize = 64;

/// Which of the subscriptions can be delivered to and have a saga that may get a job. (An EXISTS would be turned into a
/// scan of all that wait; a subquery with a LIMIT cannot.)
pub(crate) const ADMISSIBLE: &str = "/* orchestrator.admissible */
SELECT s.id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = u.id
WHERE s.deliverable AND (
    SELECT 1 FROM webhook_delivery_sagas w FORCE INDEX (idx_saga_waiting)
    WHERE w.waiting_subscription_id = u.id AND w.next_attempt_at <= UTC_TIMESTAMP(6)
      AND (w.status = 'Pending' OR w.attempt_count < w.max_retry_limit) LIMIT 1) = 1";

/// Reads the indexes of open jobs and the queue of results. Parked jobs have the latest time, and are left out.
pub(crate) const OPEN_JOBS: &str = "/* orchestrator.open_jobs */
SELECT open.subscription_id, COUNT(*) FROM (
    SELECT subscription_id FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
    WHERE pending_until >= '1000-01-01 00:00:00' AND pending_until < '9999-12-31 23:59:59.999999'
    UNION ALL
    SELECT subscription_id FROM webhook_delivery_jobs FORCE INDEX (idx_job_leased)
    WHERE leased_until >= '1000-01-01 00:00:00'
    UNION ALL
    SELECT j.subscription_id FROM finished_jobs
    STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = finished_jobs.job_id
) open GROUP BY open.subscription_id";

/// A heartbeat that lies ahead, because the clock was set back since, counts as one that lies as far back.
const WORKERS: &str = "/* orchestrator.workers */
SELECT CAST(COALESCE(SUM(silence <= ?), 0) AS UNSIGNED), CAST(COALESCE(SUM(IF(silence <= ?, slots, 0)), 0) AS UNSIGNED),
       MAX(silence)
FROM (SELECT slots, ABS(TIMESTAMPDIFF(MICROSECOND, seen_at, UTC_TIMESTAMP(6))) AS silence FROM workers) w
WHERE silence <= ?";

pub(super) async fn waiting(
    mut connection: Conn,
    after: Option<SubscriptionId>,
    limit: u32,
) -> DbResult<WaitingPage> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut last = after.map_or(0, |id| id.0);
    let (mut visited, mut due) = (0, Vec::new());
    let mut more = limit > 0;
    while more {
        let stretch: Vec<(i64, SqlTime, SqlTime)> = connection.exec(WAITING, (last,)).await?;
        more = stretch.len() == STRETCH;
        for (subscription, at, now) in stretch {
            if subscription == last {
                continue;
            }
            if visited == limit {
                // One more than may be visited is known to wait.
                return page(&mut connection, due, Some(SubscriptionId(last))).await;
            }
            visited += 1;
            last = subscription;
            if at.0 <= now.0 {
                due.push(subscription);
            }
        }
        if visited == limit {
            return page(&mut connection, due, Some(SubscriptionId(last))).await;
        }
    }
    page(&mut connection, due, None).await
}

async fn page(
    connection: &mut Conn,
    due: Vec<i64>,
    resume_after: Option<SubscriptionId>,
) -> DbResult<WaitingPage> {
    let mut admissible: HashSet<i64> = HashSet::with_capacity(due.len());
    for document in Batch::ids(due.iter().copied()) {
        admissible.extend(connection.exec::<i64, _, _>(ADMISSIBLE, (document,)).await?);
    }
    let subscriptions = due.into_iter().filter(|id| admissible.contains(id)).map(SubscriptionId).collect();
    Ok(WaitingPage { subscriptions, resume_after })
}

pub(super) async fn load(mut connection: Conn) -> DbResult<WorkerLoad> {
    let open: Vec<(i64, u32)> = connection.exec(OPEN_JOBS, ()).await?;
    let (gone, over) = (micros(WORKER_GONE_AFTER), micros(WORKER_LEASES_END_AFTER));
    let workers: Option<(u32, u64, Option<i64>)> = connection.exec_first(WORKERS, (gone, gone, over)).await?;
    let (workers, slots, silence) = workers.ok_or_else(|| DbError::unreadable("no count of workers"))?;
    Ok(WorkerLoad {
        workers,
        slots: u32::try_from(slots).unwrap_or(u32::MAX),
        silence: silence.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))),
        open: open.into_iter().map(|(subscription, jobs)| (SubscriptionId(subscription), jobs)).collect(),
    })
}
