//! Deliveries and their attempts.

use super::page;
use crate::{
    error::DbResult,
    roles::{
        filter::Filter,
        rows::{natural, parsed},
    },
    time::Time,
};
use deadpool_postgres::Client;
use hooksaga_saga::{ErrorCode, EventId, JobId, SagaId, SagaStatus, SubscriptionId};
use hooksaga_store::{Attempt, Delivery, DeliveryDetail, DeliveryFilter, Page, PageRequest, TenantScope};
use tokio_postgres::Row;

/// Open, and waiting for its subscription: `held`. The last response is looked up for the rows that are shown: the planner
/// puts such a column behind the LIMIT. A filter by the event turns its outer join into a plain one.
const SELECT: &str = "/* reader.deliveries */
SELECT s.id, s.event_id, s.subscription_id, s.generation, s.status::text, s.attempt_count, s.max_retry_limit,
       s.next_attempt_at, s.final_error_code, s.created_at, s.updated_at,
       s.status IN ('Pending', 'InProgress', 'PendingRetry') AND NOT coalesce(sub.deliverable, false),
       coalesce(sub.tenant, ''), coalesce(e.event_type, ''), e.external_id, coalesce(e.correlation_id, ''),
       coalesce(sub.callback_url, ''),
       (SELECT j.response_status FROM webhook_delivery_jobs j
        WHERE j.saga_id = s.id AND j.response_status IS NOT NULL ORDER BY j.attempt_at DESC LIMIT 1)
FROM webhook_delivery_sagas s
LEFT JOIN subscriptions sub ON sub.id = s.subscription_id
LEFT JOIN events e ON e.id = s.event_id";

const ATTEMPTS: &str = "/* reader.attempts */
SELECT id, attempt_at, status::text, response_status, error_code, duration_ms, response_excerpt, lease_resets,
       started_at, callback_url
FROM webhook_delivery_jobs WHERE saga_id = $1 ORDER BY attempt_at";

/// How many deliveries an event shows.
const PER_EVENT: usize = 500;

pub(super) async fn list(
    client: &Client,
    scope: &TenantScope,
    wanted: &DeliveryFilter,
    request: PageRequest,
) -> DbResult<Page<Delivery>> {
    let mut filter = Filter::new();
    filter.add_some("s.id < ", request.before);
    filter_statuses(&mut filter, &wanted.statuses);
    filter.add_some("s.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    filter.add_some("s.event_id = ", wanted.event_id.map(|id| id.0));
    // A tenant's deliveries are found by its events: their index has the tenant first.
    filter.add_scope("e.tenant = ", scope);
    filter.add_some("e.event_type = ", wanted.event_type.clone());
    filter.add_some("e.external_id = ", wanted.external_id.clone());
    filter.add_some("e.correlation_id = ", wanted.correlation_id.clone());
    filter.add_some("s.created_at >= ", wanted.created_after.map(Time));
    filter.add_some("s.created_at < ", wanted.created_before.map(Time));
    page(client, SELECT, "s.id", &filter, request, delivery).await
}

/// Spelled out, so that the planner can see which partial index fits.
fn filter_statuses(filter: &mut Filter, statuses: &[SagaStatus]) {
    match statuses {
        [] => {}
        // Every dead saga has its letter, or waits for it: few ids, where the sagas may be millions.
        [SagaStatus::DeadLettered] => filter.add_fixed(
            "s.status = 'DeadLettered' AND s.id IN (SELECT saga_id FROM dead_letters \
             UNION ALL SELECT saga_id FROM pending_dead_letters)",
        ),
        statuses => {
            let names: Vec<String> = statuses.iter().map(|status| format!("'{status}'")).collect();
            filter.add_fixed(&format!("s.status IN ({})", names.join(", ")));
        }
    }
}

pub(super) async fn get(
    client: &Client,
    scope: &TenantScope,
    id: SagaId,
) -> DbResult<Option<DeliveryDetail>> {
    let sql = format!("{SELECT} WHERE s.id = $1 AND ($2::text IS NULL OR sub.tenant = $2)");
    let statement = client.prepare_cached(&sql).await?;
    let row = client.query_opt(&statement, &[&id.0, &scope.tenant()]).await?;
    let Some(row) = row else { return Ok(None) };
    let statement = client.prepare_cached(ATTEMPTS).await?;
    let attempts = client.query(&statement, &[&id.0]).await?;
    Ok(Some(DeliveryDetail {
        delivery: delivery(&row)?,
        attempts: attempts.iter().map(attempt).collect::<Result<_, _>>()?,
    }))
}

/// An event's deliveries, oldest first.
pub(super) async fn of_event(client: &Client, id: EventId) -> DbResult<Vec<Delivery>> {
    let sql = format!("{SELECT} WHERE s.event_id = $1 ORDER BY s.id LIMIT {PER_EVENT}");
    let statement = client.prepare_cached(&sql).await?;
    client.query(&statement, &[&id.0]).await?.iter().map(delivery).collect()
}

fn delivery(row: &Row) -> DbResult<Delivery> {
    Ok(Delivery {
        saga_id: SagaId(row.try_get(0)?),
        tenant: row.try_get(12)?,
        event_id: EventId(row.try_get(1)?),
        subscription_id: SubscriptionId(row.try_get(2)?),
        generation: natural(row.try_get(3)?),
        status: parsed(row.try_get(4)?)?,
        attempt_count: natural(row.try_get(5)?),
        max_retry_limit: natural(row.try_get(6)?),
        next_attempt_at: row.try_get::<_, Time>(7)?.0,
        final_error_code: row.try_get::<_, Option<String>>(8)?.map(ErrorCode::from_stored),
        created_at: row.try_get::<_, Time>(9)?.0,
        updated_at: row.try_get::<_, Time>(10)?.0,
        held: row.try_get(11)?,
        event_type: row.try_get(13)?,
        external_id: row.try_get(14)?,
        correlation_id: row.try_get(15)?,
        callback_url: row.try_get(16)?,
        last_response_status: status(row, 17)?,
    })
}

fn status(row: &Row, column: usize) -> DbResult<Option<u16>> {
    Ok(row.try_get::<_, Option<i32>>(column)?.and_then(|status| u16::try_from(status).ok()))
}

fn attempt(row: &Row) -> DbResult<Attempt> {
    Ok(Attempt {
        job_id: JobId(row.try_get(0)?),
        attempt_at: row.try_get::<_, Time>(1)?.0,
        started_at: row.try_get::<_, Option<Time>>(8)?.map(|time| time.0),
        callback_url: row.try_get(9)?,
        status: parsed(row.try_get(2)?)?,
        response_status: status(row, 3)?,
        error_code: row.try_get::<_, Option<String>>(4)?.map(ErrorCode::from_stored),
        duration_ms: row.try_get::<_, Option<i32>>(5)?.map(natural),
        response_excerpt: row.try_get(6)?,
        lease_resets: natural(row.try_get(7)?),
    })
}
