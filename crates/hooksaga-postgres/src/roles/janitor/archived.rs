//! Reads history for the archive.

use crate::{
    error::DbResult,
    roles::{
        reader::attempt,
        rows::{bigint, integer, natural, parsed},
    },
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
use hooksaga_store::{ArchivedDelivery, ArchivedEvent, ArchivedLetter, EventPart};
use std::sync::Arc;
use tokio_postgres::Row;

pub(crate) const EVENTS: &str = "/* janitor.events */
SELECT id, tenant, event_type, external_id, correlation_id, created_at, payload
FROM events WHERE id = ANY ($1) ORDER BY id";

/// Deliveries, each with its dead letter and the saga that this was requeued as. OFFSET 0: each look by its key, also in a plan
/// that was made while the tables were small.
macro_rules! deliveries {
    ($name:literal, $sagas:literal) => {
        concat!(
            $name,
            "
SELECT g.id, g.event_id, g.subscription_id, coalesce(s.callback_url, ''), g.generation, g.status::text, g.attempt_count,
       g.max_retry_limit, g.final_error_code, g.created_at, g.updated_at, d.id, d.final_error_code, d.created_at,
       CASE WHEN d.id IS NOT NULL THEN
           (SELECT n.id FROM webhook_delivery_sagas n
            WHERE n.event_id = g.event_id AND n.subscription_id = g.subscription_id AND n.generation = g.generation + 1)
       END
FROM (",
            $sagas,
            ") g
LEFT JOIN LATERAL (SELECT callback_url FROM subscriptions WHERE id = g.subscription_id OFFSET 0) s ON true
LEFT JOIN LATERAL (
    SELECT id, final_error_code, created_at FROM dead_letters WHERE saga_id = g.id OFFSET 0
) d ON true
ORDER BY g.event_id, g.subscription_id, g.generation"
        )
    };
}

pub(crate) const DELIVERIES: &str = deliveries!(
    "/* janitor.deliveries */",
    "SELECT * FROM webhook_delivery_sagas WHERE event_id = ANY ($1) OFFSET 0"
);

/// By the unique key, from where the last page ended.
pub(crate) const PAGE: &str = deliveries!(
    "/* janitor.page */",
    "SELECT * FROM webhook_delivery_sagas WHERE event_id = $1 AND (subscription_id, generation) > ($2, $3)
      ORDER BY subscription_id, generation LIMIT $4"
);

/// The columns of an attempt in the order in which the reader has them; then its saga.
pub(crate) const ATTEMPTS: &str = "/* janitor.attempts */
SELECT id, attempt_at, status::text, response_status, error_code, duration_ms, response_excerpt, lease_resets,
       started_at, callback_url, retry_at, saga_id
FROM webhook_delivery_jobs WHERE saga_id = ANY ($1) ORDER BY saga_id, attempt_at";

pub(super) async fn events(client: &Client, events: &[EventId]) -> DbResult<Vec<ArchivedEvent>> {
    let ids: Vec<i64> = events.iter().map(|id| id.0).collect();
    let statement = client.prepare_cached(EVENTS).await?;
    let read = |row: &Row| {
        Ok(ArchivedEvent {
            id: EventId(row.try_get(0)?),
            tenant: row.try_get(1)?,
            event_type: row.try_get(2)?,
            external_id: row.try_get(3)?,
            correlation_id: row.try_get(4)?,
            created_at: row.try_get::<_, SqlTime>(5)?.0,
            payload: Arc::from(row.try_get::<_, &str>(6)?),
        })
    };
    client.query(&statement, &[&ids]).await?.iter().map(read).collect()
}

pub(super) async fn deliveries(client: &Client, events: &[EventId]) -> DbResult<Vec<ArchivedDelivery>> {
    let ids: Vec<i64> = events.iter().map(|id| id.0).collect();
    let statement = client.prepare_cached(DELIVERIES).await?;
    with_attempts(client, &client.query(&statement, &[&ids]).await?).await
}

pub(super) async fn page(client: &Client, part: EventPart) -> DbResult<Vec<ArchivedDelivery>> {
    let (subscription, generation) = part.behind();
    let (generation, limit) = (integer(generation), bigint(part.limit));
    let statement = client.prepare_cached(PAGE).await?;
    let rows = client.query(&statement, &[&part.event.0, &subscription, &generation, &limit]).await?;
    with_attempts(client, &rows).await
}

async fn with_attempts(client: &Client, rows: &[Row]) -> DbResult<Vec<ArchivedDelivery>> {
    let mut deliveries = rows.iter().map(delivery).collect::<DbResult<Vec<_>>>()?;
    let sagas: Vec<i64> = deliveries.iter().map(|delivery| delivery.saga_id.0).collect();
    let statement = client.prepare_cached(ATTEMPTS).await?;
    let rows = client.query(&statement, &[&sagas]).await?;
    let of_saga = |row: &Row| Ok((SagaId(row.try_get(11)?), attempt(row)?));
    ArchivedDelivery::take_attempts(&mut deliveries, rows.iter().map(of_saga).collect::<DbResult<Vec<_>>>()?);
    Ok(deliveries)
}

/// Without its attempts.
fn delivery(row: &Row) -> DbResult<ArchivedDelivery> {
    let letter = row.try_get::<_, Option<i64>>(11)?.map(DeadLetterId);
    Ok(ArchivedDelivery {
        saga_id: SagaId(row.try_get(0)?),
        event_id: EventId(row.try_get(1)?),
        subscription_id: SubscriptionId(row.try_get(2)?),
        callback_url: row.try_get(3)?,
        generation: natural(row.try_get(4)?),
        status: parsed(row.try_get(5)?)?,
        attempt_count: natural(row.try_get(6)?),
        max_retry_limit: natural(row.try_get(7)?),
        final_error_code: row.try_get::<_, Option<String>>(8)?.map(ErrorCode::from_stored),
        created_at: row.try_get::<_, SqlTime>(9)?.0,
        updated_at: row.try_get::<_, SqlTime>(10)?.0,
        attempts: Vec::new(),
        dead_letter: match letter {
            Some(id) => Some(ArchivedLetter {
                id,
                final_error_code: ErrorCode::from_stored(row.try_get(12)?),
                created_at: row.try_get::<_, SqlTime>(13)?.0,
                requeued_saga_id: row.try_get::<_, Option<i64>>(14)?.map(SagaId),
            }),
            None => None,
        },
    })
}
