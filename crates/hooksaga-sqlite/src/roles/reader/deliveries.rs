//! Deliveries: sagas and their attempts.

use super::list::{Access, Source, page};
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows},
    session::Tx,
};
use hooksaga_saga::{EventId, JobId, SagaId, SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{Attempt, Delivery, DeliveryDetail, DeliveryFilter, Page, PageRequest};
use rusqlite::{OptionalExtension, Row};

/// What [`delivery`] reads, in its order.
macro_rules! columns {
    () => {
        "g.id, g.event_id, g.subscription_id, g.generation, g.status, g.attempt_count, g.max_retry_limit, \
         g.next_attempt_at, g.final_error_code, g.created_at, g.updated_at, \
         g.status IN ('Pending', 'InProgress', 'PendingRetry') AND NOT coalesce(s.active AND s.verified, false)"
    };
}

const SELECT: &str = concat!("/* api_reader: deliveries */ SELECT ", columns!());
const NEWEST: &str = "/* api_reader: newest_saga */ SELECT max(id) FROM webhook_delivery_sagas";

const LIST: Source = Source {
    select: SELECT,
    from: "webhook_delivery_sagas AS g
           LEFT JOIN subscriptions AS s ON s.id = g.subscription_id LEFT JOIN events AS e ON e.id = g.event_id",
    from_unindexed: "webhook_delivery_sagas AS g NOT INDEXED
           LEFT JOIN subscriptions AS s ON s.id = g.subscription_id LEFT JOIN events AS e ON e.id = g.event_id",
    id: "g.id",
    newest: NEWEST,
};

/// For new sagas, which are among the waiting ones. (No planner would see that by itself.)
const WAITING: Source = Source {
    from: "webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting
           LEFT JOIN subscriptions AS s ON s.id = g.subscription_id LEFT JOIN events AS e ON e.id = g.event_id",
    ..LIST
};

/// For filters that name an event: from there to its few sagas.
const BY_EVENT: Source = Source {
    from: "events AS e CROSS JOIN webhook_delivery_sagas AS g ON g.event_id = e.id
           LEFT JOIN subscriptions AS s ON s.id = g.subscription_id",
    ..LIST
};

const ONE: &str = concat!(
    "/* api_reader: delivery */ SELECT ",
    columns!(),
    " FROM webhook_delivery_sagas AS g LEFT JOIN subscriptions AS s ON s.id = g.subscription_id WHERE g.id = ?1"
);

const OF_EVENT: &str = concat!(
    "/* api_reader: deliveries_of_event */ SELECT ",
    columns!(),
    " FROM webhook_delivery_sagas AS g INDEXED BY uniq_saga_event_subscription
      LEFT JOIN subscriptions AS s ON s.id = g.subscription_id
     WHERE g.event_id = ?1 ORDER BY g.id LIMIT 500"
);

const ATTEMPTS: &str = "/* api_reader: attempts */
SELECT id, attempt_at, status, response_status, error_code, duration_ms, response_excerpt, lease_resets
  FROM webhook_delivery_jobs WHERE saga_id = ?1 ORDER BY attempt_at";

pub(super) fn list(tx: &Tx<'_>, filter: DeliveryFilter, request: PageRequest) -> DbResult<Page<Delivery>> {
    let by_event =
        filter.event_id.is_some() || filter.external_id.is_some() || filter.correlation_id.is_some();
    let mut filters = Filter::default();
    filters.add_some("e.id = ?", filter.event_id.map(|id| id.0));
    filters.add_some("e.external_id = ?", filter.external_id);
    filters.add_some("e.correlation_id = ?", filter.correlation_id);
    // `+`: the type's index would lead to all events of the type, and from each to its sagas.
    filters.add_some("+e.event_type = ?", filter.event_type);
    filters.add_some("g.subscription_id = ?", filter.subscription_id.map(|id| id.0));
    filters.add_some("g.created_at >= ?", filter.created_after.map(Timestamp::as_micros));
    filters.add_some("g.created_at < ?", filter.created_before.map(Timestamp::as_micros));
    if let Some(status) = filter.status {
        filters.add_fixed(status_condition(status));
    }
    let (source, access) = match filter.status {
        _ if by_event => (BY_EVENT, Access::Direct),
        Some(SagaStatus::Pending) => (WAITING, Access::RecentFirst),
        _ => (LIST, Access::RecentFirst),
    };
    page(tx, source, &filters, access, request, delivery, |it| it.saga_id.0)
}

/// Written so that the planner sees which partial index covers it. Dead sagas, which have none, are those
/// with a letter, stored or queued.
fn status_condition(status: SagaStatus) -> &'static str {
    match status {
        SagaStatus::Pending => "g.status IN ('Pending', 'PendingRetry') AND g.status = 'Pending'",
        SagaStatus::PendingRetry => "g.status = 'PendingRetry'",
        SagaStatus::InProgress => "g.status = 'InProgress'",
        SagaStatus::Completed => "g.status = 'Completed'",
        SagaStatus::DeadLettered => {
            "g.status = 'DeadLettered' AND g.id IN (SELECT saga_id FROM dead_letters
             UNION ALL SELECT saga_id FROM pending_dead_letters)"
        }
    }
}

pub(super) fn of_event(tx: &Tx<'_>, id: EventId) -> DbResult<Vec<Delivery>> {
    rows::all(tx, OF_EVENT, [id.0], delivery)
}

pub(super) fn detail(tx: &Tx<'_>, id: SagaId) -> DbResult<Option<DeliveryDetail>> {
    let Some(delivery) = tx.prepare(ONE)?.query_row([id.0], delivery).optional()? else {
        return Ok(None);
    };
    Ok(Some(DeliveryDetail { delivery, attempts: rows::all(tx, ATTEMPTS, [id.0], attempt)? }))
}

fn delivery(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    Ok(Delivery {
        saga_id: SagaId(row.get(0)?),
        event_id: EventId(row.get(1)?),
        subscription_id: SubscriptionId(row.get(2)?),
        generation: row.get(3)?,
        status: rows::parsed(row, 4)?,
        attempt_count: row.get(5)?,
        max_retry_limit: row.get(6)?,
        next_attempt_at: rows::time(row, 7)?,
        final_error_code: rows::optional_error_code(row, 8)?,
        created_at: rows::time(row, 9)?,
        updated_at: rows::time(row, 10)?,
        held: row.get(11)?,
    })
}

fn attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    Ok(Attempt {
        job_id: JobId(row.get(0)?),
        attempt_at: rows::time(row, 1)?,
        status: rows::parsed(row, 2)?,
        response_status: row.get(3)?,
        error_code: rows::optional_error_code(row, 4)?,
        duration_ms: row.get(5)?,
        response_excerpt: row.get(6)?,
        lease_resets: row.get(7)?,
    })
}
