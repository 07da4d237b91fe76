//! Reads history for the archive.

use crate::{
    error::DbResult,
    roles::{
        batch::Batch,
        reader::attempt,
        rows::{natural, parsed, take},
    },
    time::SqlTime,
};
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
use hooksaga_store::{ArchivedDelivery, ArchivedEvent, ArchivedLetter, EventPart};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::sync::Arc;

pub(crate) const EVENTS: &str = "/* janitor.events */
SELECT e.id, e.tenant, e.event_type, e.external_id, e.correlation_id, e.created_at, e.payload
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.id";

/// Deliveries, each with its dead letter and the saga that this was requeued as.
macro_rules! deliveries {
    ($name:literal, $sagas:literal) => {
        concat!(
            $name,
            "
SELECT g.id, g.event_id, g.subscription_id, COALESCE(s.callback_url, ''), g.generation, g.status, g.attempt_count,
       g.max_retry_limit, g.final_error_code, g.created_at, g.updated_at, d.id, d.final_error_code, d.created_at, n.id
FROM ",
            $sagas,
            "
LEFT JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = g.subscription_id
LEFT JOIN dead_letters d FORCE INDEX (uniq_dead_letter_saga) ON d.saga_id = g.id
LEFT JOIN webhook_delivery_sagas n FORCE INDEX (uniq_saga_event_subscription)
    ON d.id IS NOT NULL AND n.event_id = g.event_id AND n.subscription_id = g.subscription_id
   AND n.generation = g.generation + 1"
        )
    };
}

pub(crate) const DELIVERIES: &str = deliveries!(
    "/* janitor.deliveries */",
    "(SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas g FORCE INDEX (uniq_saga_event_subscription) ON g.event_id = u.id"
);

/// By the unique key, from where the last page ended.
pub(crate) const PAGE: &str = deliveries!(
    "/* janitor.page */",
    "(SELECT * FROM webhook_delivery_sagas FORCE INDEX (uniq_saga_event_subscription)
      WHERE event_id = ? AND subscription_id >= ? AND (subscription_id > ? OR generation > ?)
      ORDER BY event_id, subscription_id, generation LIMIT ?) g"
);

/// The columns of an attempt in the order in which the reader has them; then its saga.
pub(crate) const ATTEMPTS: &str = "/* janitor.attempts */
SELECT j.id, j.attempt_at, j.status, j.response_status, j.error_code, j.duration_ms, j.response_excerpt, j.lease_resets,
       j.started_at, j.callback_url, j.retry_at, j.saga_id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (uniq_job_saga_attempt) ON j.saga_id = u.id";

pub(super) async fn events(mut connection: Conn, events: &[EventId]) -> DbResult<Vec<ArchivedEvent>> {
    let mut found = Vec::with_capacity(events.len());
    for document in Batch::ids(events.iter().map(|id| id.0)) {
        let read: Vec<Row> = connection.exec(EVENTS, (document,)).await?;
        for mut row in read {
            let row = &mut row;
            found.push(ArchivedEvent {
                id: EventId(take(row, 0)?),
                tenant: take(row, 1)?,
                event_type: take(row, 2)?,
                external_id: take(row, 3)?,
                correlation_id: take(row, 4)?,
                created_at: take::<SqlTime>(row, 5)?.0,
                payload: Arc::from(take::<String>(row, 6)?),
            });
        }
    }
    found.sort_unstable_by_key(|event| event.id);
    Ok(found)
}

pub(super) async fn deliveries(mut connection: Conn, events: &[EventId]) -> DbResult<Vec<ArchivedDelivery>> {
    let mut found = Vec::new();
    for document in Batch::ids(events.iter().map(|id| id.0)) {
        let read: Vec<Row> = connection.exec(DELIVERIES, (document,)).await?;
        found.extend(read);
    }
    with_attempts(connection, found).await
}

pub(super) async fn page(mut connection: Conn, part: EventPart) -> DbResult<Vec<ArchivedDelivery>> {
    let (subscription, generation) = part.behind();
    let values = (part.event.0, subscription, subscription, generation, part.limit);
    let read: Vec<Row> = connection.exec(PAGE, values).await?;
    with_attempts(connection, read).await
}

async fn with_attempts(mut connection: Conn, rows: Vec<Row>) -> DbResult<Vec<ArchivedDelivery>> {
    let mut deliveries = rows.into_iter().map(delivery).collect::<DbResult<Vec<_>>>()?;
    deliveries.sort_unstable_by_key(|one| (one.event_id, one.subscription_id, one.generation));

    let mut attempts = Vec::new();
    for document in Batch::ids(deliveries.iter().map(|delivery| delivery.saga_id.0)) {
        let read: Vec<Row> = connection.exec(ATTEMPTS, (document,)).await?;
        for mut row in read {
            let saga = SagaId(take(&mut row, 11)?);
            attempts.push((saga, attempt(row)?));
        }
    }
    ArchivedDelivery::take_attempts(&mut deliveries, attempts);
    Ok(deliveries)
}

/// Without its attempts.
fn delivery(mut row: Row) -> DbResult<ArchivedDelivery> {
    let row = &mut row;
    let letter = take::<Option<i64>>(row, 11)?.map(DeadLetterId);
    Ok(ArchivedDelivery {
        saga_id: SagaId(take(row, 0)?),
        event_id: EventId(take(row, 1)?),
        subscription_id: SubscriptionId(take(row, 2)?),
        callback_url: take(row, 3)?,
        generation: natural(take(row, 4)?),
        status: parsed(&take::<String>(row, 5)?)?,
        attempt_count: natural(take(row, 6)?),
        max_retry_limit: natural(take(row, 7)?),
        final_error_code: take::<Option<String>>(row, 8)?.map(ErrorCode::from_stored),
        created_at: take::<SqlTime>(row, 9)?.0,
        updated_at: take::<SqlTime>(row, 10)?.0,
        attempts: Vec::new(),
        dead_letter: match letter {
            Some(id) => Some(ArchivedLetter {
                id,
                final_error_code: ErrorCode::from_stored(take(row, 12)?),
                created_at: take::<SqlTime>(row, 13)?.0,
                requeued_saga_id: take::<Option<i64>>(row, 14)?.map(SagaId),
            }),
            None => None,
        },
    })
}
