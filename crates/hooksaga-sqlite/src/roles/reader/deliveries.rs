//! Deliveries: sagas and their attempts.

use super::blocks::{Access, Listed, Source, page};
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows},
    session::Tx,
};
use hooksaga_saga::{EventId, JobId, SagaId, SagaStatus, SubscriptionId};
use hooksaga_store::{
    Attempt, BlockFilter, Conditions as _, Delivery, DeliveryDetail, DeliveryFilter, Page, PageRequest,
    TenantScope,
};
use rusqlite::{OptionalExtension, Row, types::Value};
use std::collections::BTreeSet;

/// What [`delivery`] reads, in its order.
macro_rules! columns {
    () => {
        "g.id, g.event_id, g.subscription_id, g.generation, g.status, g.attempt_count, g.max_retry_limit, \
         g.next_attempt_at, g.final_error_code, g.created_at, g.updated_at, \
         g.status IN ('Pending', 'InProgress', 'PendingRetry') AND NOT coalesce(s.deliverable, false), \
         e.tenant, e.event_type, e.external_id, e.correlation_id, coalesce(s.callback_url, '')"
    };
}

const SELECT: &str = concat!("/* reader.deliveries */ SELECT ", columns!());
const NEWEST: &str = "/* reader.newest_saga */ SELECT max(id) FROM webhook_delivery_sagas";

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

/// For one tenant's: from its events to their sagas.
const OF_TENANT: Source = Source {
    from:
        "events AS e INDEXED BY idx_event_tenant CROSS JOIN webhook_delivery_sagas AS g ON g.event_id = e.id
           LEFT JOIN subscriptions AS s ON s.id = g.subscription_id",
    ..LIST
};

/// For one tenant's waiting sagas: from its subscriptions.
const WAITING_OF_TENANT: Source = Source {
    from: "subscriptions AS s INDEXED BY idx_sub_tenant
           CROSS JOIN webhook_delivery_sagas AS g INDEXED BY idx_saga_waiting ON g.subscription_id = s.id
           CROSS JOIN events AS e ON e.id = g.event_id",
    ..LIST
};

/// For filters that name an event: from there to its few sagas.
const BY_EVENT: Source = Source {
    from: "events AS e CROSS JOIN webhook_delivery_sagas AS g ON g.event_id = e.id
           LEFT JOIN subscriptions AS s ON s.id = g.subscription_id",
    ..LIST
};

/// A subscription of another tenant looks like one that does not exist, and takes no longer.
const OWN_SUBSCRIPTION: &str =
    "/* reader.own_subscription */ SELECT 1 FROM subscriptions WHERE id = ?1 AND tenant = ?2";

const ONE: &str = concat!(
    "/* reader.delivery */ SELECT ",
    columns!(),
    " FROM webhook_delivery_sagas AS g LEFT JOIN subscriptions AS s ON s.id = g.subscription_id
      CROSS JOIN events AS e ON e.id = g.event_id
     WHERE g.id = ?1 AND (?2 IS NULL OR e.tenant = ?2)"
);

const OF_EVENT: &str = concat!(
    "/* reader.deliveries_of_event */ SELECT ",
    columns!(),
    " FROM webhook_delivery_sagas AS g INDEXED BY uniq_saga_event_subscription
      LEFT JOIN subscriptions AS s ON s.id = g.subscription_id
      CROSS JOIN events AS e ON e.id = g.event_id
     WHERE g.event_id = ?1 ORDER BY g.id LIMIT 500"
);

const ATTEMPTS: &str = "/* reader.attempts */
SELECT id, attempt_at, status, response_status, error_code, duration_ms, response_excerpt, lease_resets,
       started_at, callback_url, retry_at
  FROM webhook_delivery_jobs WHERE saga_id = ?1 ORDER BY attempt_at";

/// Only for the deliveries of the page: as a column of the list it would be looked up for every row that is sorted.
const LAST_RESPONSE: &str = "/* reader.last_response */
SELECT response_status FROM webhook_delivery_jobs INDEXED BY uniq_job_saga_attempt
 WHERE saga_id = ?1 AND response_status IS NOT NULL ORDER BY attempt_at DESC LIMIT 1";

pub(super) fn list(
    tx: &Tx<'_>,
    scope: &TenantScope,
    filter: &DeliveryFilter,
    request: PageRequest,
) -> DbResult<Page<Delivery>> {
    if let (Some(tenant), Some(id)) = (scope.tenant(), filter.subscription_id)
        && !tx.prepare(OWN_SUBSCRIPTION)?.exists((id.0, tenant))?
    {
        return Ok(Page::empty());
    }
    let by_event =
        filter.event_id.is_some() || filter.external_id.is_some() || filter.correlation_id.is_some();
    let waiting = !filter.statuses.is_empty() && filter.statuses.iter().copied().all(is_waiting);
    let blocks = BlockFilter::of_deliveries(scope, filter).filter(|_| !leads_by_itself(&filter.statuses));
    let (source, access) = match scope {
        _ if by_event => (BY_EVENT, Access::Direct),
        TenantScope::One(_) if waiting => (WAITING_OF_TENANT, Access::RecentFirst),
        // By the heads of their letters.
        _ if filter.statuses == [SagaStatus::DeadLettered].into() => (LIST, Access::Direct),
        // What leads to them is quicker than all events of the tenant.
        TenantScope::One(_) if leads_by_itself(&filter.statuses) => (LIST, Access::RecentFirst),
        TenantScope::One(_) => (OF_TENANT, Access::RecentFirst),
        TenantScope::All if filter.statuses == [SagaStatus::Pending].into() => (WAITING, Access::RecentFirst),
        TenantScope::All => (LIST, Access::RecentFirst),
    };
    let tenant = || scope.tenant().map(str::to_owned);
    let mut filters = Filter::default();
    // `+`: where an index is to be used for the tenant, the source names it.
    filters.add_some("+e.tenant = ?", tenant());
    match source.from {
        from if from == OF_TENANT.from => filters.add_some("e.tenant = ?", tenant()),
        from if from == WAITING_OF_TENANT.from => filters.add_some("s.tenant = ?", tenant()),
        _ => {}
    }
    filters.add_some("e.id = ?", filter.event_id.map(|id| id.0));
    filters.add_text("e.external_id", filter.external_id.as_ref());
    filters.add_text("e.correlation_id", filter.correlation_id.as_ref());
    // `+`: the type's index would lead to all events of the type, and from each to its sagas.
    filters.add_text("+e.event_type", filter.event_type.as_ref());
    filters.add_some("g.subscription_id = ?", filter.subscription_id.map(|id| id.0));
    filters.add_period("g.created_at", filter.created_after, filter.created_before);
    if waiting {
        // What the condition of the partial index says, for the planner to see.
        filters.add_fixed("g.status IN ('Pending', 'PendingRetry')");
    }
    let statuses: Vec<SagaStatus> = filter.statuses.iter().copied().collect();
    match *statuses {
        [] => {}
        // What leads to them is not asked for: the event does.
        _ if by_event => add_statuses(&mut filters, &statuses),
        _ if leads_by_itself(&filter.statuses) && !waiting => {
            add_statuses(&mut filters, &statuses);
            add_sources(&mut filters, scope, filter, request);
        }
        [status] => filters.add_fixed(&format!("g.status = '{status}'")),
        _ => add_statuses(&mut filters, &statuses),
    }
    let mut page = page(
        tx,
        &Listed { source, access, filter: &filters, read: delivery, id: |it| it.saga_id.0 },
        blocks.as_ref(),
        request,
    )?;
    add_last_responses(tx, &mut page.items)?;
    Ok(page)
}

fn add_last_responses(tx: &Tx<'_>, deliveries: &mut [Delivery]) -> DbResult<()> {
    let mut last = tx.prepare(LAST_RESPONSE)?;
    for delivery in deliveries {
        delivery.last_response_status = last.query_row([delivery.saga_id.0], |row| row.get(0)).optional()?;
    }
    Ok(())
}

/// Whether a filter by these statuses is selective: few sagas have them at a time, or an index has them.
fn leads_by_itself(statuses: &BTreeSet<SagaStatus>) -> bool {
    !statuses.is_empty() && !statuses.contains(&SagaStatus::Completed)
}

fn is_waiting(status: SagaStatus) -> bool {
    matches!(status, SagaStatus::Pending | SagaStatus::PendingRetry)
}

fn add_statuses(filters: &mut Filter, statuses: &[SagaStatus]) {
    filters.add_any("g.status = ?", statuses.iter().map(|status| status.as_str().to_owned()));
}

const WAITING_IDS: &str = "SELECT w.id FROM webhook_delivery_sagas AS w INDEXED BY idx_saga_waiting
                            WHERE w.status IN ('Pending', 'PendingRetry')";

const WAITING_IDS_OF_TENANT: &str = "SELECT w.id FROM subscriptions AS o INDEXED BY idx_sub_tenant
                                      CROSS JOIN webhook_delivery_sagas AS w INDEXED BY idx_saga_waiting
                                      ON w.subscription_id = o.id
                                      WHERE o.tenant = ? AND w.status IN ('Pending', 'PendingRetry')";

/// Each saga in progress has an open job, or one whose result is not applied yet.
const IN_PROGRESS_IDS: &str =
    "SELECT saga_id FROM webhook_delivery_jobs WHERE status IN ('Pending', 'Leased')
                               UNION ALL SELECT j.saga_id FROM finished_jobs AS q
                                  CROSS JOIN webhook_delivery_jobs AS j ON j.id = q.job_id";

/// What leads to sagas with these statuses, none of which is Completed: no planner would find it.
fn add_sources(filters: &mut Filter, scope: &TenantScope, wanted: &DeliveryFilter, request: PageRequest) {
    let (mut sources, mut values) = (Vec::new(), Vec::new());
    if wanted.statuses.iter().copied().any(is_waiting) {
        sources.push(match (wanted.subscription_id, scope.tenant()) {
            (Some(id), _) => {
                values.push(id.0.into());
                format!("{WAITING_IDS} AND w.subscription_id = ?")
            }
            (None, Some(tenant)) => {
                values.push(tenant.to_owned().into());
                WAITING_IDS_OF_TENANT.to_owned()
            }
            (None, None) => WAITING_IDS.to_owned(),
        });
    }
    if wanted.statuses.contains(&SagaStatus::InProgress) {
        sources.push(IN_PROGRESS_IDS.to_owned());
    }
    if wanted.statuses.contains(&SagaStatus::DeadLettered) {
        let (heads, of_heads) = newest_dead(scope, wanted, request);
        sources.push(heads);
        values.extend(of_heads);
    }
    let condition = format!("g.id IN ({})", sources.join(" UNION ALL "));
    filters.add_with(&condition, values);
}

/// Each dead saga has its letter, by whose head it is found, or waits for it. Heads say all that they are filtered by here, so
/// that a page needs no more of them than it has rows.
fn newest_dead(scope: &TenantScope, wanted: &DeliveryFilter, request: PageRequest) -> (String, Vec<Value>) {
    let index = match (wanted.subscription_id, scope) {
        (Some(_), _) => "idx_head_dead_subscription",
        (None, TenantScope::One(_)) => "idx_head_dead",
        (None, TenantScope::All) => "idx_head_saga",
    };
    let mut heads = Filter::default();
    heads.add_some("h.saga_id < ?", Some(request.top()));
    heads.add_some("h.subscription_id = ?", wanted.subscription_id.map(|id| id.0));
    let tenant = scope.tenant().filter(|_| wanted.subscription_id.is_none());
    heads.add_text("h.tenant", tenant);
    heads.add_text("h.event_type", wanted.event_type.as_ref());
    heads.add_period("h.saga_created_at", wanted.created_after, wanted.created_before);
    let sql = format!(
        "SELECT saga_id FROM (SELECT h.saga_id FROM letter_heads AS h INDEXED BY {index} WHERE true{}
                               ORDER BY h.saga_id DESC LIMIT {})
         UNION ALL SELECT saga_id FROM pending_dead_letters",
        heads.sql(),
        i64::from(request.limit) + 1
    );
    (sql, heads.values())
}

pub(super) fn of_event(tx: &Tx<'_>, id: EventId) -> DbResult<Vec<Delivery>> {
    let mut deliveries = rows::all(tx, OF_EVENT, [id.0], delivery)?;
    add_last_responses(tx, &mut deliveries)?;
    Ok(deliveries)
}

pub(super) fn detail(tx: &Tx<'_>, scope: &TenantScope, id: SagaId) -> DbResult<Option<DeliveryDetail>> {
    let found = tx.prepare(ONE)?.query_row((id.0, scope.tenant()), delivery).optional()?;
    let Some(mut delivery) = found else {
        return Ok(None);
    };
    add_last_responses(tx, std::slice::from_mut(&mut delivery))?;
    Ok(Some(DeliveryDetail { delivery, attempts: rows::all(tx, ATTEMPTS, [id.0], attempt)? }))
}

/// The deliveries with these ids that exist.
pub(super) fn of_ids(tx: &Tx<'_>, scope: &TenantScope, ids: &[SagaId]) -> DbResult<Vec<Delivery>> {
    let mut one = tx.prepare(ONE)?;
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(one.query_row((id.0, scope.tenant()), delivery).optional()?);
    }
    add_last_responses(tx, &mut found)?;
    Ok(found)
}

/// A delivery without its last response.
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
        tenant: row.get(12)?,
        event_type: row.get(13)?,
        external_id: row.get(14)?,
        correlation_id: row.get(15)?,
        callback_url: row.get(16)?,
        last_response_status: None,
    })
}

pub(in crate::roles) fn attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    Ok(Attempt {
        job_id: JobId(row.get(0)?),
        attempt_at: rows::time(row, 1)?,
        started_at: rows::optional_time(row, 8)?,
        callback_url: row.get(9)?,
        retry_at: rows::optional_time(row, 10)?,
        status: rows::parsed(row, 2)?,
        response_status: row.get(3)?,
        error_code: rows::optional_error_code(row, 4)?,
        duration_ms: row.get(5)?,
        response_excerpt: row.get(6)?,
        lease_resets: row.get(7)?,
    })
}
