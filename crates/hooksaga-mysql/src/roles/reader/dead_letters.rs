//! Dead letters.

use super::page;
use crate::{
    error::{DbError, DbResult},
    roles::{dead_letters::filter_letters, filter::Filter, rows::take},
    time::Time,
};
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
use hooksaga_store::{DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Page, PageRequest};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::sync::Arc;

/// `successor`: the saga that a requeue made of the letter.
const SELECT: &str = "/* reader.dead_letters */
SELECT d.id, d.saga_id, d.event_id, e.event_type, d.subscription_id, d.final_error_code, d.created_at,
       successor.id
FROM dead_letters d
JOIN events e ON e.id = d.event_id
JOIN webhook_delivery_sagas s ON s.id = d.saga_id
LEFT JOIN webhook_delivery_sagas successor
    ON successor.event_id = s.event_id AND successor.subscription_id = s.subscription_id
   AND successor.generation = s.generation + 1";

const PAYLOAD: &str = "/* reader.dead_letter_payload */ SELECT payload FROM dead_letters WHERE id = ?";

pub(super) async fn list(
    mut connection: Conn,
    wanted: &DeadLetterFilter,
    request: PageRequest,
) -> DbResult<Page<DeadLetterSummary>> {
    let mut filter = Filter::new();
    filter.add_some("d.id < ", request.before);
    filter_letters(&mut filter, wanted);
    match wanted.requeued {
        Some(true) => filter.add_fixed("successor.id IS NOT NULL"),
        Some(false) => filter.add_fixed("successor.id IS NULL"),
        None => {}
    }
    page(&mut connection, SELECT, "d.id", &filter, request, summary).await
}

pub(super) async fn get(mut connection: Conn, id: DeadLetterId) -> DbResult<Option<DeadLetterDetail>> {
    let row: Option<Row> = connection.exec_first(format!("{SELECT} WHERE d.id = ?"), (id.0,)).await?;
    let Some(row) = row else { return Ok(None) };
    let payload: Option<String> = connection.exec_first(PAYLOAD, (id.0,)).await?;
    let payload = Arc::from(payload.ok_or_else(|| DbError::unreadable("a letter without its payload"))?);
    Ok(Some(DeadLetterDetail { summary: summary(row)?, payload }))
}

fn summary(mut row: Row) -> DbResult<DeadLetterSummary> {
    let row = &mut row;
    Ok(DeadLetterSummary {
        id: DeadLetterId(take(row, 0)?),
        saga_id: SagaId(take(row, 1)?),
        event_id: EventId(take(row, 2)?),
        event_type: take(row, 3)?,
        subscription_id: SubscriptionId(take(row, 4)?),
        final_error_code: ErrorCode::from_stored(take(row, 5)?),
        created_at: take::<Time>(row, 6)?.0,
        requeued_saga_id: take::<Option<i64>>(row, 7)?.map(SagaId),
    })
}
