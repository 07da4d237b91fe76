//! Finds subscriptions with due sagas, and creates the jobs that they are allotted.

use crate::{
    error::DbResult,
    roles::{
        multi_row::{InsertMissing, Write, several},
        rate_limits::ADMISSION,
        rows,
    },
    session::Tx,
};
use hooksaga_saga::{JobId, RateLimit, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{
    Allotted, Limited, Scheduled, ScheduledSaga, WORKER_GONE_AFTER, WORKER_LEASES_END_AFTER, WaitingPage,
    WorkerLoad,
};
use rusqlite::{OptionalExtension, Row};
use std::time::Duration;

/// One index probe per subscription that has any waiting saga, however many it has: the first `?2` behind `?1`, and whether each
/// is deliverable and has a waiting saga that fits the condition. INDEXED BY: only this index finds the next subscription
/// without reading every waiting saga.
macro_rules! waiting_subscriptions {
    ($name:literal, $condition:literal) => {
        concat!(
            "/* orchestrator.",
            $name,
            " */
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
       coalesce((SELECT s.deliverable FROM subscriptions AS s WHERE s.id = hops.subscription_id), false)
       AND EXISTS (SELECT 1 FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
                    WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = hops.subscription_id
                      AND ",
            $condition,
            ")
  FROM hops
 WHERE hops.subscription_id IS NOT NULL
 ORDER BY hops.subscription_id"
        )
    };
}
pub(super) use waiting_subscriptions;

const WAITING: &str = waiting_subscriptions!(
    "waiting",
    "g.next_attempt_at <= ?3 AND (g.status = 'Pending' OR g.attempt_count < g.max_retry_limit)"
);

/// INDEXED BY: the partial index over just the rows that are counted. `?1` is the time that never comes.
const OPEN_JOBS: &str = "/* orchestrator.open_jobs */
SELECT subscription_id, count(*) FROM (
    SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_pending
     WHERE status = 'Pending' AND lease_until < ?1
    UNION ALL
    SELECT subscription_id FROM webhook_delivery_jobs INDEXED BY idx_job_leased WHERE status = 'Leased'
    UNION ALL
    SELECT j.subscription_id FROM finished_jobs AS q CROSS JOIN webhook_delivery_jobs AS j ON j.id = q.job_id
) GROUP BY subscription_id";

/// A heartbeat that lies ahead, because the clock was set back since, counts as one that lies as far back.
const WORKERS: &str = "/* orchestrator.workers */
SELECT count(*) FILTER (WHERE silence < ?2), coalesce(sum(slots) FILTER (WHERE silence < ?2), 0), max(silence)
  FROM (SELECT slots, abs(?1 - seen_at) AS silence FROM workers) WHERE silence < ?3";

const IS_DELIVERABLE: &str = "/* orchestrator.is_deliverable */
SELECT deliverable, iif(deleted_at IS NULL, rate_limit, NULL) FROM subscriptions WHERE id = ?1";

/// INDEXED BY: this way they come in order, and no more are read than asked for.
const DUE_SAGAS: &str = "/* orchestrator.due_sagas */
SELECT g.id, g.next_attempt_at, e.tenant, e.correlation_id
  FROM webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
 CROSS JOIN events AS e ON e.id = g.event_id
 WHERE g.status IN ('Pending', 'PendingRetry') AND g.subscription_id = ?1 AND g.next_attempt_at <= ?2
   AND (g.status = 'Pending' OR g.attempt_count < g.max_retry_limit)
 ORDER BY g.next_attempt_at, g.id LIMIT ?3";

/// No conflict target: there are two unique keys, (saga, attempt) and one active job per saga. `?1` is now: jobs are
/// claimed in the order in which they were admitted.
macro_rules! insert_jobs {
    ($name:literal, $rows:expr) => {
        concat!(
            "/* orchestrator.",
            $name,
            " */
INSERT OR FAIL INTO webhook_delivery_jobs
    (lease_until, created_at, updated_at, saga_id, attempt_at, subscription_id, status)
VALUES ",
            $rows,
            " ON CONFLICT DO NOTHING"
        )
    };
}
pub(super) const INSERT_JOBS: InsertMissing = InsertMissing {
    write: Write {
        several: insert_jobs!("insert_jobs", several!("(?1, ?1, ?1, ?, ?, ?, 'Pending')")),
        one: insert_jobs!("insert_job", "(?1, ?1, ?1, ?, ?, ?, 'Pending')"),
    },
    find: "/* orchestrator.find_job */
SELECT id FROM webhook_delivery_jobs WHERE saga_id = ?1 AND attempt_at = ?2",
};

#[cfg(feature = "test-support")]
pub(crate) const HOT_WAITING: &[&str] = &[WAITING];
#[cfg(feature = "test-support")]
pub(crate) const HOT_CREATE_JOBS: &[&str] =
    &[IS_DELIVERABLE, DUE_SAGAS, INSERT_JOBS.write.one, INSERT_JOBS.find, ADMISSION.read, ADMISSION.store];
#[cfg(feature = "test-support")]
pub(crate) const HOT_LOAD: &[&str] = &[OPEN_JOBS, crate::roles::endpoint::FAILING];

pub(super) fn waiting(tx: &Tx<'_>, after: Option<SubscriptionId>, limit: u32) -> DbResult<WaitingPage> {
    // A limit of 0 would never make progress.
    let limit = limit.max(1);
    let after = after.map_or(0, |after| after.0);
    let hops = rows::all(tx, WAITING, (after, limit, tx.now.as_micros()), |row| {
        Ok((SubscriptionId(row.get(0)?), row.get::<_, bool>(1)?))
    })?;
    let resume_after = hops.last().filter(|_| hops.len() == limit as usize).map(|(id, _)| *id);
    let subscriptions = hops.into_iter().filter_map(|(id, is_due)| is_due.then_some(id)).collect();
    Ok(WaitingPage { subscriptions, resume_after })
}

pub(super) fn load(tx: &Tx<'_>) -> DbResult<WorkerLoad> {
    let never = Timestamp::MAX.as_micros();
    let open = rows::all(tx, OPEN_JOBS, [never], |row| Ok((SubscriptionId(row.get(0)?), row.get(1)?)))?;
    let micros = |ago: Duration| i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
    let bounds = [tx.now.as_micros(), micros(WORKER_GONE_AFTER), micros(WORKER_LEASES_END_AFTER)];
    let (workers, slots, silence) = tx
        .prepare(WORKERS)?
        .query_row(bounds, |row| Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get::<_, Option<i64>>(2)?)))?;
    let slots = u32::try_from(slots).unwrap_or(u32::MAX);
    let silence = silence.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)));
    Ok(WorkerLoad { workers, slots, silence, open: open.into_iter().collect() })
}

/// The first of the two transactions: the jobs.
pub(super) fn create_jobs(tx: &Tx<'_>, allotted: &[Allotted]) -> DbResult<Scheduled> {
    let mut is_deliverable = tx.prepare(IS_DELIVERABLE)?;
    let mut due = tx.prepare(DUE_SAGAS)?;
    let now = tx.now.as_micros();
    let (mut sagas, mut limited) = (Vec::new(), Vec::new());
    for Allotted { subscription_id, jobs: wanted } in allotted.iter().copied().filter(|one| one.jobs > 0) {
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, Option<u32>>(1)?));
        let Some((true, limit)) = is_deliverable.query_row([subscription_id.0], read).optional()? else {
            continue;
        };
        let limit = limit.map(RateLimit::per_second);
        let bucket = limit.map(|_| ADMISSION.full_at(tx, subscription_id)).transpose()?.flatten();
        let jobs = limit.map_or(wanted, |limit| limit.pass(bucket, wanted, tx.now).passed);
        let first = sagas.len();
        let of_one = due.query_map((subscription_id.0, now, jobs), |row| {
            Ok(ScheduledSaga {
                saga_id: SagaId(row.get(0)?),
                subscription_id,
                attempt_at: rows::time(row, 1)?,
                trace: rows::trace(row, 2)?,
                job_id: None,
            })
        })?;
        for saga in of_one {
            sagas.push(saga?);
        }
        let rows: Vec<_> = sagas[first..]
            .iter()
            .map(|saga: &ScheduledSaga| [saga.saga_id.0, saga.attempt_at.as_micros(), subscription_id.0])
            .collect();
        for (saga, job) in sagas[first..].iter_mut().zip(INSERT_JOBS.run(tx, now, &rows)?) {
            saga.job_id = job.map(JobId);
        }
        let Some(limit) = limit else { continue };
        let new = sagas[first..].iter().filter(|saga| saga.job_id.is_some()).count();
        let new = u32::try_from(new).unwrap_or(u32::MAX);
        let stored = limit.to_store(bucket, new, tx.now);
        if let Some(full_at) = stored {
            ADMISSION.store(tx, subscription_id, full_at)?;
        }
        let full_at = stored.or(bucket);
        // What waits is more than was let through.
        if jobs < wanted && sagas.len() - first >= jobs as usize {
            let wait = limit.wait(full_at, limit.batch(), tx.now);
            limited.push(Limited { subscription_id, wait });
        }
    }
    Ok(Scheduled { now: tx.now, sagas, limited })
}
