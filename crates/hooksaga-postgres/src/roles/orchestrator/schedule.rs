//! Jobs for due sagas, and the sagas' move to InProgress. docs/SCHEDULING.md explains why the two transactions are safe.

use super::{
    deferred_moves::Unmoved,
    limited,
    schedule_position::{Reached, Wanted},
};
use crate::{
    error::{DbError, DbResult},
    roles::{
        correlations::Correlations,
        insert_without_conflicts::{Insert, Inserter},
        rows::{bigint, count},
    },
    time::{SqlTime, micros},
};
use deadpool_postgres::Client;
use hooksaga_saga::{JobId, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{
    Allotted, Limited, Scheduled, ScheduledSaga, Trace, WORKER_GONE_AFTER, WORKER_LEASES_END_AFTER,
    WaitingPage, WorkerLoad,
};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use tokio_postgres::{Row, types::ToSql};

/// Hops through `idx_saga_waiting` from one subscription to the next, one entry each, which is also the earliest: a
/// backlog costs one look, however large. The first line of `hops` is where the last look stopped.
///
/// OFFSET 0 keeps the subscriptions' lookup as written, one by its key for each that waits.
pub(crate) const WAITING: &str = "/* orchestrator.waiting */
WITH RECURSIVE hops AS (
    SELECT 0::bigint AS hop, $1::bigint AS subscription_id, NULL::timestamptz AS next_attempt_at
    UNION ALL
    SELECT h.hop + 1, following.subscription_id, following.next_attempt_at
    FROM hops h CROSS JOIN LATERAL (
        SELECT s.subscription_id, s.next_attempt_at FROM webhook_delivery_sagas s
        WHERE s.status IN ('Pending', 'PendingRetry') AND s.subscription_id > h.subscription_id
          AND (s.status = 'Pending' OR s.attempt_count < s.max_retry_limit)
        ORDER BY s.subscription_id, s.next_attempt_at LIMIT 1
    ) following
    WHERE h.hop < $2::bigint
)
SELECT h.subscription_id, h.next_attempt_at <= now() AND sub.deliverable
FROM hops h LEFT JOIN LATERAL (
    SELECT deliverable FROM subscriptions WHERE id = h.subscription_id OFFSET 0
) sub ON true
WHERE h.hop > 0 ORDER BY h.hop";

/// One statement for all subscriptions; jobs first, sagas are not touched.
///
/// ON CONFLICT names no target: a job can be there already by either of two keys. A job may be leased from now on, not
/// from when it was due: so workers claim in the order of admission. `(…) IS TRUE` hides `active` from the planner, which
/// would otherwise go by `idx_sub_active`.
///
/// Sagas whose move is still to come ($4, few) are passed over ([`super::unmoved`]).
///
/// Subscriptions with a rate limit get nothing here, and are named in the first line: how much is let through is decided
/// under a lock, in a transaction of their own ([`super::limited`]), which runs the same statement for those alone.
macro_rules! create_jobs {
    ($name:literal, $limit:literal, $on_conflict:literal) => {
        concat!(
            "/* orchestrator.",
            $name,
            " */
WITH sub AS MATERIALIZED (
    SELECT u.id, u.jobs, u.since, s.rate_limit
    FROM unnest($1::bigint[], $2::bigint[], $3::timestamptz[]) AS u (id, jobs, since)
    CROSS JOIN LATERAL (
        SELECT CASE WHEN deleted_at IS NULL THEN rate_limit END AS rate_limit
        FROM subscriptions WHERE id = u.id AND deliverable OFFSET 0
    ) s
), due AS MATERIALIZED (
    SELECT d.* FROM sub CROSS JOIN LATERAL (
        SELECT s.id, s.subscription_id, s.event_id, s.attempt_count, s.next_attempt_at
        FROM webhook_delivery_sagas s
        WHERE s.subscription_id = sub.id AND s.status IN ('Pending', 'PendingRetry')
          AND s.next_attempt_at BETWEEN sub.since AND now()
          AND (s.status = 'Pending' OR s.attempt_count < s.max_retry_limit)
          AND s.id <> ALL ($4::bigint[])
        ORDER BY s.next_attempt_at, s.id
        LIMIT sub.jobs
    ) d
    WHERE sub.rate_limit ",
            $limit,
            "
), jobs AS (
    INSERT INTO webhook_delivery_jobs
        (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until, created_at, updated_at)
    SELECT id, subscription_id, event_id, attempt_count + 1, next_attempt_at, now(), now(), now()
    FROM due ORDER BY id
    ",
            $on_conflict,
            "
    RETURNING id, saga_id
), new AS (
    SELECT array_agg(saga_id) AS saga_ids, array_agg(id) AS job_ids FROM jobs
)
SELECT now(), NULL::bigint AS saga_id, NULL::bigint, NULL::bigint, saga_ids, job_ids,
       (SELECT array_agg(id) FROM sub WHERE rate_limit IS NOT NULL)
FROM new
UNION ALL
SELECT next_attempt_at, id, subscription_id, event_id, NULL, NULL, NULL FROM due"
        )
    };
}

pub(crate) const CREATE_JOBS: Insert = Insert {
    plain: create_jobs!("create_jobs", "IS NULL", ""),
    careful: create_jobs!("create_jobs", "IS NULL", "ON CONFLICT DO NOTHING"),
};

/// Creates the jobs of subscriptions with a rate limit.
pub(crate) const CREATE_LIMITED: &str =
    create_jobs!("create_limited", "IS NOT NULL", "ON CONFLICT DO NOTHING");

/// Driven by the given ids in their order. Statuses that are asked for (`SELECT`) instead of written down hide them from
/// the planner, which would otherwise drive from the index of waiting sagas and look at every one of them per id. Both
/// guards are needed: without the status a late pass reopens a finished saga, without next_attempt_at it moves one that has
/// no job.
macro_rules! move_sagas {
    ($name:literal, $also:literal) => {
        concat!(
            "/* orchestrator.",
            $name,
            " */
UPDATE webhook_delivery_sagas s SET status = 'InProgress', updated_at = now()
FROM unnest($1::bigint[], $2::timestamptz[]) AS u (id, attempt_at)
WHERE s.id = u.id AND s.next_attempt_at = u.attempt_at
  AND (s.status = (SELECT 'Pending'::saga_status) OR s.status = (SELECT 'PendingRetry'::saga_status))",
            $also
        )
    };
}

/// For sagas whose jobs are known to be there: this session inserted them.
pub(crate) const MOVE: &str = move_sagas!("move", "");

/// For all others: looks for the job of each. (OFFSET 0: looked up for each row, not joined.)
pub(crate) const MOVE_WITH_JOB: &str = move_sagas!(
    "move_with_job",
    "
  AND EXISTS (SELECT 1 FROM webhook_delivery_jobs j
              WHERE j.saga_id = u.id AND j.attempt_at = u.attempt_at OFFSET 0)"
);

/// Along the indexes of open jobs (the order points the planner to them) and the queue of results. Parked jobs have a
/// not-before that never comes, at the end of their index.
pub(crate) const OPEN_JOBS: &str = "/* orchestrator.open_jobs */
SELECT subscription_id, count(*) FROM (
    (SELECT subscription_id FROM webhook_delivery_jobs
     WHERE status = 'Pending' AND lease_until < '9999-12-31 23:59:59.999999+00' ORDER BY lease_until)
    UNION ALL
    (SELECT subscription_id FROM webhook_delivery_jobs WHERE status = 'Leased' ORDER BY lease_until)
    UNION ALL
    (SELECT j.subscription_id
     FROM finished_jobs f JOIN webhook_delivery_jobs j ON j.saga_id = f.saga_id AND j.attempt_at = f.attempt_at
     ORDER BY f.seq)
) open GROUP BY subscription_id";

/// A heartbeat that lies ahead, because the clock was set back since, counts as one that lies as far back.
pub(crate) const WORKERS: &str = "/* orchestrator.workers */
SELECT count(*) FILTER (WHERE silence < $1::bigint), coalesce(sum(slots) FILTER (WHERE silence < $1), 0)::bigint, max(silence)
FROM (SELECT slots, (abs(extract(epoch FROM now() - seen_at)) * 1000000)::bigint AS silence FROM workers) w
WHERE silence < $2::bigint";

pub(super) async fn waiting(
    client: &Client,
    after: Option<SubscriptionId>,
    limit: u32,
) -> DbResult<WaitingPage> {
    let statement = client.prepare_cached(WAITING).await?;
    let from = after.map_or(i64::MIN, |id| id.0);
    let rows = client.query(&statement, &[&from, &bigint(limit)]).await?;
    let mut subscriptions = Vec::with_capacity(rows.len());
    for row in &rows {
        if row.try_get::<_, Option<bool>>(1)?.unwrap_or(false) {
            subscriptions.push(SubscriptionId(row.try_get(0)?));
        }
    }
    let is_full = u32::try_from(rows.len()).is_ok_and(|hops| hops >= limit);
    let last = rows.last().filter(|_| is_full).map(|row| row.try_get(0)).transpose()?;
    Ok(WaitingPage { subscriptions, resume_after: last.map(SubscriptionId) })
}

/// A pass whose jobs exist. Its sagas are still to be moved, and their correlation ids to be looked up.
pub(super) struct Created {
    now: Timestamp,
    sagas: Vec<ScheduledSaga>,
    /// The event of each.
    events: Vec<i64>,
    wanted: Wanted,
    limited: Vec<Limited>,
    /// The number of sagas before those of subscriptions with a rate limit.
    unlimited: usize,
}

/// What one statement did.
pub(super) struct Passed {
    pub(super) now: Timestamp,
    pub(super) sagas: Vec<ScheduledSaga>,
    events: Vec<i64>,
    /// Subscriptions with a rate limit.
    limited: Vec<i64>,
}

/// The first transaction; two, where subscriptions with a rate limit are among the allotted.
pub(super) async fn create_jobs(
    client: &mut Client,
    jobs: &Inserter,
    reached: &Reached,
    unmoved: &Unmoved,
    allotted: &[Allotted],
) -> DbResult<Created> {
    let wanted = reached.begin(allotted, Instant::now());
    let unmoved = unmoved.ids();
    let Passed { now, mut sagas, mut events, limited } = insert(client, jobs, &wanted, &unmoved).await?;
    let found = sagas.iter().map(|saga| saga.subscription_id).collect();
    if let Some(again) = wanted.again(&found) {
        let more = insert(client, jobs, &again, &unmoved).await?;
        sagas.extend(more.sagas);
        events.extend(more.events);
    }
    let mut created = Created { now, unlimited: sagas.len(), sagas, events, wanted, limited: Vec::new() };
    if !limited.is_empty() {
        let of_limited = allotted.iter().filter(|one| limited.contains(&one.subscription_id.0));
        let of_limited = of_limited.map(|one| (one.subscription_id.0, one.jobs.into())).collect();
        let (passed, limited) = limited::create_jobs(client, &of_limited, &unmoved).await?;
        created.sagas.extend(passed.sagas);
        created.events.extend(passed.events);
        created.limited = limited;
    }
    Ok(created)
}

async fn insert(client: &Client, jobs: &Inserter, wanted: &Wanted, unmoved: &[i64]) -> DbResult<Passed> {
    let parameters: [&(dyn ToSql + Sync); 4] = [&wanted.ids, &wanted.jobs, &wanted.since, &unmoved];
    read_pass(&jobs.run(client, CREATE_JOBS, &parameters).await?)
}

/// The database's clock, the due sagas whose jobs exist now, and the event of each.
pub(super) fn read_pass(rows: &[Row]) -> DbResult<Passed> {
    // A UNION ALL returns its parts in order: the clock with the jobs that are new, then the sagas.
    let (clock, rows) = rows.split_first().ok_or_else(|| DbError::unreadable("no clock"))?;
    let now = clock.try_get::<_, SqlTime>(0)?.0;
    let saga_ids = clock.try_get::<_, Option<Vec<i64>>>(4)?.unwrap_or_default();
    let job_ids = clock.try_get::<_, Option<Vec<i64>>>(5)?.unwrap_or_default();
    let limited = clock.try_get::<_, Option<Vec<i64>>>(6)?.unwrap_or_default();
    let mut job_of: HashMap<i64, i64> = saga_ids.into_iter().zip(job_ids).collect();

    let mut sagas = Vec::with_capacity(rows.len());
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        let saga_id: i64 = row.try_get(1)?;
        sagas.push(ScheduledSaga {
            saga_id: SagaId(saga_id),
            subscription_id: SubscriptionId(row.try_get(2)?),
            attempt_at: row.try_get::<_, SqlTime>(0)?.0,
            trace: Trace::default(),
            job_id: job_of.remove(&saga_id).map(JobId),
        });
        events.push(row.try_get(3)?);
    }
    Ok(Passed { now, sagas, events, limited })
}

impl Created {
    /// Whether there is anything to move.
    pub(super) fn is_empty(&self) -> bool {
        self.sagas.is_empty()
    }

    /// How the sagas are moved in the session that inserted the jobs: what a session was told of is there as long as it
    /// lives. A job that was there before may be of another attempt, and is looked for.
    pub(super) fn move_in_session(&self) -> &'static str {
        if self.sagas.iter().all(|saga| saga.job_id.is_some()) { MOVE } else { MOVE_WITH_JOB }
    }

    /// The second transaction.
    pub(super) async fn move_sagas(&self, client: &Client, sql: &str) -> DbResult<()> {
        let mut keys: Vec<_> = self.sagas.iter().map(|saga| (saga.saga_id, saga.attempt_at)).collect();
        keys.sort_unstable();
        let ids: Vec<i64> = keys.iter().map(|(id, _)| id.0).collect();
        let times: Vec<SqlTime> = keys.iter().map(|&(_, at)| SqlTime(at)).collect();
        move_sagas(client, sql, &ids, &times).await
    }

    /// Whether the second transaction is left for later.
    pub(super) fn leave_moves(&self, unmoved: &Unmoved) -> bool {
        unmoved.leave(&self.sagas, Instant::now())
    }

    /// Looks the tenants and correlation ids up. That only serves the log: where it fails they stay empty.
    pub(super) async fn correlate(&self, client: &Client, correlations: &Correlations) -> Vec<Trace> {
        correlations.of(client, &self.events).await.unwrap_or_default()
    }

    /// The sagas are moved, or left out until they are, so the next pass may begin behind them.
    pub(super) fn remember(&self, reached: &Reached) {
        // Passes over limited subscriptions begin at the first entry.
        reached.remember(&self.wanted, &self.sagas[..self.unlimited], Instant::now());
    }

    pub(super) fn into_scheduled(mut self, traces: Vec<Trace>) -> Scheduled {
        for (saga, trace) in self.sagas.iter_mut().zip(traces) {
            saga.trace = trace;
        }
        Scheduled { now: self.now, sagas: self.sagas, limited: self.limited }
    }
}

/// In the order of their ids.
pub(super) async fn move_sagas(
    client: &Client,
    sql: &str,
    ids: &[i64],
    attempts: &[SqlTime],
) -> DbResult<()> {
    let statement = client.prepare_cached(sql).await?;
    client.execute(&statement, &[&ids, &attempts]).await?;
    Ok(())
}

pub(super) async fn load(client: &Client) -> DbResult<WorkerLoad> {
    let (open, workers) = tokio::try_join!(client.prepare_cached(OPEN_JOBS), client.prepare_cached(WORKERS))?;
    let (gone, over) = (micros(WORKER_GONE_AFTER), micros(WORKER_LEASES_END_AFTER));
    let bounds: [&(dyn ToSql + Sync); 2] = [&gone, &over];
    let (open, workers) = tokio::try_join!(client.query(&open, &[]), client.query_one(&workers, &bounds))?;
    let narrow = |number: i64| u32::try_from(count(number)).unwrap_or(u32::MAX);
    let jobs = |row: &Row| -> DbResult<_> { Ok((SubscriptionId(row.try_get(0)?), narrow(row.try_get(1)?))) };
    Ok(WorkerLoad {
        workers: narrow(workers.try_get(0)?),
        slots: narrow(workers.try_get(1)?),
        silence: workers.try_get::<_, Option<i64>>(2)?.map(|micros| Duration::from_micros(count(micros))),
        open: open.iter().map(jobs).collect::<DbResult<_>>()?,
    })
}
