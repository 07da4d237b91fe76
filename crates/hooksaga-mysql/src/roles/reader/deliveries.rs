//! Deliveries and their attempts.

use super::page;
use crate::{
    error::DbResult,
    roles::{
        filter::Filter,
        rows::{natural, parsed, take},
    },
    time::Time,
};
use hooksaga_saga::{ErrorCode, EventId, JobId, SagaId, SagaStatus, SubscriptionId};
use hooksaga_store::{Attempt, Delivery, DeliveryDetail, DeliveryFilter, Page, PageRequest};
use mysql_async::{Conn, Row, prelude::Queryable as _};

/// Open, and waiting for its subscription: `held`.
const SELECT: &str = "/* reader.deliveries */
SELECT s.id, s.event_id, s.subscription_id, s.generation, s.status, s.attempt_count, s.max_retry_limit,
       s.next_attempt_at, s.final_error_code, s.created_at, s.updated_at,
       s.status IN ('Pending', 'InProgress', 'PendingRetry') AND NOT COALESCE(sub.active AND sub.verified, FALSE)
FROM webhook_delivery_sagas s
LEFT JOIN subscriptions sub ON sub.id = s.subscription_id";

const ATTEMPTS: &str = "/* reader.attempts */
SELECT id, attempt_at, status, response_status, error_code, duration_ms, response_excerpt, lease_resets
FROM webhook_delivery_jobs WHERE saga_id = ? ORDER BY attempt_at";

/// How many deliveries an event shows.
const PER_EVENT: usize = 500;

pub(super) async fn list(
    mut connection: Conn,
    wanted: &DeliveryFilter,
    request: PageRequest,
) -> DbResult<Page<Delivery>> {
    let mut filter = Filter::new();
    filter.add_some("s.id < ", request.before);
    filter.add_some("s.status = ", wanted.status.map(SagaStatus::as_str));
    filter.add_some("s.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    filter.add_some("s.event_id = ", wanted.event_id.map(|id| id.0));
    filter.add_some("e.event_type = ", wanted.event_type.as_deref());
    filter.add_some("e.external_id = ", wanted.external_id.as_deref());
    filter.add_some("e.correlation_id = ", wanted.correlation_id.as_deref());
    filter.add_some("s.created_at >= ", wanted.created_after.map(Time));
    filter.add_some("s.created_at < ", wanted.created_before.map(Time));
    let of_event = [&wanted.event_type, &wanted.external_id, &wanted.correlation_id];
    let select = if of_event.iter().any(|filter| filter.is_some()) {
        format!("{SELECT} JOIN events e ON e.id = s.event_id")
    } else {
        SELECT.to_owned()
    };
    page(&mut connection, &select, "s.id", &filter, request, delivery).await
}

pub(super) async fn get(mut connection: Conn, id: SagaId) -> DbResult<Option<DeliveryDetail>> {
    let row: Option<Row> = connection.exec_first(format!("{SELECT} WHERE s.id = ?"), (id.0,)).await?;
    let Some(row) = row else { return Ok(None) };
    let attempts: Vec<Row> = connection.exec(ATTEMPTS, (id.0,)).await?;
    Ok(Some(DeliveryDetail {
        delivery: delivery(row)?,
        attempts: attempts.into_iter().map(attempt).collect::<Result<_, _>>()?,
    }))
}

/// An event's deliveries, oldest first.
pub(super) async fn of_event(connection: &mut Conn, id: EventId) -> DbResult<Vec<Delivery>> {
    let sql = format!("{SELECT} WHERE s.event_id = ? ORDER BY s.id LIMIT {PER_EVENT}");
    let rows: Vec<Row> = connection.exec(sql, (id.0,)).await?;
    rows.into_iter().map(delivery).collect()
}

fn delivery(mut row: Row) -> DbResult<Delivery> {
    let row = &mut row;
    Ok(Delivery {
        saga_id: SagaId(take(row, 0)?),
        event_id: EventId(take(row, 1)?),
        subscription_id: SubscriptionId(take(row, 2)?),
        generation: natural(take(row, 3)?),
        status: parsed(&take::<String>(row, 4)?)?,
        attempt_count: natural(take(row, 5)?),
        max_retry_limit: natural(take(row, 6)?),
        next_attempt_at: take::<Time>(row, 7)?.0,
        final_error_code: take::<Option<String>>(row, 8)?.map(ErrorCode::from_stored),
        created_at: take::<Time>(row, 9)?.0,
        updated_at: take::<Time>(row, 10)?.0,
        held: take(row, 11)?,
    })
}

fn attempt(mut row: Row) -> DbResult<Attempt> {
    let row = &mut row;
    Ok(Attempt {
        job_id: JobId(take(row, 0)?),
        attempt_at: take::<Time>(row, 1)?.0,
        status: parsed(&take::<String>(row, 2)?)?,
        response_status: take::<Option<i64>>(row, 3)?.and_then(|status| u16::try_from(status).ok()),
        error_code: take::<Option<String>>(row, 4)?.map(ErrorCode::from_stored),
        duration_ms: take::<Option<i64>>(row, 5)?.map(natural),
        response_excerpt: take(row, 6)?,
        lease_resets: natural(take(row, 7)?),
    })
}
