//! `event_ingest_writer`: appends events.

use super::rows;
use crate::{
    engine::RoleHandle,
    error::{DbError, DbResult},
    session::Tx,
};
use async_trait::async_trait;
use hooksaga_saga::{EventId, ExternalId};
use hooksaga_store::{Appended, EventHead, IngestStore, NewEvent, StoreError, StoreResult};
use rusqlite::{CachedStatement, OptionalExtension};

const INSERT_EVENT: &str = "/* ingest.insert_event */
INSERT OR FAIL INTO events (tenant, event_type, created_at, external_id, correlation_id, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO NOTHING";

const QUEUE_EVENT: &str = "/* ingest.queue_event */
INSERT OR FAIL INTO unrouted_events (event_id) VALUES (?1)";

/// Text is compared byte by byte here: the columns have the default collation, BINARY.
const FIND_ORIGINAL: &str = "/* ingest.find_original */
SELECT id, event_type, correlation_id, created_at, event_type = ?2 AND payload = ?3
  FROM events WHERE external_id = ?1 AND tenant = ?4";

const STORE_LIMIT: &str = "/* ingest.store_limit */
INSERT INTO ingest_limits (id, max_payload_bytes) VALUES (1, ?1)
ON CONFLICT (id) DO UPDATE SET max_payload_bytes = excluded.max_payload_bytes";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[INSERT_EVENT, QUEUE_EVENT, FIND_ORIGINAL];

pub(crate) struct IngestSql(pub(crate) RoleHandle);

#[async_trait]
impl IngestStore for IngestSql {
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<Appended>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let events = events.to_vec();
        self.0.write(move |tx| append(tx, events)).await
    }

    async fn store_payload_limit(&self, bytes: u64) -> StoreResult<()> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.0.write(move |tx| Ok(tx.prepare(STORE_LIMIT)?.execute([bytes])?)).await?;
        Ok(())
    }
}

fn append(tx: &Tx<'_>, events: Vec<NewEvent>) -> DbResult<Vec<Appended>> {
    let mut insert = tx.prepare(INSERT_EVENT)?;
    let mut queue = tx.prepare(QUEUE_EVENT)?;
    let mut find = tx.prepare(FIND_ORIGINAL)?;
    let mut answers = Vec::with_capacity(events.len());
    for event in events {
        let inserted = insert.execute((
            event.tenant.as_str(),
            event.event_type.as_str(),
            tx.now.as_micros(),
            event.external_id.as_ref().map(ExternalId::as_str),
            event.correlation_id.as_str(),
            &*event.payload,
        ))?;
        // An earlier event of the same batch counts as there already.
        let answer = if inserted == 0 {
            original(&mut find, &event)?
        } else {
            let id = tx.last_id();
            queue.execute([id])?;
            Appended::Created(EventHead {
                id: EventId(id),
                tenant: event.tenant.as_str().to_owned(),
                event_type: event.event_type.as_str().to_owned(),
                external_id: event.external_id.as_ref().map(|id| id.as_str().to_owned()),
                correlation_id: event.correlation_id.as_str().to_owned(),
                created_at: tx.now,
            })
        };
        answers.push(answer);
    }
    Ok(answers)
}

/// The event that has taken this one's `external_id`.
fn original(find: &mut CachedStatement<'_>, event: &NewEvent) -> DbResult<Appended> {
    let external_id = event.external_id.as_ref().map(ExternalId::as_str);
    let found = find
        .query_row((external_id, event.event_type.as_str(), &*event.payload, event.tenant.as_str()), |row| {
            let existing = EventId(row.get(0)?);
            if !row.get::<_, bool>(4)? {
                return Ok(Appended::Conflict { existing });
            }
            Ok(Appended::Duplicate(EventHead {
                id: existing,
                tenant: event.tenant.as_str().to_owned(),
                event_type: row.get(1)?,
                external_id: external_id.map(str::to_owned),
                correlation_id: row.get(2)?,
                created_at: rows::time(row, 3)?,
            }))
        })
        .optional()?;
    found.ok_or_else(|| {
        DbError::Store(StoreError::Other(
            "an event was not stored, and no other has its external_id".to_owned(),
        ))
    })
}
