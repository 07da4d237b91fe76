//! Reads history for the archive.

use crate::{
    error::DbResult,
    roles::{reader::attempt, rows},
    session::Tx,
};
use hooksaga_saga::{DeadLetterId, EventId, SagaId, SubscriptionId};
use hooksaga_store::{ArchivedDelivery, ArchivedEvent, ArchivedLetter, EventPart};

const EVENT: &str = "/* janitor.event */
SELECT id, tenant, event_type, external_id, correlation_id, created_at, payload FROM events WHERE id = ?1";

/// By the unique key, from where the last page ended; each with its dead letter and what that was requeued as.
pub(super) const PAGE: &str = "/* janitor.page */
SELECT g.id, g.event_id, g.subscription_id, coalesce(s.callback_url, ''), g.generation, g.status, g.attempt_count,
       g.max_retry_limit, g.final_error_code, g.created_at, g.updated_at, d.id, d.final_error_code, d.created_at,
       CASE WHEN d.id IS NOT NULL THEN
           (SELECT n.id FROM webhook_delivery_sagas AS n
             WHERE n.event_id = g.event_id AND n.subscription_id = g.subscription_id AND n.generation = g.generation + 1)
       END
  FROM webhook_delivery_sagas AS g INDEXED BY uniq_saga_event_subscription
  LEFT JOIN subscriptions AS s ON s.id = g.subscription_id
  LEFT JOIN dead_letters AS d ON d.saga_id = g.id
 WHERE g.event_id = ?1 AND (g.subscription_id, g.generation) > (?2, ?3)
 ORDER BY g.subscription_id, g.generation LIMIT ?4";

const ATTEMPTS: &str = "/* janitor.attempts */
SELECT id, attempt_at, status, response_status, error_code, duration_ms, response_excerpt, lease_resets,
       started_at, callback_url, retry_at
  FROM webhook_delivery_jobs WHERE saga_id = ?1 ORDER BY attempt_at";

pub(super) fn events(tx: &Tx<'_>, ids: &[EventId]) -> DbResult<Vec<ArchivedEvent>> {
    let mut ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
    ids.sort_unstable();
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(rows::all(tx, EVENT, [id], |row| {
            Ok(ArchivedEvent {
                id: EventId(row.get(0)?),
                tenant: row.get(1)?,
                event_type: row.get(2)?,
                external_id: row.get(3)?,
                correlation_id: row.get(4)?,
                created_at: rows::time(row, 5)?,
                payload: rows::shared_text(row, 6)?,
            })
        })?);
    }
    Ok(found)
}

pub(super) fn deliveries(tx: &Tx<'_>, events: &[EventId]) -> DbResult<Vec<ArchivedDelivery>> {
    let mut found = Vec::new();
    for event in events {
        found.extend(page(tx, EventPart { event: *event, after: None, limit: u32::MAX })?);
    }
    Ok(found)
}

pub(super) fn page(tx: &Tx<'_>, part: EventPart) -> DbResult<Vec<ArchivedDelivery>> {
    let (subscription, generation) = part.behind();
    let mut found = rows::all(tx, PAGE, (part.event.0, subscription, generation, part.limit), delivery)?;
    for delivery in &mut found {
        delivery.attempts = rows::all(tx, ATTEMPTS, [delivery.saga_id.0], attempt)?;
    }
    Ok(found)
}

/// Without its attempts.
fn delivery(row: &rusqlite::Row<'_>) -> rusqlite::Result<ArchivedDelivery> {
    let letter = row.get::<_, Option<i64>>(11)?.map(DeadLetterId);
    Ok(ArchivedDelivery {
        saga_id: SagaId(row.get(0)?),
        event_id: EventId(row.get(1)?),
        subscription_id: SubscriptionId(row.get(2)?),
        callback_url: row.get(3)?,
        generation: row.get(4)?,
        status: rows::parsed(row, 5)?,
        attempt_count: row.get(6)?,
        max_retry_limit: row.get(7)?,
        final_error_code: rows::optional_error_code(row, 8)?,
        created_at: rows::time(row, 9)?,
        updated_at: rows::time(row, 10)?,
        attempts: Vec::new(),
        dead_letter: match letter {
            Some(id) => Some(ArchivedLetter {
                id,
                final_error_code: rows::error_code(row, 12)?,
                created_at: rows::time(row, 13)?,
                requeued_saga_id: row.get::<_, Option<i64>>(14)?.map(SagaId),
            }),
            None => None,
        },
    })
}
