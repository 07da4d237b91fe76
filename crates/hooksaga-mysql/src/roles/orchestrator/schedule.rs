//! Jobs for due sagas, and the sagas' move to InProgress.
//!
//! One read, and then one INSERT, which is the only write and so a transaction by itself. It is a plain INSERT: a saga that
//! has its job already, which hardly ever happens, fails it as a whole, and the next try looks such jobs up first. Jobs
//! with a rate limit are inserted in one transaction with the limit's bucket ([`limited`]). The move follows on the same
//! connection: a server that lost the jobs in a crash has closed it.
//!
//! The job of a retry may have to wait for somebody. The saga's former job has left an entry in `uniq_job_active`, and where
//! the server meets that it locks the next entry, too, to see whether it is the same key. That one may be of a job whose
//! result somebody is writing, or has been for long, because that process is frozen. A first attempt has no such entry, and
//! waits for nobody. So when an insert has waited for too long, retries are left out for a while ([`RetryPause`]).

use super::limited;
use crate::{
    error::{DbError, DbResult, RetryAdvice},
    roles::{
        batch::{Batch, Field},
        rows::{expect_rows, natural, rows, take, trace},
    },
    time::SqlTime,
};
use hooksaga_saga::{JobId, RateLimit, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{Allotted, JobsCreated, Move, Scheduled, ScheduledSaga};
use mysql_async::{Conn, Row, prelude::Queryable};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

pub(super) const CLOCK: &str = "/* orchestrator.clock */ SELECT UTC_TIMESTAMP(6)";

/// One subscription's oldest due sagas, if it can be delivered to. MariaDB has no LATERAL: the subscriptions of a pass are
/// branches of a UNION, [`BRANCHES`] in one statement, with their numbers in the text.
fn due_branch(allotted: &Allotted, retries: Retries) -> String {
    let retried = match retries {
        Retries::Due => "(s.status = 'Pending' OR s.attempt_count < s.max_retry_limit)",
        Retries::Paused => "s.status = 'Pending'",
    };
    format!(
        "(SELECT s.id, s.subscription_id, s.next_attempt_at, e.tenant, e.correlation_id,
       CASE WHEN sub.deleted_at IS NULL THEN sub.rate_limit END, s.attempt_count > 0
FROM subscriptions sub FORCE INDEX (PRIMARY)
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (idx_saga_waiting)
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id
WHERE sub.id = {id} AND sub.deliverable
  AND s.waiting_subscription_id = {id} AND s.next_attempt_at <= UTC_TIMESTAMP(6)
  AND {retried}
ORDER BY s.next_attempt_at, s.id LIMIT {jobs})",
        id = allotted.subscription_id.0,
        jobs = allotted.jobs
    )
}
const BRANCHES: usize = 50;

/// With the clock, in a row without a saga.
pub(crate) fn due_statement(allotted: &[Allotted], retries: Retries) -> String {
    let branches: Vec<String> = allotted.iter().map(|allotted| due_branch(allotted, retries)).collect();
    format!(
        "/* orchestrator.due */ (SELECT NULL, NULL, UTC_TIMESTAMP(6), NULL, NULL, NULL, NULL) UNION ALL {}",
        branches.join(" UNION ALL ")
    )
}

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

/// A new job may be claimed from its admission on, and jobs are claimed in that order: `lease_until` is now.
/// MariaDB tells what it made.
pub(crate) const INSERT: &str = "/* orchestrator.schedule */
INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, lease_until, created_at, updated_at)
SELECT u.saga_id, u.subscription_id, u.attempt_at, u.now, u.now, u.now
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    saga_id BIGINT PATH '$[0]', subscription_id BIGINT PATH '$[1]', attempt_at DATETIME(6) PATH '$[2]',
    now DATETIME(6) PATH '$[3]')) AS u /*M!100500 RETURNING saga_id, id */";

/// Driven by the given ids in their order. Both guards are needed: without the status a late pass reopens a finished
/// saga, without next_attempt_at it moves one that has no job.
pub(crate) const MARK_IN_PROGRESS: &str = "/* orchestrator.mark_in_progress */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', attempt_at DATETIME(6) PATH '$[1]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = u.id
SET s.status = 'InProgress', s.updated_at = UTC_TIMESTAMP(6)
WHERE s.next_attempt_at = u.attempt_at AND s.status IN ('Pending', 'PendingRetry')";
/// How often the move is tried in all, where it lost against others.
const TRIES: u32 = 5;

/// Whether a pass looks for retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retries {
    Due,
    Paused,
}

/// After jobs had to wait for somebody for too long, those of retries are left out for a while.
#[derive(Debug, Default)]
pub(super) struct RetryPause(Mutex<Option<Instant>>);

impl RetryPause {
    const LASTS: Duration = Duration::from_secs(2);

    fn retries(&self, now: Instant) -> Retries {
        // Nothing panics while it is held.
        let began = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *began {
            Some(began) if now.saturating_duration_since(began) < Self::LASTS => Retries::Paused,
            _ => Retries::Due,
        }
    }

    fn begin(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }
}

pub(super) async fn create_jobs(
    mut connection: Conn,
    allotted: &[Allotted],
    created: JobsCreated<'_>,
    check: JobCheck,
    pause: &RetryPause,
) -> DbResult<Scheduled> {
    let Due { now, mut sagas, limits, retries } =
        due(&mut connection, allotted, pause.retries(Instant::now())).await?;
    let mut limited = Vec::new();
    let mut held_to_limits: Vec<_> =
        sagas.extract_if(.., |saga| limits.contains_key(&saga.subscription_id)).collect();
    if !sagas.is_empty() {
        match insert(&mut connection, &mut sagas, now, check).await {
            Err(error) if error.is_locked_out() && !retries.is_empty() => {
                pause.begin(Instant::now());
                // A scan of all that waits finds the others.
                sagas.retain(|saga| !retries.contains(&saga.saga_id));
                insert(&mut connection, &mut sagas, now, check).await?;
            }
            done => done?,
        }
    }
    if !held_to_limits.is_empty() {
        let admitted = limited::admit(&mut connection, &limits, allotted, &mut held_to_limits).await;
        if admitted.as_ref().is_err_and(DbError::is_locked_out) {
            pause.begin(Instant::now());
        }
        limited = admitted?;
        sagas.extend(held_to_limits);
    }
    if !sagas.is_empty() && created() != Move::Never {
        mark_in_progress(&mut connection, &sagas).await?;
    }
    Ok(Scheduled { now, sagas, limited })
}

/// When an insert checks for jobs that exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobCheck {
    First,
    /// Only after an insert has failed at one.
    AfterConflict,
}

/// The oldest due sagas of each subscription, no more than allotted.
struct Due {
    now: Timestamp,
    sagas: Vec<ScheduledSaga>,
    /// The rate limits of those that have one.
    limits: BTreeMap<SubscriptionId, RateLimit>,
    /// Those that have had an attempt.
    retries: HashSet<SagaId>,
}

async fn due(connection: &mut Conn, allotted: &[Allotted], wanted: Retries) -> DbResult<Due> {
    let allotted: Vec<Allotted> = allotted.iter().copied().filter(|allotted| allotted.jobs > 0).collect();
    let (mut sagas, mut limits, mut now) = (Vec::new(), BTreeMap::new(), None);
    let mut retries = HashSet::new();
    for some in allotted.chunks(BRANCHES) {
        let read: Vec<Row> = connection.query(due_statement(some, wanted)).await?;
        for mut row in read {
            let attempt_at = take::<SqlTime>(&mut row, 2)?.0;
            let Some(saga_id) = take::<Option<i64>>(&mut row, 0)? else {
                now.get_or_insert(attempt_at);
                continue;
            };
            let subscription_id = SubscriptionId(take(&mut row, 1)?);
            if let Some(rate) = take::<Option<i64>>(&mut row, 5)? {
                limits.insert(subscription_id, RateLimit::per_second(natural(rate)));
            }
            let saga_id = SagaId(saga_id);
            if take(&mut row, 6)? {
                retries.insert(saga_id);
            }
            sagas.push(ScheduledSaga {
                saga_id,
                subscription_id,
                attempt_at,
                trace: trace(&mut row, 3)?,
                job_id: None,
            });
        }
    }
    let now = match now {
        Some(now) => now,
        None => clock(connection).await?,
    };
    // One order for all: that of the jobs' ids, in which jobs of one admission are claimed.
    sagas.sort_unstable_by_key(|saga| (saga.attempt_at, saga.saga_id));
    Ok(Due { now, sagas, limits, retries })
}

pub(super) async fn clock(connection: &mut Conn) -> DbResult<Timestamp> {
    let now: Option<SqlTime> = connection.query_first(CLOCK).await?;
    Ok(now.ok_or_else(|| DbError::unreadable("no clock"))?.0)
}

/// Inserts the jobs that are not there, and notes their ids.
pub(super) async fn insert<C: Queryable>(
    connection: &mut C,
    sagas: &mut [ScheduledSaga],
    now: Timestamp,
    check: JobCheck,
) -> DbResult<()> {
    let documents = |sagas: &[&ScheduledSaga]| {
        Batch::of(sagas.iter().copied(), |saga| {
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
    if check == JobCheck::First {
        for document in documents(&all) {
            for sql in [JOBS, ACTIVE_JOBS] {
                let found: Vec<(i64, i64)> = connection.exec(sql, (document.as_str(),)).await?;
                taken.extend(found.into_iter().map(|(saga, _)| saga));
            }
        }
    }
    let new: Vec<&ScheduledSaga> = all.into_iter().filter(|saga| !taken.contains(&saga.saga_id.0)).collect();
    let mut jobs: HashMap<i64, i64> = HashMap::with_capacity(new.len());
    for document in documents(&new) {
        let mut written = connection.exec_iter(INSERT, (document.as_str(),)).await?;
        let first = written.last_insert_id().and_then(|id| i64::try_from(id).ok());
        let told: Vec<(i64, i64)> = written.collect().await?;
        written.drop_result().await?;
        match (new.as_slice(), first) {
            _ if !told.is_empty() => jobs.extend(told),
            // Of a single row every server has told the id.
            ([saga], Some(id)) => jobs.extend([(saga.saga_id.0, id)]),
            _ => jobs.extend(connection.exec::<(i64, i64), _, _>(JOBS, (document,)).await?),
        }
    }
    expect_rows("scheduling", rows(new.len()), rows(jobs.len()))?;
    for saga in sagas {
        saga.job_id = jobs.get(&saga.saga_id.0).copied().map(JobId);
    }
    Ok(())
}

/// By saga id, as results are applied. What is lost to a deadlock is tried again here: the jobs exist by now. A saga that
/// somebody keeps locked has its result applied by him, or is found due again.
pub(super) async fn mark_in_progress(connection: &mut Conn, sagas: &[ScheduledSaga]) -> DbResult<()> {
    let mut sorted: Vec<_> = sagas.iter().map(|saga| (saga.saga_id, saga.attempt_at)).collect();
    sorted.sort_unstable();
    for document in Batch::of(sorted, |(id, at)| [Field::Int(id.0), Field::At(at)]) {
        let mut tried = 1;
        while let Err(error) = connection.exec_drop(MARK_IN_PROGRESS, (document.as_str(),)).await {
            let error = DbError::from(error);
            if error.is_locked_out() {
                break;
            }
            if error.again() != RetryAdvice::AtOnce || tried == TRIES {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(1 << tried)).await;
            tried += 1;
        }
    }
    Ok(())
}
