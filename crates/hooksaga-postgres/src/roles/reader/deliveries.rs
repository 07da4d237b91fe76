//! Deliveries and their attempts.

use super::{blocks, page};
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
use hooksaga_store::{
    Attempt, BlockFilter, Delivery, DeliveryDetail, DeliveryFilter, Listing, Page, TenantScope,
};
use std::ops::Range;
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

/// Another tenant's subscription is one that does not exist, and takes no longer.
const OWN_SUBSCRIPTION: &str = "/* reader.own_subscription */
SELECT 1 FROM subscriptions WHERE id = $1 AND tenant = $2";

/// How many deliveries an event shows.
const PER_EVENT: usize = 500;

pub(super) async fn list(client: &Client, wanted: Listing<'_, DeliveryFilter>) -> DbResult<Page<Delivery>> {
    let Listing { scope, filter: wanted, page: request } = wanted;
    if let (Some(tenant), Some(id)) = (scope.tenant(), wanted.subscription_id) {
        let statement = client.prepare_cached(OWN_SUBSCRIPTION).await?;
        if client.query_opt(&statement, &[&id.0, &tenant]).await?.is_none() {
            return Ok(Page { items: Vec::new(), next: None });
        }
    }
    let filter = |ids: Range<i64>| filter_of(scope, wanted, ids, u64::from(request.limit) + 1);
    match BlockFilter::of_deliveries(scope, wanted).filter(|_| !leads_by_itself(&wanted.statuses)) {
        Some(blocks) => {
            let listed = blocks::Listed { select: SELECT, id: "s.id", read: delivery };
            blocks::page(client, listed, &blocks, request, filter).await
        }
        None => page(client, SELECT, "s.id", &filter(0..request.top()), request, delivery).await,
    }
}

/// Statuses that few sagas have at a time, or that an index has.
fn leads_by_itself(statuses: &[SagaStatus]) -> bool {
    !statuses.is_empty() && !statuses.contains(&SagaStatus::Completed)
}

/// `most`: how many rows are read of it.
fn filter_of(scope: &TenantScope, wanted: &DeliveryFilter, ids: Range<i64>, most: u64) -> Filter {
    let mut filter = Filter::new();
    filter.add("s.id >= ", ids.start);
    filter.add("s.id < ", ids.end);
    filter_statuses(&mut filter, scope, wanted, ids.end, most);
    filter.add_some("s.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    filter.add_some("s.event_id = ", wanted.event_id.map(|id| id.0));
    filter.add_scope("e.tenant = ", scope);
    filter.add_some("e.event_type = ", wanted.event_type.clone());
    filter.add_some("e.external_id = ", wanted.external_id.clone());
    filter.add_some("e.correlation_id = ", wanted.correlation_id.clone());
    filter.add_period("s.created_at", wanted.created_after, wanted.created_before);
    filter
}

/// Spelled out, so that the planner can see which partial index fits. What is not Completed is found by what leads to it:
/// the partial index, open jobs, letters. Those are few, where the sagas may be millions.
fn filter_statuses(filter: &mut Filter, scope: &TenantScope, wanted: &DeliveryFilter, top: i64, most: u64) {
    let statuses = &wanted.statuses;
    if statuses.is_empty() {
        return;
    }
    let names: Vec<String> = statuses.iter().map(|status| format!("'{status}'")).collect();
    filter.add_fixed(&format!("s.status IN ({})", names.join(", ")));
    if !leads_by_itself(statuses) || statuses.iter().all(|status| is_waiting(*status)) {
        return;
    }
    let mut sources = Vec::new();
    if statuses.iter().any(|status| is_waiting(*status)) {
        sources.push(match wanted.subscription_id {
            Some(id) => format!("{WAITING} AND w.subscription_id = {}", filter.number(id.0)),
            None => WAITING.to_owned(),
        });
    }
    if statuses.contains(&SagaStatus::InProgress) {
        sources.push(IN_PROGRESS.to_owned());
    }
    if statuses.contains(&SagaStatus::DeadLettered) {
        sources.push(dead(filter, scope, wanted, top, most));
    }
    // As an array: the planner would rather pass every saga than join these.
    filter.add_fixed(&format!("s.id = ANY (ARRAY({}))", sources.join(" UNION ALL ")));
}

const WAITING: &str =
    "SELECT w.id FROM webhook_delivery_sagas w WHERE w.status IN ('Pending', 'PendingRetry')";

/// A saga in progress has an open job, or one whose result is not applied yet.
const IN_PROGRESS: &str = "SELECT saga_id FROM webhook_delivery_jobs WHERE status IN ('Pending', 'Leased') \
                           UNION ALL SELECT saga_id FROM finished_jobs";

/// Every dead saga has its letter, or waits for it. Without another filter, the newest `most` are enough.
fn dead(filter: &mut Filter, scope: &TenantScope, wanted: &DeliveryFilter, top: i64, most: u64) -> String {
    let of_whom = match (wanted.subscription_id, scope.tenant()) {
        (Some(id), _) => format!("d.subscription_id = {}", filter.number(id.0)),
        (None, Some(tenant)) => format!(
            "d.subscription_id IN (SELECT id FROM subscriptions WHERE tenant = {})",
            filter.number(tenant.to_owned())
        ),
        (None, None) => "true".to_owned(),
    };
    let nothing_else = wanted.event_type.is_none()
        && wanted.event_id.is_none()
        && wanted.external_id.is_none()
        && wanted.correlation_id.is_none()
        && wanted.created_after.is_none()
        && wanted.created_before.is_none();
    let newest = match nothing_else {
        true => format!(" ORDER BY d.saga_id DESC LIMIT {most}"),
        false => String::new(),
    };
    let top = filter.number(top);
    format!(
        "(SELECT d.saga_id FROM dead_letters d WHERE d.saga_id < {top} AND {of_whom}{newest}) \
         UNION ALL SELECT saga_id FROM pending_dead_letters"
    )
}

fn is_waiting(status: SagaStatus) -> bool {
    matches!(status, SagaStatus::Pending | SagaStatus::PendingRetry)
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

pub(crate) fn attempt(row: &Row) -> DbResult<Attempt> {
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
