//! `history_janitor`: removes finished history, whole events at a time.
//!
//! Its commits do not wait for the disk: what a crash of the database brings back is removed again.

pub(crate) mod archived;
pub(crate) mod counts;
pub(crate) mod large_event;
pub(crate) mod records;

use crate::{
    error::DbResult,
    pool::RolePool,
    roles::rows::{bigint, count},
    time::{SqlTime, micros},
};
use async_trait::async_trait;
use deadpool_postgres::{GenericClient, Transaction};
use hooksaga_saga::{EventId, EventRemains, Expiry, Retention, Timestamp};
use hooksaga_store::{
    ArchivedDelivery, ArchivedEvent, EventPart, EventPlace, FoundEvent, JanitorStore, OldEvents, Removed,
    RemovedPart, RemovedRecords, ScanStep, StoreResult,
};
use std::time::Duration;
use tokio_postgres::Row;

/// The columns that decide about events, and the number of rows of each. No payload is read for its length. (OFFSET 0: by its key,
/// not by a hash of the whole queue.)
macro_rules! remains {
    ($name:literal, $events:literal) => {
        concat!(
            "/* ",
            $name,
            " */
SELECT e.id, e.created_at, EXISTS (SELECT FROM unrouted_events q WHERE q.event_id = e.id OFFSET 0), s.open, s.dead, s.last_change,
       l.letters, l.last_letter, s.rows + l.letters, octet_length(e.payload)::bigint, now()
FROM (",
            $events,
            ") e
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE status NOT IN ('Completed', 'DeadLettered')) AS open,
           count(*) FILTER (WHERE status = 'DeadLettered') AS dead, max(updated_at) AS last_change,
           count(*) + coalesce(sum(attempt_count), 0)::bigint AS rows
    FROM webhook_delivery_sagas WHERE event_id = e.id
) s
CROSS JOIN LATERAL (
    SELECT count(*) AS letters, max(created_at) AS last_letter FROM dead_letters WHERE event_id = e.id
) l
ORDER BY e.created_at, e.id"
        )
    };
}

/// By the index of creation times, from where the scan is, and no more than asked for: events of one moment are sorted as
/// they come (Incremental Sort).
pub(crate) const OLD_EVENTS: &str = remains!(
    "janitor.old_events",
    "
    SELECT id, created_at, payload FROM events
    WHERE created_at >= $1 AND created_at <= now() - $4::bigint * interval '1 microsecond' AND (created_at > $1 OR id > $2)
    ORDER BY created_at, id LIMIT $3
"
);

pub(crate) const REMAINS: &str =
    remains!("janitor.remains", "SELECT id, created_at, payload FROM events WHERE id = ANY ($1)");

/// Locks events. Sending an event again locks it, too, so what is read of it after this does not change.
pub(crate) const LOCK: &str = "/* janitor.lock */
SELECT id FROM events WHERE id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED";

/// An event of which some sagas were removed before is listed already.
pub(crate) const MARK: &str = "/* janitor.mark */
INSERT INTO removals (kind, subject_id) SELECT 'event', id FROM unnest($1::bigint[]) AS id ORDER BY id
ON CONFLICT DO NOTHING";

pub(crate) const SAGAS: &str = "/* janitor.sagas */
SELECT id FROM webhook_delivery_sagas WHERE event_id = ANY ($1)";

/// One statement: the guards look when all of it is done.
pub(crate) const DELETE_SAGAS: &str = "/* janitor.delete_sagas */
WITH letters AS (
    DELETE FROM dead_letters WHERE saga_id = ANY ($1) RETURNING 1
), jobs AS (
    DELETE FROM webhook_delivery_jobs WHERE saga_id = ANY ($1) RETURNING 1
), sagas AS (
    DELETE FROM webhook_delivery_sagas WHERE id = ANY ($1) RETURNING 1
)
SELECT (SELECT count(*) FROM letters), (SELECT count(*) FROM jobs), (SELECT count(*) FROM sagas)";

/// An event goes with its last saga.
pub(crate) const DELETE_EVENTS: &str = "/* janitor.delete_events */
WITH gone AS (
    DELETE FROM events e
    WHERE e.id = ANY ($1) AND NOT EXISTS (SELECT FROM webhook_delivery_sagas s WHERE s.event_id = e.id)
    RETURNING e.id
), unmatched AS (
    DELETE FROM unmatched_events WHERE event_id = ANY (ARRAY(SELECT id FROM gone))
)
SELECT count(*) FROM gone";

/// An event that is not gone stays listed: nobody sends again what is no longer whole.
pub(crate) const UNMARK: &str = "/* janitor.unmark */
DELETE FROM removals r
WHERE r.kind = 'event' AND r.subject_id = ANY ($1)
  AND NOT EXISTS (SELECT FROM events e WHERE e.id = r.subject_id OFFSET 0)";

pub(crate) struct JanitorSql(pub(crate) RolePool);

#[async_trait]
impl JanitorStore for JanitorSql {
    async fn old_events(&self, retention: &Retention, step: ScanStep<EventPlace>) -> StoreResult<OldEvents> {
        let (at, id) =
            step.after.map_or((SqlTime(Timestamp::from_micros(0)), 0), |(at, id)| (SqlTime(at), id.0));
        let kept = micros(retention.finished.max(Retention::SHORTEST));
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(OLD_EVENTS).await?;
                let rows = client.query(&statement, &[&at, &id, &bigint(step.limit), &kept]).await?;
                let is_end = rows.len() < step.limit as usize;
                let as_of = Timestamp::from_micros(0);
                let mut found = OldEvents { may_go: Vec::new(), kept: 0, as_of, last: None, is_end };
                for row in &rows {
                    let (event, now) = remains(row)?;
                    // The same in every row.
                    found.as_of = now;
                    found.last = Some((event.remains.created_at, event.id));
                    found.add(&event, retention.as_of(now));
                }
                Ok(found)
            })
            .await
    }

    async fn archived_events(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedEvent>> {
        self.0.run(|client| async move { archived::events(&client, events).await }).await
    }

    async fn archived_deliveries(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedDelivery>> {
        self.0.run(|client| async move { archived::deliveries(&client, events).await }).await
    }

    async fn archived_page(&self, part: EventPart) -> StoreResult<Vec<ArchivedDelivery>> {
        self.0.run(|client| async move { archived::page(&client, part).await }).await
    }

    async fn remove(&self, events: &[EventId], expiry: Expiry) -> StoreResult<Removed> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let removed = remove(&transaction, events, expiry).await?;
                transaction.commit().await?;
                Ok(removed)
            })
            .await
    }

    async fn remove_part(&self, part: EventPart, expiry: Expiry) -> StoreResult<RemovedPart> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let part = large_event::remove(&transaction, part, expiry).await?;
                transaction.commit().await?;
                Ok(part)
            })
            .await
    }

    async fn remove_records(&self, kept_for: Option<Duration>, limit: u32) -> StoreResult<RemovedRecords> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let removed = records::remove(&transaction, kept_for, limit).await?;
                transaction.commit().await?;
                Ok(removed)
            })
            .await
    }

    async fn roll_up_counts(&self, limit: u32) -> StoreResult<bool> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let more = counts::roll_up(&transaction, limit).await?;
                transaction.commit().await?;
                Ok(more)
            })
            .await
    }
}

/// What decides about an event, and the database's now.
fn remains(row: &Row) -> DbResult<(FoundEvent, Timestamp)> {
    let number = |column: usize| -> DbResult<u32> {
        Ok(u32::try_from(row.try_get::<_, i64>(column)?).unwrap_or(u32::MAX))
    };
    let remains = EventRemains {
        created_at: row.try_get::<_, SqlTime>(1)?.0,
        is_queued: row.try_get(2)?,
        open_sagas: number(3)?,
        dead_sagas: number(4)?,
        last_change: row.try_get::<_, Option<SqlTime>>(5)?.map(|time| time.0),
        letters: number(6)?,
        last_letter: row.try_get::<_, Option<SqlTime>>(7)?.map(|time| time.0),
    };
    let id = EventId(row.try_get(0)?);
    let found = FoundEvent { id, remains, rows: number(8)?, payload_bytes: count(row.try_get(9)?) };
    Ok((found, row.try_get::<_, SqlTime>(10)?.0))
}

async fn remove(transaction: &Transaction<'_>, events: &[EventId], expiry: Expiry) -> DbResult<Removed> {
    let wanted: Vec<i64> = events.iter().map(|id| id.0).collect();
    let locked = ids(transaction, LOCK, &wanted).await?;
    // A statement of its own: it sees what was committed before the locks were taken.
    let statement = transaction.prepare_cached(REMAINS).await?;
    let mut going = Vec::with_capacity(locked.len());
    for row in transaction.query(&statement, &[&locked]).await? {
        let (event, now) = remains(&row)?;
        if expiry.at_the_latest(now).may_go(&event.remains) {
            going.push(event.id.0);
        }
    }
    if going.is_empty() {
        return Ok(Removed::default());
    }
    let statement = transaction.prepare_cached(MARK).await?;
    transaction.execute(&statement, &[&going]).await?;

    let sagas = ids(transaction, SAGAS, &going).await?;
    let statement = transaction.prepare_cached(DELETE_SAGAS).await?;
    let counts = transaction.query_one(&statement, &[&sagas]).await?;
    let statement = transaction.prepare_cached(DELETE_EVENTS).await?;
    let gone = transaction.query_one(&statement, &[&going]).await?;

    let statement = transaction.prepare_cached(UNMARK).await?;
    transaction.execute(&statement, &[&going]).await?;
    Ok(Removed {
        events: count(gone.try_get(0)?),
        sagas: count(counts.try_get(2)?),
        jobs: count(counts.try_get(1)?),
        dead_letters: count(counts.try_get(0)?),
    })
}

/// What a statement says of some ids.
async fn ids(client: &impl GenericClient, sql: &str, given: &[i64]) -> DbResult<Vec<i64>> {
    let statement = client.prepare_cached(sql).await?;
    client.query(&statement, &[&given]).await?.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
