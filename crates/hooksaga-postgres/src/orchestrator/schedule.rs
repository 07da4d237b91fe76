//! Jobs for due sagas, and the sagas' move to InProgress.

use crate::{convert::bigint, error::Failure, time::Time};
use deadpool_postgres::Client;
use hooksaga_saga::{JobId, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{Admission, Scheduled, ScheduledSaga};
use std::{
    collections::{HashMap, hash_map::Entry},
    fmt::Write as _,
};
use tokio_postgres::Row;

/// One statement; jobs first, sagas are not touched.
///
/// `waiting` hops through `idx_saga_waiting` from one subscription to the next, one entry each, which is also the
/// earliest: a backlog, paused or not yet due, costs one look. `admitted` keeps those with due work and room for
/// it. `offered` takes each one's oldest from the same index, up to a few times its fair share: with a hundred
/// large backlogs, reading each as far as there is room would cost a hundred times what fits into the pass. Only
/// if all of that does not fill the pass, `more` reads on in the few that had more. `due` takes turn by turn, so that
/// a large backlog does not crowd out a small one.
///
/// OFFSET 0 keeps the subscriptions' lookup as written, one by its key for each that waits.
/// ON CONFLICT names no target: a job can be there already by either of two keys. What room there is comes as one JSON
/// object, parsed once; joining them as rows would compare all with all, without hash joins.
pub(crate) const SCHEDULE: &str = "/* orchestrator.schedule */
WITH RECURSIVE waiting AS (
    (SELECT subscription_id, next_attempt_at FROM webhook_delivery_sagas
     WHERE status IN ('Pending', 'PendingRetry')
     ORDER BY subscription_id, next_attempt_at LIMIT 1)
    UNION ALL
    SELECT following.subscription_id, following.next_attempt_at
    FROM waiting w CROSS JOIN LATERAL (
        SELECT s.subscription_id, s.next_attempt_at FROM webhook_delivery_sagas s
        WHERE s.status IN ('Pending', 'PendingRetry') AND s.subscription_id > w.subscription_id
        ORDER BY s.subscription_id, s.next_attempt_at LIMIT 1
    ) following
), admitted AS MATERIALIZED (
    SELECT sub.id, allowed.room
    FROM waiting w
    CROSS JOIN LATERAL (
        SELECT id, active AND verified AS deliverable FROM subscriptions WHERE id = w.subscription_id OFFSET 0
    ) sub
    CROSS JOIN LATERAL (
        SELECT coalesce(((SELECT $1::text::jsonb) ->> sub.id::text)::bigint, $2::bigint) AS room
    ) allowed
    WHERE w.next_attempt_at <= now() AND sub.deliverable AND allowed.room > 0
), pass AS MATERIALIZED (
    SELECT greatest(4 * $3::bigint / greatest(count(*), 1), 64) AS share FROM admitted
), offered AS MATERIALIZED (
    SELECT d.* FROM admitted a CROSS JOIN LATERAL (
        SELECT s.id, s.subscription_id, s.event_id, s.next_attempt_at,
               row_number() OVER (ORDER BY s.next_attempt_at) AS turn
        FROM webhook_delivery_sagas s
        WHERE s.subscription_id = a.id AND s.status IN ('Pending', 'PendingRetry')
          AND s.next_attempt_at <= now()
          AND (s.status = 'Pending' OR s.attempt_count < s.max_retry_limit)
        ORDER BY s.next_attempt_at
        LIMIT least(a.room, (SELECT share FROM pass))
    ) d
), more AS MATERIALIZED (
    SELECT d.* FROM admitted a CROSS JOIN LATERAL (
        SELECT s.id, s.subscription_id, s.event_id, s.next_attempt_at,
               row_number() OVER (ORDER BY s.next_attempt_at) AS turn
        FROM webhook_delivery_sagas s
        WHERE s.subscription_id = a.id AND s.status IN ('Pending', 'PendingRetry')
          AND s.next_attempt_at <= now()
          AND (s.status = 'Pending' OR s.attempt_count < s.max_retry_limit)
        ORDER BY s.next_attempt_at
        LIMIT least(a.room - (SELECT share FROM pass), $3::bigint - (SELECT count(*) FROM offered))
        OFFSET (SELECT share FROM pass)
    ) d
    WHERE (SELECT count(*) FROM offered) < $3::bigint AND a.room > (SELECT share FROM pass)
), due AS MATERIALIZED (
    SELECT id, subscription_id, event_id, next_attempt_at
    FROM (SELECT * FROM offered UNION ALL SELECT * FROM more) d
    ORDER BY turn, next_attempt_at LIMIT $3::bigint
), jobs AS (
    INSERT INTO webhook_delivery_jobs
        (saga_id, subscription_id, attempt_at, lease_until, created_at, updated_at)
    SELECT id, subscription_id, next_attempt_at, next_attempt_at, now(), now() FROM due ORDER BY id
    ON CONFLICT DO NOTHING
    RETURNING id, saga_id
)
SELECT now(), NULL::bigint AS saga_id, NULL::bigint, NULL::text, NULL::bigint
UNION ALL
SELECT d.next_attempt_at, d.id, d.subscription_id, e.correlation_id, NULL
FROM due d JOIN events e ON e.id = d.event_id
UNION ALL
SELECT NULL, saga_id, NULL, NULL, id FROM jobs";

/// Driven by the given ids in their order. `status::text` hides the column from the planner, which would
/// otherwise drive from the index of waiting sagas and look at every one of them per id. Both guards are needed:
/// without the status a late pass reopens a finished saga, without next_attempt_at it moves one that has no job.
pub(crate) const MARK_IN_PROGRESS: &str = "/* orchestrator.mark_in_progress */
UPDATE webhook_delivery_sagas s SET status = 'InProgress', updated_at = now()
FROM unnest($1::bigint[], $2::timestamptz[]) AS u (id, attempt_at)
WHERE s.id = u.id AND s.next_attempt_at = u.attempt_at AND s.status::text IN ('Pending', 'PendingRetry')";

/// Along the indexes of open jobs (the order points the planner to them) and the queue of results.
pub(crate) const OPEN_JOBS: &str = "/* orchestrator.open_jobs */
SELECT subscription_id, count(*) FROM (
    (SELECT subscription_id FROM webhook_delivery_jobs WHERE status = 'Pending' ORDER BY lease_until)
    UNION ALL
    (SELECT subscription_id FROM webhook_delivery_jobs WHERE status = 'Leased' ORDER BY lease_until)
    UNION ALL
    SELECT j.subscription_id FROM finished_jobs f JOIN webhook_delivery_jobs j ON j.id = f.job_id
) open GROUP BY subscription_id";

pub(super) async fn schedule(client: &Client, admission: &Admission) -> Result<Scheduled, Failure> {
    let room = room_json(&admission.room);
    let statement = client.prepare_cached(SCHEDULE).await?;
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&room, &bigint(admission.default_room), &bigint(admission.limit)];
    let rows = client.query(&statement, &parameters).await?;

    // A UNION ALL answers its parts in turn: the clock, the sagas, the jobs that are new.
    let mut now = None;
    let mut sagas: Vec<ScheduledSaga> = Vec::with_capacity(rows.len() / 2);
    let mut place_of = HashMap::with_capacity(rows.len() / 2);
    for row in &rows {
        let Some(saga_id) = row.try_get::<_, Option<i64>>(1)?.map(SagaId) else {
            now = Some(row.try_get::<_, Time>(0)?.0);
            continue;
        };
        if let Some(job_id) = row.try_get::<_, Option<i64>>(4)? {
            if let Some(&place) = place_of.get(&saga_id) {
                let saga: &mut ScheduledSaga = &mut sagas[place];
                saga.job_id = Some(JobId(job_id));
            }
            continue;
        }
        // `more` begins where `offered` ended, by the same walk; were a saga in both, it counts once.
        let Entry::Vacant(place) = place_of.entry(saga_id) else { continue };
        place.insert(sagas.len());
        sagas.push(ScheduledSaga {
            saga_id,
            subscription_id: SubscriptionId(row.try_get(2)?),
            attempt_at: row.try_get::<_, Time>(0)?.0,
            correlation_id: row.try_get(3)?,
            job_id: None,
        });
    }
    let now = now.ok_or_else(|| Failure::unreadable("no clock"))?;
    Ok(Scheduled { now, sagas })
}

pub(super) async fn open_jobs(client: &Client) -> Result<HashMap<SubscriptionId, u32>, Failure> {
    let statement = client.prepare_cached(OPEN_JOBS).await?;
    let rows = client.query(&statement, &[]).await?;
    let jobs = |row: &Row| -> Result<_, Failure> {
        let jobs = u32::try_from(row.try_get::<_, i64>(1)?).unwrap_or(u32::MAX);
        Ok((SubscriptionId(row.try_get(0)?), jobs))
    };
    rows.iter().map(jobs).collect()
}

pub(super) async fn mark_in_progress(client: &Client, sagas: &[(SagaId, Timestamp)]) -> Result<u64, Failure> {
    if sagas.is_empty() {
        return Ok(0);
    }
    let mut sorted = sagas.to_vec();
    sorted.sort_unstable();
    let ids: Vec<i64> = sorted.iter().map(|(id, _)| id.0).collect();
    let times: Vec<Time> = sorted.iter().map(|&(_, at)| Time(at)).collect();
    let statement = client.prepare_cached(MARK_IN_PROGRESS).await?;
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
