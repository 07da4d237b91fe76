//! Jobs for due sagas, and the sagas' move to InProgress.
//!
//! Reads, and then one INSERT, which is the only write and so a transaction by itself. It is a plain one: what has its
//! job already was looked up before; a key that another orchestrator takes in between fails it as a whole, and the
//! next try sees that job.

use crate::{
    error::{DbError, DbResult},
    roles::{
        batch::{Batch, Field},
        rows::{expect_rows, rows, take},
    },
    time::Time,
};
use hooksaga_saga::{JobId, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{Admission, Scheduled, ScheduledSaga};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::collections::{HashMap, HashSet};

const CLOCK: &str = "/* orchestrator.clock */ SELECT UTC_TIMESTAMP(6)";

/// The waiting sagas' index from one subscription on, a stretch at a time: each subscription's first entry is its
/// earliest. A stretch sees many small backlogs at once, and a large one costs one stretch, since the next begins with
/// the next subscription.
pub(crate) const WAITING: &str = "/* orchestrator.waiting */
SELECT waiting_subscription_id, next_attempt_at FROM webhook_delivery_sagas FORCE INDEX (idx_saga_waiting)
WHERE waiting_subscription_id > ?
ORDER BY waiting_subscription_id, next_attempt_at LIMIT 64";
const STRETCH: usize = 64;

/// Which of the subscriptions can be delivered to.
pub(crate) const ADMISSIBLE: &str = "/* orchestrator.admissible */
SELECT s.id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = u.id
WHERE s.active AND s.verified";

/// One subscription's oldest due sagas.
pub(crate) const DUE: &str = "/* orchestrator.due */
SELECT s.id, s.next_attempt_at, e.correlation_id
FROM webhook_delivery_sagas s FORCE INDEX (idx_saga_waiting)
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id
WHERE s.waiting_subscription_id = ? AND s.next_attempt_at <= ?
  AND (s.status = 'Pending' OR s.attempt_count < s.max_retry_limit)
ORDER BY s.next_attempt_at LIMIT ? OFFSET ?";

/// The jobs that are in the way of a new one, by either key. (Two lookups by their keys; an OR would be a scan.)
pub(crate) const JOBS: &str = "/* orchestrator.jobs */
SELECT u.saga_id, j.id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    saga_id BIGINT PATH '$[0]', attempt_at DATETIME(6) PATH '$[2]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (uniq_job_saga_attempt)
    ON j.saga_id = u.saga_id AND j.attempt_at = u.attempt_at";
pub(crate) const ACTIVE_JOBS: &str = "/* orchestrator.active_jobs */
SELECT u.saga_id, j.id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (saga_id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (uniq_job_active) ON j.active_saga_id = u.saga_id";

pub(crate) const INSERT: &str = "/* orchestrator.schedule */
INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, lease_until, created_at, updated_at)
SELECT u.saga_id, u.subscription_id, u.attempt_at, u.attempt_at, u.now, u.now
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    saga_id BIGINT PATH '$[0]', subscription_id BIGINT PATH '$[1]', attempt_at DATETIME(6) PATH '$[2]',
    now DATETIME(6) PATH '$[3]')) AS u";

/// Driven by the given ids in their order. Both guards are needed: without the status a late pass reopens a finished
/// saga, without next_attempt_at it moves one that has no job.
pub(crate) const MARK_IN_PROGRESS: &str = "/* orchestrator.mark_in_progress */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', attempt_at DATETIME(6) PATH '$[1]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = u.id
SET s.status = 'InProgress', s.updated_at = UTC_TIMESTAMP(6)
WHERE s.next_attempt_at = u.attempt_at AND s.status IN ('Pending', 'PendingRetry')";

/// Along the indexes of open jobs and the queue of results.
pub(crate) const OPEN_JOBS: &str = "/* orchestrator.open_jobs */
SELECT open.subscription_id, COUNT(*) FROM (
    SELECT subscription_id FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
    WHERE pending_until >= '1000-01-01 00:00:00'
    UNION ALL
    SELECT subscription_id FROM webhook_delivery_jobs FORCE INDEX (idx_job_leased)
    WHERE leased_until >= '1000-01-01 00:00:00'
    UNION ALL
    SELECT j.subscription_id FROM finished_jobs
    STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = finished_jobs.job_id
) open GROUP BY open.subscription_id";

pub(super) async fn schedule(mut connection: Conn, admission: &Admission) -> DbResult<Scheduled> {
    let now: Option<Time> = connection.query_first(CLOCK).await?;
    let now = now.ok_or_else(|| DbError::unreadable("no clock"))?.0;
    let waiting = waiting(&mut connection, now).await?;
    if waiting.is_empty() || admission.limit == 0 {
        return Ok(Scheduled { now, sagas: Vec::new() });
    }
    let admitted = admitted(&mut connection, &waiting, admission).await?;
    let mut sagas = due(&mut connection, &admitted, now, admission.limit).await?;
    insert(&mut connection, &mut sagas, now).await?;
    Ok(Scheduled { now, sagas })
}

/// The subscriptions with due sagas, the longest due first.
async fn waiting(connection: &mut Conn, now: Timestamp) -> DbResult<Vec<i64>> {
    let mut earliest: Vec<(Timestamp, i64)> = Vec::new();
    let mut after = 0_i64;
    loop {
        let stretch: Vec<(i64, Time)> = connection.exec(WAITING, (after,)).await?;
        let more = stretch.len() == STRETCH;
        for (subscription, at) in stretch {
            if subscription > after {
                after = subscription;
                if at.0 <= now {
                    earliest.push((at.0, subscription));
                }
            }
        }
        if !more {
            break;
        }
    }
    earliest.sort_unstable();
    Ok(earliest.into_iter().map(|(_, subscription)| subscription).collect())
}

/// A subscription with room for so many more jobs.
#[derive(Clone, Copy)]
struct Admitted {
    subscription: i64,
    room: usize,
}

async fn admitted(connection: &mut Conn, waiting: &[i64], admission: &Admission) -> DbResult<Vec<Admitted>> {
    let mut admitted = Vec::new();
    for document in Batch::of(waiting, |id| [Field::Int(*id)]) {
        let read: Vec<i64> = connection.exec(ADMISSIBLE, (document,)).await?;
        for subscription in read {
            let room = admission.room.get(&SubscriptionId(subscription));
            let room = usize::try_from(*room.unwrap_or(&admission.default_room)).unwrap_or(usize::MAX);
            if room > 0 {
                admitted.push(Admitted { subscription, room });
            }
        }
    }
    Ok(admitted)
}

/// Turn by turn, so that a large backlog does not crowd out a small one. Each subscription is read up to its fair share
/// first; only if that does not fill the pass, the rest is read of those that have more. Where there are more
/// subscriptions than places, the longest due come first.
async fn due(
    connection: &mut Conn,
    admitted: &[Admitted],
    now: Timestamp,
    limit: u32,
) -> DbResult<Vec<ScheduledSaga>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let visited = &admitted[..admitted.len().min(limit)];
    let share = limit.div_ceil(visited.len().max(1));
    let mut found: Vec<(usize, ScheduledSaga)> = Vec::new();
    let mut cut_off = Vec::new();
    for &place in visited {
        let wanted = place.room.min(share);
        let read = oldest(connection, place, now, wanted, 0).await?;
        if read.len() == share && place.room > share {
            cut_off.push(place);
        }
        found.extend(read);
    }
    for place in cut_off {
        let left = limit.saturating_sub(found.len());
        if left == 0 {
            break;
        }
        found.extend(oldest(connection, place, now, left.min(place.room - share), share).await?);
    }
    found.sort_by_key(|(turn, saga)| (*turn, saga.attempt_at));
    found.truncate(limit);
    Ok(found.into_iter().map(|(_, saga)| saga).collect())
}

/// Up to `wanted` of a subscription's due sagas after its `skipped` oldest, each with its turn.
async fn oldest(
    connection: &mut Conn,
    place: Admitted,
    now: Timestamp,
    wanted: usize,
    skipped: usize,
) -> DbResult<Vec<(usize, ScheduledSaga)>> {
    let parameters = (place.subscription, Time(now), rows(wanted), rows(skipped));
    let read: Vec<Row> = connection.exec(DUE, parameters).await?;
    let saga = |(number, mut row): (usize, Row)| {
        let saga = ScheduledSaga {
            saga_id: SagaId(take(&mut row, 0)?),
            subscription_id: SubscriptionId(place.subscription),
            attempt_at: take::<Time>(&mut row, 1)?.0,
            correlation_id: take(&mut row, 2)?,
            job_id: None,
        };
        Ok((skipped + number, saga))
    };
    read.into_iter().enumerate().map(saga).collect()
}

/// Inserts the jobs that are not there, and notes their ids.
async fn insert(connection: &mut Conn, sagas: &mut [ScheduledSaga], now: Timestamp) -> DbResult<()> {
    let documents = |sagas: &[&ScheduledSaga]| {
        let mut sorted = sagas.to_vec();
        sorted.sort_unstable_by_key(|saga| saga.saga_id);
        Batch::of(sorted, |saga| {
            [
                Field::Int(saga.saga_id.0),
                Field::Int(saga.subscription_id.0),
                Field::At(saga.attempt_at),
                Field::At(now),
            ]
        })
    };
    let all: Vec<&ScheduledSaga> = sagas.iter().collect();
    let mut taken: HashSet<i64> = HashSet::new();
    for document in documents(&all) {
        for sql in [JOBS, ACTIVE_JOBS] {
            let found: Vec<(i64, i64)> = connection.exec(sql, (document.as_str(),)).await?;
            taken.extend(found.into_iter().map(|(saga, _)| saga));
        }
    }
    let new: Vec<&ScheduledSaga> = all.into_iter().filter(|saga| !taken.contains(&saga.saga_id.0)).collect();
    let mut jobs: HashMap<i64, i64> = HashMap::with_capacity(new.len());
    for document in documents(&new) {
        connection.exec_drop(INSERT, (document.as_str(),)).await?;
        let inserted = connection.affected_rows();
        let made: Vec<(i64, i64)> = connection.exec(JOBS, (document,)).await?;
        expect_rows("scheduling", rows(made.len()), inserted)?;
        jobs.extend(made);
    }
    for saga in sagas {
        saga.job_id = jobs.get(&saga.saga_id.0).copied().map(JobId);
    }
    Ok(())
}

pub(super) async fn open_jobs(mut connection: Conn) -> DbResult<HashMap<SubscriptionId, u32>> {
    let read: Vec<(i64, u32)> = connection.exec(OPEN_JOBS, ()).await?;
    Ok(read.into_iter().map(|(subscription, jobs)| (SubscriptionId(subscription), jobs)).collect())
}

pub(super) async fn mark_in_progress(mut connection: Conn, sagas: &[(SagaId, Timestamp)]) -> DbResult<u64> {
    let mut sorted = sagas.to_vec();
    sorted.sort_unstable();
    let mut moved = 0;
    for document in Batch::of(sorted, |(id, at)| [Field::Int(id.0), Field::At(at)]) {
        connection.exec_drop(MARK_IN_PROGRESS, (document,)).await?;
        moved += connection.affected_rows();
    }
    Ok(moved)
}
