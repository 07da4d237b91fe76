//! `history_janitor`: removes finished history, whole events at a time.

pub(crate) mod archived;
pub(crate) mod counts;
pub(crate) mod large_event;
pub(crate) mod records;

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        batch::Batch,
        event_locks,
        rows::{count, rows, take},
    },
    time::SqlTime,
};
use async_trait::async_trait;
use hooksaga_saga::{EventId, EventRemains, Expiry, Retention, Timestamp};
use hooksaga_store::{
    ArchivedDelivery, ArchivedEvent, EventPart, EventPlace, FoundEvent, JanitorStore, OldEvents, Removed,
    RemovedPart, RemovedRecords, ScanStep, StoreResult,
};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable};
use std::time::Duration;

const CLOCK: &str = "/* janitor.clock */ SELECT UTC_TIMESTAMP(6)";

/// Scans the index of creation times, in which the ids are in order too, from the current position, up to a limit.
pub(crate) const OLD_EVENTS: &str = "/* janitor.old_events */
SELECT id, created_at FROM events FORCE INDEX (idx_event_created)
WHERE created_at >= ? AND created_at <= ? AND (created_at > ? OR id > ?)
ORDER BY created_at, id LIMIT ?";

/// The columns that decide about events, and the number of rows of each.
pub(crate) const REMAINS: &str = "/* janitor.remains */
SELECT e.id, e.created_at, EXISTS (SELECT 1 FROM unrouted_events q WHERE q.event_id = e.id),
       CAST(COALESCE(SUM(s.status NOT IN ('Completed', 'DeadLettered')), 0) AS SIGNED),
       CAST(COALESCE(SUM(s.status = 'DeadLettered'), 0) AS SIGNED), MAX(s.updated_at),
       (SELECT COUNT(*) FROM dead_letters d FORCE INDEX (idx_dead_letter_event) WHERE d.event_id = e.id),
       (SELECT MAX(d.created_at) FROM dead_letters d FORCE INDEX (idx_dead_letter_event) WHERE d.event_id = e.id),
       CAST(COUNT(s.id) + COALESCE(SUM(s.attempt_count), 0) AS SIGNED), e.payload_bytes, UTC_TIMESTAMP(6)
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.id
LEFT JOIN webhook_delivery_sagas s FORCE INDEX (uniq_saga_event_subscription) ON s.event_id = e.id
GROUP BY e.id, e.created_at, e.payload_bytes";

/// Locks events. Sending an event again locks it, too, so what is read of it after this does not change.
pub(crate) const LOCK: &str = "/* janitor.lock */
SELECT e.id FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.id FOR UPDATE SKIP LOCKED";

/// An event of which some sagas were removed before is listed already.
pub(crate) const MARK: &str = "/* janitor.mark */
INSERT INTO removals (kind, subject_id)
SELECT 'event', u.id FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
LEFT JOIN removals r FORCE INDEX (PRIMARY) ON r.kind = 'event' AND r.subject_id = u.id
WHERE r.subject_id IS NULL";

pub(crate) const SAGAS: &str = "/* janitor.sagas */
SELECT s.id FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (uniq_saga_event_subscription) ON s.event_id = u.id";

pub(crate) const DELETE_LETTERS: &str = "/* janitor.delete_letters */
DELETE d FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN dead_letters d FORCE INDEX (uniq_dead_letter_saga) ON d.saga_id = u.id";

pub(crate) const DELETE_JOBS: &str = "/* janitor.delete_jobs */
DELETE j FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (uniq_job_saga_attempt) ON j.saga_id = u.id";

pub(crate) const DELETE_SAGAS: &str = "/* janitor.delete_sagas */
DELETE s FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = u.id";

pub(crate) const DELETE_EVENTS: &str = "/* janitor.delete_events */
DELETE e FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.id";

pub(crate) const DELETE_UNMATCHED: &str = "/* janitor.delete_unmatched */
DELETE n FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN unmatched_events n FORCE INDEX (PRIMARY) ON n.event_id = u.id";

pub(crate) const UNMARK: &str = "/* janitor.unmark */
DELETE r FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN removals r FORCE INDEX (PRIMARY) ON r.kind = 'event' AND r.subject_id = u.id";

pub(crate) struct JanitorSql(pub(crate) RolePool);

#[async_trait]
impl JanitorStore for JanitorSql {
    async fn old_events(&self, retention: &Retention, step: ScanStep<EventPlace>) -> StoreResult<OldEvents> {
        self.0.run(|connection| old_events(connection, retention, step)).await
    }

    async fn archived_events(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedEvent>> {
        self.0.run(|connection| archived::events(connection, events)).await
    }

    async fn archived_deliveries(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedDelivery>> {
        self.0.run(|connection| archived::deliveries(connection, events)).await
    }

    async fn archived_page(&self, part: EventPart) -> StoreResult<Vec<ArchivedDelivery>> {
        self.0.run(|connection| archived::page(connection, part)).await
    }

    async fn remove(&self, events: &[EventId], expiry: Expiry) -> StoreResult<Removed> {
        self.0
            .run(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let removed = remove(&mut transaction, events, expiry).await?;
                transaction.commit().await?;
                Ok(removed)
            })
            .await
    }

    async fn remove_part(&self, part: EventPart, expiry: Expiry) -> StoreResult<RemovedPart> {
        self.0
            .run(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let part = large_event::remove(&mut transaction, part, expiry).await?;
                transaction.commit().await?;
                Ok(part)
            })
            .await
    }

    async fn remove_records(&self, kept_for: Option<Duration>, limit: u32) -> StoreResult<RemovedRecords> {
        self.0
            .run(|mut connection| async move {
                let now = now(&mut connection).await?;
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let removed = records::remove(&mut transaction, now, kept_for, limit).await?;
                transaction.commit().await?;
                Ok(removed)
            })
            .await
    }

    async fn roll_up_counts(&self, limit: u32) -> StoreResult<bool> {
        self.0
            .run(|mut connection| async move {
                let now = now(&mut connection).await?;
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let more = counts::roll_up(&mut transaction, now, limit).await?;
                transaction.commit().await?;
                Ok(more)
            })
            .await
    }
}

async fn now(connection: &mut Conn) -> DbResult<Timestamp> {
    let now: Option<SqlTime> = connection.query_first(CLOCK).await?;
    Ok(now.ok_or_else(|| DbError::unreadable("no clock"))?.0)
}

/// The facts that decide about these events, in the order of their creation, each with the database's now.
async fn remains(connection: &mut impl Queryable, ids: &[i64]) -> DbResult<Vec<(FoundEvent, Timestamp)>> {
    let mut found = Vec::with_capacity(ids.len());
    for document in Batch::ids(ids.iter().copied()) {
        let read: Vec<Row> = connection.exec(REMAINS, (document,)).await?;
        for mut row in read {
            let row = &mut row;
            let number = |row: &mut Row, column| -> DbResult<u32> {
                Ok(u32::try_from(count(take(row, column)?)).unwrap_or(u32::MAX))
            };
            let letters = number(row, 6)?;
            let event = FoundEvent {
                id: EventId(take(row, 0)?),
                remains: EventRemains {
                    created_at: take::<SqlTime>(row, 1)?.0,
                    is_queued: take(row, 2)?,
                    open_sagas: number(row, 3)?,
                    dead_sagas: number(row, 4)?,
                    last_change: take::<Option<SqlTime>>(row, 5)?.map(|time| time.0),
                    letters,
                    last_letter: take::<Option<SqlTime>>(row, 7)?.map(|time| time.0),
                },
                rows: number(row, 8)?.saturating_add(letters),
                payload_bytes: count(take(row, 9)?),
            };
            found.push((event, take::<SqlTime>(row, 10)?.0));
        }
    }
    found.sort_unstable_by_key(|(event, _)| (event.remains.created_at, event.id));
    Ok(found)
}

async fn old_events(
    mut connection: Conn,
    retention: &Retention,
    step: ScanStep<EventPlace>,
) -> DbResult<OldEvents> {
    let as_of = now(&mut connection).await?;
    let settled = SqlTime(retention.settled_before(as_of));
    let (at, id) = step.after.map_or((SqlTime(Timestamp::from_micros(0)), 0), |(at, id)| (SqlTime(at), id.0));
    let old: Vec<(i64, SqlTime)> = connection.exec(OLD_EVENTS, (at, settled, at, id, step.limit)).await?;
    let is_end = rows(old.len()) < u64::from(step.limit);
    let last = old.last().map(|(id, at)| (at.0, EventId(*id)));
    let ids: Vec<i64> = old.iter().map(|(id, _)| *id).collect();
    let mut found = OldEvents { may_go: Vec::new(), kept: 0, as_of, last, is_end };
    for (event, now) in remains(&mut connection, &ids).await? {
        found.add(&event, retention.as_of(as_of).at_the_latest(now));
    }
    Ok(found)
}

async fn remove(transaction: &mut Transaction<'_>, events: &[EventId], expiry: Expiry) -> DbResult<Removed> {
    let mut wanted: Vec<i64> = events.iter().map(|id| id.0).collect();
    wanted.sort_unstable();
    let mut locked: Vec<i64> = Vec::with_capacity(wanted.len());
    for document in Batch::ids(wanted) {
        let ids: Vec<i64> = transaction.exec(LOCK, (document,)).await?;
        locked.extend(ids);
    }
    event_locks::lock(transaction, locked.iter().copied()).await?;
    // A statement of its own: it sees what was committed before the locks were taken.
    let found = remains(transaction, &locked).await?;
    let may_go = |(event, now): &&(FoundEvent, Timestamp)| expiry.at_the_latest(*now).may_go(&event.remains);
    let mut going: Vec<i64> = found.iter().filter(may_go).map(|(event, _)| event.id.0).collect();
    going.sort_unstable();
    let listed = Batch::ids(going.iter().copied());
    let mut removed = Removed::default();
    for document in &listed {
        transaction.exec_drop(MARK, (document,)).await?;
    }
    for document in &listed {
        let sagas: Vec<i64> = transaction.exec(SAGAS, (document,)).await?;
        delete_sagas(transaction, sagas, &mut removed).await?;
    }
    delete_events(transaction, &listed, &mut removed).await?;
    Ok(removed)
}

/// Removes sagas with their jobs and dead letters.
async fn delete_sagas(
    transaction: &mut Transaction<'_>,
    mut sagas: Vec<i64>,
    removed: &mut Removed,
) -> DbResult<()> {
    sagas.sort_unstable();
    for sagas in Batch::ids(sagas) {
        removed.dead_letters += delete(transaction, DELETE_LETTERS, &sagas).await?;
        removed.jobs += delete(transaction, DELETE_JOBS, &sagas).await?;
        removed.sagas += delete(transaction, DELETE_SAGAS, &sagas).await?;
    }
    Ok(())
}

/// Removes events that have no sagas left.
async fn delete_events(
    transaction: &mut Transaction<'_>,
    events: &[String],
    removed: &mut Removed,
) -> DbResult<()> {
    for document in events {
        removed.events += delete(transaction, DELETE_EVENTS, document).await?;
        delete(transaction, DELETE_UNMATCHED, document).await?;
        delete(transaction, UNMARK, document).await?;
    }
    Ok(())
}

/// Runs a DELETE; returns how many rows it removed.
async fn delete(transaction: &mut Transaction<'_>, sql: &str, document: &str) -> DbResult<u64> {
    transaction.exec_drop(sql, (document,)).await?;
    Ok(transaction.affected_rows())
}
