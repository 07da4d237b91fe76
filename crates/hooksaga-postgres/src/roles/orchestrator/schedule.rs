//! Jobs for due sagas, and the sagas' move to InProgress.

use super::last_pass::LastPass;
use crate::{
    error::{DbError, DbResult},
    roles::{
        correlations::Correlations,
        insert::{Insert, Inserter},
        rows::bigint,
        waiting::with_waiting,
    },
    time::{Time, micros},
};
use deadpool_postgres::Client;
use hooksaga_saga::{JobId, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{Admission, Scheduled, ScheduledSaga};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt::Write as _,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio_postgres::Row;

/// One statement; jobs first, sagas are not touched. It begins with `admitted`: the subscriptions with due work and
/// room for it, and since when that work is due.
///
/// `offered` takes each one's oldest from `idx_saga_waiting`, up to a few times its fair share: with a hundred large
/// backlogs, reading each as far as there is room would cost a hundred times what fits into the pass. Only if all of
/// that does not fill the pass, `more` reads on in the few that had more. `due` takes turn by turn, so that a large
/// backlog does not crowd out a small one.
///
/// ON CONFLICT names no target: a job can be there already by either of two keys. A job may be leased from now on, not
/// from when it was due: so new ones come last in the workers' index.
macro_rules! schedule {
    ($admitted:expr, $on_conflict:literal) => {
        concat!(
            $admitted,
            ", pass AS MATERIALIZED (
    SELECT greatest(4 * $1::bigint / greatest(count(*), 1), 64) AS share FROM admitted
), offered AS MATERIALIZED (
    SELECT d.* FROM admitted a CROSS JOIN LATERAL (
        SELECT s.id, s.subscription_id, s.event_id, s.attempt_count, s.next_attempt_at,
               row_number() OVER (ORDER BY s.next_attempt_at, s.id) AS turn
        FROM webhook_delivery_sagas s
        WHERE s.subscription_id = a.id AND s.status IN ('Pending', 'PendingRetry')
          AND s.next_attempt_at BETWEEN a.since AND now()
          AND (s.status = 'Pending' OR s.attempt_count < s.max_retry_limit)
        ORDER BY s.next_attempt_at, s.id
        LIMIT least(a.room, (SELECT share FROM pass))
    ) d
), more AS MATERIALIZED (
    SELECT d.* FROM admitted a CROSS JOIN LATERAL (
        SELECT s.id, s.subscription_id, s.event_id, s.attempt_count, s.next_attempt_at,
               row_number() OVER (ORDER BY s.next_attempt_at, s.id) AS turn
        FROM webhook_delivery_sagas s
        WHERE s.subscription_id = a.id AND s.status IN ('Pending', 'PendingRetry')
          AND s.next_attempt_at BETWEEN a.since AND now()
          AND (s.status = 'Pending' OR s.attempt_count < s.max_retry_limit)
        ORDER BY s.next_attempt_at, s.id
        LIMIT least(a.room - (SELECT share FROM pass), $1::bigint - (SELECT count(*) FROM offered))
        OFFSET (SELECT share FROM pass)
    ) d
    WHERE (SELECT count(*) FROM offered) < $1::bigint AND a.room > (SELECT share FROM pass)
), due AS MATERIALIZED (
    SELECT id, subscription_id, event_id, attempt_count, next_attempt_at
    FROM (SELECT * FROM offered UNION ALL SELECT * FROM more) d
    ORDER BY turn, next_attempt_at LIMIT $1::bigint
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
SELECT now(), NULL::bigint AS saga_id, NULL::bigint, NULL::bigint, saga_ids, job_ids FROM new
UNION ALL
SELECT next_attempt_at, id, subscription_id, event_id, NULL, NULL FROM due"
        )
    };
}

/// Looks everywhere that something waits, from the earliest of each subscription on.
///
/// OFFSET 0 keeps the subscriptions' lookup as written, one by its key for each that waits. What room there is comes as
/// one JSON object, parsed once; joining it as rows would compare all with all, without hash joins.
macro_rules! everywhere {
    () => {
        concat!(
            "/* orchestrator.schedule */
",
            with_waiting!(),
            ", admitted AS MATERIALIZED (
    SELECT sub.id, allowed.room, w.next_attempt_at AS since
    FROM waiting w
    CROSS JOIN LATERAL (
        SELECT id, active AND verified AS deliverable FROM subscriptions WHERE id = w.subscription_id OFFSET 0
    ) sub
    CROSS JOIN LATERAL (
        SELECT coalesce(((SELECT $2::text::jsonb) ->> sub.id::text)::bigint, $3::bigint) AS room
    ) allowed
    WHERE w.next_attempt_at <= now() AND sub.deliverable AND allowed.room > 0
)"
        )
    };
}

pub(crate) const SCHEDULE: Insert = Insert {
    plain: schedule!(everywhere!(), ""),
    careful: schedule!(everywhere!(), "ON CONFLICT DO NOTHING"),
};

/// Looks at the given subscriptions, from where the last pass came to.
macro_rules! given {
    () => {
        "/* orchestrator.schedule_given */
WITH admitted AS MATERIALIZED (
    SELECT sub.id, u.room, u.since
    FROM unnest($2::bigint[], $3::bigint[], $4::timestamptz[]) AS u (id, room, since)
    CROSS JOIN LATERAL (
        SELECT id, active AND verified AS deliverable FROM subscriptions WHERE id = u.id OFFSET 0
    ) sub
    WHERE sub.deliverable
)"
    };
}

pub(crate) const SCHEDULE_GIVEN: Insert =
    Insert { plain: schedule!(given!(), ""), careful: schedule!(given!(), "ON CONFLICT DO NOTHING") };

/// Driven by the given ids in their order. Statuses that are asked for (`SELECT`) instead of written down hide them from
/// the planner, which would otherwise drive from the index of waiting sagas and look at every one of them per id. Both
/// guards are needed: without the status a late pass reopens a finished saga, without next_attempt_at it moves one that has
/// no job.
macro_rules! mark_in_progress {
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

/// For sagas whose jobs are known to be there ([`LastPass`]).
pub(crate) const MARK_IN_PROGRESS: &str = mark_in_progress!("mark_in_progress", "");

/// For all others: looks for the job of each. (OFFSET 0: looked up for each row, not joined.)
pub(crate) const MARK_WITH_JOB: &str = mark_in_progress!(
    "mark_with_job",
    "
  AND EXISTS (SELECT 1 FROM webhook_delivery_jobs j
              WHERE j.saga_id = u.id AND j.attempt_at = u.attempt_at OFFSET 0)"
);

/// Along the indexes of open jobs (the order points the planner to them) and the queue of results.
pub(crate) const OPEN_JOBS: &str = "/* orchestrator.open_jobs */
SELECT subscription_id, count(*) FROM (
    (SELECT subscription_id FROM webhook_delivery_jobs WHERE status = 'Pending' ORDER BY lease_until)
    UNION ALL
    (SELECT subscription_id FROM webhook_delivery_jobs WHERE status = 'Leased' ORDER BY lease_until)
    UNION ALL
    (SELECT j.subscription_id
     FROM finished_jobs f JOIN webhook_delivery_jobs j ON j.saga_id = f.saga_id AND j.attempt_at = f.attempt_at
     ORDER BY f.seq)
) open GROUP BY subscription_id";

pub(super) async fn schedule(
    client: &Client,
    jobs: &Inserter,
    reached: &Reached,
    correlations: &Correlations,
    admission: &Admission,
) -> DbResult<Scheduled> {
    let limit = bigint(admission.limit);
    let rows = if let Some(only) = &admission.only {
        let given = reached.given(only, admission);
        jobs.run(client, SCHEDULE_GIVEN, &[&limit, &given.ids, &given.rooms, &given.since]).await?
    } else {
        let room = room_json(&admission.room);
        jobs.run(client, SCHEDULE, &[&limit, &room, &bigint(admission.default_room)]).await?
    };

    // A UNION ALL answers its parts in turn: the clock with the jobs that are new, then the sagas.
    let (clock, rows) = rows.split_first().ok_or_else(|| DbError::unreadable("no clock"))?;
    let now = clock.try_get::<_, Time>(0)?.0;
    let saga_ids = clock.try_get::<_, Option<Vec<i64>>>(4)?.unwrap_or_default();
    let job_ids = clock.try_get::<_, Option<Vec<i64>>>(5)?.unwrap_or_default();
    let mut job_of: HashMap<i64, i64> = saga_ids.into_iter().zip(job_ids).collect();

    let mut sagas: Vec<ScheduledSaga> = Vec::with_capacity(rows.len());
    let mut seen = HashSet::with_capacity(rows.len());
    let events = rows.iter().map(|row| row.try_get(3)).collect::<Result<Vec<i64>, _>>()?;
    // The jobs are made: a look that only serves the log must not make this pass a failed one.
    let correlations =
        correlations.of(client, &events).await.unwrap_or_else(|_| vec![String::new(); rows.len()]);
    for (row, correlation_id) in rows.iter().zip(correlations) {
        let saga_id: i64 = row.try_get(1)?;
        // `more` begins where `offered` ended, by the same walk; were a saga in both, it counts once.
        if seen.insert(saga_id) {
            sagas.push(ScheduledSaga {
                saga_id: SagaId(saga_id),
                subscription_id: SubscriptionId(row.try_get(2)?),
                attempt_at: row.try_get::<_, Time>(0)?.0,
                correlation_id,
                job_id: job_of.remove(&saga_id).map(JobId),
            });
        }
    }
    reached.remember(&sagas);
    Ok(Scheduled { now, sagas })
}

/// How far scheduling came in each subscription, by the time at which its sagas were due. What was scheduled leaves dead
/// entries in `idx_saga_waiting` until the next vacuum; a pass that looks at given subscriptions begins after most of
/// them, and what it may have passed over is found when a pass looks everywhere.
#[derive(Default)]
pub(crate) struct Reached(Mutex<HashMap<SubscriptionId, Timestamp>>);

/// The subscriptions of a pass, as columns.
struct Given {
    ids: Vec<i64>,
    rooms: Vec<i64>,
    since: Vec<Time>,
}

impl Reached {
    /// Sagas are due from when their router began, and are seen when it commits.
    const MARGIN: Duration = Duration::from_millis(250);
    /// More are not kept: then all are forgotten, which costs each one longer walk.
    const MOST: usize = 10_000;

    fn places(&self) -> MutexGuard<'_, HashMap<SubscriptionId, Timestamp>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn given(&self, only: &BTreeSet<SubscriptionId>, admission: &Admission) -> Given {
        let places = self.places();
        let mut given = Given { ids: Vec::new(), rooms: Vec::new(), since: Vec::new() };
        for id in only {
            let room = admission.room_of(*id);
            if room > 0 {
                let since = places.get(id).map_or(i64::MIN, |at| at.as_micros() - micros(Self::MARGIN));
                given.ids.push(id.0);
                given.rooms.push(bigint(room));
                given.since.push(Time(Timestamp::from_micros(since)));
            }
        }
        given
    }

    fn remember(&self, sagas: &[ScheduledSaga]) {
        let mut places = self.places();
        if places.len() > Self::MOST {
            places.clear();
        }
        for saga in sagas {
            // A pass takes each one's oldest first.
            places.insert(saga.subscription_id, saga.attempt_at);
        }
    }
}

pub(super) async fn open_jobs(client: &Client) -> DbResult<HashMap<SubscriptionId, u32>> {
    let statement = client.prepare_cached(OPEN_JOBS).await?;
    let rows = client.query(&statement, &[]).await?;
    let jobs = |row: &Row| -> DbResult<_> {
        let jobs = u32::try_from(row.try_get::<_, i64>(1)?).unwrap_or(u32::MAX);
        Ok((SubscriptionId(row.try_get(0)?), jobs))
    };
    rows.iter().map(jobs).collect()
}

pub(super) async fn mark_in_progress(
    client: &Client,
    last_pass: &LastPass,
    sagas: &[(SagaId, Timestamp)],
) -> DbResult<u64> {
    if sagas.is_empty() {
        return Ok(0);
    }
    let mut sorted = sagas.to_vec();
    sorted.sort_unstable();
    let ids: Vec<i64> = sorted.iter().map(|(id, _)| id.0).collect();
    let times: Vec<Time> = sorted.iter().map(|&(_, at)| Time(at)).collect();
    let sql = if last_pass.made(client, &sorted) { MARK_IN_PROGRESS } else { MARK_WITH_JOB };
    let statement = client.prepare_cached(sql).await?;
    Ok(client.execute(&statement, &[&ids, &times]).await?)
}

/// `{"7":64,…}`
fn room_json(room: &HashMap<SubscriptionId, u32>) -> String {
    let mut json = String::from("{");
    for (i, (id, jobs)) in room.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        write!(json, "{comma}\"{id}\":{jobs}").expect("writing to a String cannot fail");
    }
    json.push('}');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_one_json_object() {
        assert_eq!(room_json(&HashMap::new()), "{}");
        assert_eq!(room_json(&HashMap::from([(SubscriptionId(7), 64)])), r#"{"7":64}"#);
        let two = room_json(&HashMap::from([(SubscriptionId(1), 2), (SubscriptionId(3), 4)]));
        assert!(two == r#"{"1":2,"3":4}"# || two == r#"{"3":4,"1":2}"#, "{two}");
    }
}
