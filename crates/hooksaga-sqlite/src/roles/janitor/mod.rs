//! `history_janitor`: removes finished history, whole events at a time.

mod archived;
mod counts;
mod large_event;
mod records;

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{EventId, EventRemains, Expiry, Retention, Timestamp};
use hooksaga_store::{
    ArchivedDelivery, ArchivedEvent, EventPart, EventPlace, FoundEvent, JanitorStore, OldEvents, Removed,
    RemovedPart, RemovedRecords, ScanStep, StoreResult,
};
use rusqlite::OptionalExtension;
use std::time::Duration;

/// As the guards read it.
const CLOCK: &str = "/* janitor.clock */
SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)";

/// Scans the index of creation times, in which the ids are in order too, from the current position, up to a limit.
const OLD_EVENTS: &str = "/* janitor.old_events */
SELECT id, created_at FROM events INDEXED BY idx_event_created
 WHERE created_at >= ?1 AND created_at <= ?2 AND (created_at > ?1 OR id > ?3)
 ORDER BY created_at, id LIMIT ?4";

/// What decides about an event, and how much there is of it. No payload is read for its length. INDEXED BY: where one event
/// has most of the sagas the planner would read them all.
const REMAINS: &str = "/* janitor.remains */
SELECT e.created_at, EXISTS (SELECT 1 FROM unrouted_events WHERE event_id = e.id),
       coalesce(sum(g.status NOT IN ('Completed', 'DeadLettered')), 0), coalesce(sum(g.status = 'DeadLettered'), 0),
       max(g.updated_at),
       (SELECT count(*) FROM dead_letters AS d INDEXED BY idx_dead_letter_event WHERE d.event_id = e.id),
       (SELECT max(d.created_at) FROM dead_letters AS d INDEXED BY idx_dead_letter_event WHERE d.event_id = e.id),
       count(g.id) + coalesce(sum(g.attempt_count), 0), octet_length(e.payload)
  FROM events AS e
  LEFT JOIN webhook_delivery_sagas AS g INDEXED BY uniq_saga_event_subscription ON g.event_id = e.id
 WHERE e.id = ?1 GROUP BY e.id";

/// An event of which some sagas were removed before is listed already.
const MARK: &str = "/* janitor.mark */
INSERT INTO removals (kind, subject_id) VALUES ('event', ?1) ON CONFLICT DO NOTHING";

const UNMARK: &str = "/* janitor.unmark */
DELETE FROM removals WHERE kind = 'event' AND subject_id = ?1";

const SAGAS: &str = "/* janitor.sagas */
SELECT id FROM webhook_delivery_sagas WHERE event_id = ?1";

const DELETE_LETTER: &str = "/* janitor.delete_letter */
DELETE FROM dead_letters WHERE saga_id = ?1";

const DELETE_JOBS: &str = "/* janitor.delete_jobs */
DELETE FROM webhook_delivery_jobs WHERE saga_id = ?1";

const DELETE_SAGA: &str = "/* janitor.delete_saga */
DELETE FROM webhook_delivery_sagas WHERE id = ?1";

const DELETE_UNMATCHED: &str = "/* janitor.delete_unmatched */
DELETE FROM unmatched_events WHERE event_id = ?1";

const DELETE_EVENT: &str = "/* janitor.delete_event */
DELETE FROM events WHERE id = ?1";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[
    OLD_EVENTS,
    REMAINS,
    MARK,
    UNMARK,
    SAGAS,
    DELETE_LETTER,
    DELETE_JOBS,
    DELETE_SAGA,
    DELETE_UNMATCHED,
    DELETE_EVENT,
    large_event::LISTED,
    large_event::PART,
    large_event::HAS_SAGAS,
    archived::PAGE,
    counts::NEXT_MINUTE,
    counts::ADD_TENANTS,
    counts::NEXT_SUBSCRIPTION,
    counts::ADD_HOURS,
];

pub(crate) struct JanitorSql(pub(crate) RoleHandle);

#[async_trait]
impl JanitorStore for JanitorSql {
    async fn old_events(&self, retention: &Retention, step: ScanStep<EventPlace>) -> StoreResult<OldEvents> {
        let retention = *retention;
        self.0.read(move |tx| old_events(tx, &retention, step)).await
    }

    async fn archived_events(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedEvent>> {
        let events = events.to_vec();
        self.0.read(move |tx| archived::events(tx, &events)).await
    }

    async fn archived_deliveries(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedDelivery>> {
        let events = events.to_vec();
        self.0.read(move |tx| archived::deliveries(tx, &events)).await
    }

    async fn archived_page(&self, part: EventPart) -> StoreResult<Vec<ArchivedDelivery>> {
        self.0.read(move |tx| archived::page(tx, part)).await
    }

    async fn remove(&self, events: &[EventId], expiry: Expiry) -> StoreResult<Removed> {
        let events = events.to_vec();
        self.0.write(move |tx| remove(tx, &events, expiry)).await
    }

    async fn remove_part(&self, part: EventPart, expiry: Expiry) -> StoreResult<RemovedPart> {
        self.0.write(move |tx| large_event::remove(tx, part, expiry)).await
    }

    async fn remove_records(&self, kept_for: Option<Duration>, limit: u32) -> StoreResult<RemovedRecords> {
        // A look that finds nothing, as nearly all do, is no reason to write.
        if !self.0.read(move |tx| records::are_old(tx, kept_for)).await? {
            return Ok(RemovedRecords::default());
        }
        self.0.write(move |tx| records::remove(tx, kept_for, limit)).await
    }

    async fn roll_up_counts(&self, limit: u32) -> StoreResult<bool> {
        if !self.0.read(counts::are_due).await? {
            return Ok(false);
        }
        self.0.write(move |tx| counts::roll_up(tx, limit)).await
    }
}

/// The time by which it is decided what is old: the database's clock or that of the guards, whichever is earlier. The guards
/// follow a clock that was set back, and would refuse what is old by the other.
fn clock(tx: &Tx<'_>) -> DbResult<Timestamp> {
    let guards = tx.prepare(CLOCK)?.query_row([], |row| rows::time(row, 0))?;
    Ok(tx.now.min(guards))
}

/// What decides about an event; `None` if it is gone.
fn remains(tx: &Tx<'_>, id: EventId) -> DbResult<Option<FoundEvent>> {
    let read = |row: &rusqlite::Row<'_>| {
        let letters: u32 = row.get(5)?;
        let remains = EventRemains {
            created_at: rows::time(row, 0)?,
            is_queued: row.get(1)?,
            open_sagas: row.get(2)?,
            dead_sagas: row.get(3)?,
            last_change: rows::optional_time(row, 4)?,
            letters,
            last_letter: rows::optional_time(row, 6)?,
        };
        let rows = row.get::<_, u32>(7)?.saturating_add(letters);
        Ok(FoundEvent { id, remains, rows, payload_bytes: rows::count(row, 8)? })
    };
    Ok(tx.prepare(REMAINS)?.query_row([id.0], read).optional()?)
}

fn old_events(tx: &Tx<'_>, retention: &Retention, step: ScanStep<EventPlace>) -> DbResult<OldEvents> {
    let as_of = clock(tx)?;
    let settled = retention.settled_before(as_of).as_micros();
    let (at, id) = step.after.map_or((i64::MIN, i64::MIN), |(at, id)| (at.as_micros(), id.0));
    let old = rows::all(tx, OLD_EVENTS, (at, settled, id, step.limit), |row| {
        Ok((rows::time(row, 1)?, EventId(row.get(0)?)))
    })?;
    let is_end = old.len() < step.limit as usize;
    let mut found = OldEvents { may_go: Vec::new(), kept: 0, as_of, last: old.last().copied(), is_end };
    for (_, id) in &old {
        if let Some(event) = remains(tx, *id)? {
            found.add(&event, retention.as_of(as_of));
        }
    }
    Ok(found)
}

fn remove(tx: &Tx<'_>, events: &[EventId], expiry: Expiry) -> DbResult<Removed> {
    let expiry = expiry.at_the_latest(clock(tx)?);
    let mut removed = Removed::default();
    for id in events {
        if !remains(tx, *id)?.is_some_and(|event| expiry.may_go(&event.remains)) {
            continue;
        }
        tx.execute(MARK, [id.0])?;
        for saga in rows::all(tx, SAGAS, [id.0], |row| row.get::<_, i64>(0))? {
            delete_saga(tx, saga, &mut removed)?;
        }
        tx.execute(DELETE_UNMATCHED, [id.0])?;
        removed.events += tx.execute(DELETE_EVENT, [id.0])? as u64;
        tx.execute(UNMARK, [id.0])?;
    }
    Ok(removed)
}

/// Removes a saga with what belongs to it.
fn delete_saga(tx: &Tx<'_>, saga: i64, removed: &mut Removed) -> DbResult<()> {
    removed.dead_letters += tx.execute(DELETE_LETTER, [saga])? as u64;
    removed.jobs += tx.execute(DELETE_JOBS, [saga])? as u64;
    removed.sagas += tx.execute(DELETE_SAGA, [saga])? as u64;
    Ok(())
}
