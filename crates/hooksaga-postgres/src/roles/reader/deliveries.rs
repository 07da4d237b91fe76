//! Deliveries and their attempts.

use super::{blocks::Listed, page};
use crate::{
    error::DbResult,
    roles::{
        filter::Filter,
        rows::{natural, parsed},
    },
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_saga::{ErrorCode, EventId, JobId, SagaId, SagaStatus, SubscriptionId};
use hooksaga_store::{
    Attempt, BlockFilter, Conditions as _, Delivery, DeliveryDetail, DeliveryFilter, ListQuery, Page,
    TenantScope,
};
use std::{collections::BTreeSet, ops::Range};
use tokio_postgres::Row;

/// The last but five is `held`: open, and waiting for its subscription. The last response is looked up for the rows that are shown: the planner
/// puts such a column behind the LIMIT.
macro_rules! select {
    ($joins:literal) => {
        concat!(
            "/* reader.deliveries */
SELECT s.id, s.event_id, s.subscription_id, s.generation, s.status::text, s.attempt_count, s.max_retry_limit,
       s.next_attempt_at, s.final_error_code, s.created_at, s.updated_at,
       s.status IN ('Pending', 'InProgress', 'PendingRetry') AND NOT coalesce(sub.deliverable, false),
       coalesce(sub.tenant, ''), coalesce(e.event_type, ''), e.external_id, coalesce(e.correlation_id, ''),
       coalesce(sub.callback_url, ''),
       (SELECT j.response_status FROM webhook_delivery_jobs j
        WHERE j.saga_id = s.id AND j.response_status IS NOT NULL ORDER BY j.attempt_at DESC LIMIT 1)
FROM webhook_delivery_sagas s
",
            $joins
        )
    };
}

/// A filter by the event turns its outer join into a plain one.
const SELECT: &str = select!(
    "LEFT JOIN subscriptions sub ON sub.id = s.subscription_id
LEFT JOIN events e ON e.id = s.event_id"
);

/// From each saga to its event: `OFFSET 0` keeps the planner from reading all events of a tenant or a type instead. And from
/// there to the subscription, whose tenant is the event's: saying so keeps the planner from looking it up first, for sagas that
/// the filter leaves out.
const SELECT_FROM_SAGAS: &str = select!(
    "LEFT JOIN LATERAL (
    SELECT x.tenant, x.event_type, x.external_id, x.correlation_id FROM events x WHERE x.id = s.event_id OFFSET 0
) e ON true
LEFT JOIN subscriptions sub ON sub.id = s.subscription_id AND (e.tenant IS NULL OR e.tenant = sub.tenant)"
);

const ATTEMPTS: &str = "/* reader.attempts */
SELECT id, attempt_at, status::text, response_status, error_code, duration_ms, response_excerpt, lease_resets,
       started_at, callback_url, retry_at
FROM webhook_delivery_jobs WHERE saga_id = $1 ORDER BY attempt_at";

/// A subscription of another tenant looks like one that does not exist, and takes no longer.
const OWN_SUBSCRIPTION: &str = "/* reader.own_subscription */
SELECT 1 FROM subscriptions WHERE id = $1 AND tenant = $2";

/// Whether little of a tenant waits.
const WAITING_OF_TENANT: &str = "/* reader.waiting_of_tenant */
SELECT count(*) <= 10000 FROM (
    SELECT FROM subscriptions o CROSS JOIN LATERAL (
        SELECT FROM webhook_delivery_sagas w
        WHERE w.subscription_id = o.id AND w.status IN ('Pending', 'PendingRetry') LIMIT 10001
    ) w
    WHERE o.tenant = $1 LIMIT 10001
) counted";

/// The same of all.
const WAITING_OF_ALL: &str = "/* reader.waiting_of_all */
SELECT count(*) <= 20000 FROM (
    SELECT FROM webhook_delivery_sagas w WHERE w.status IN ('Pending', 'PendingRetry') LIMIT 20001
) counted";

/// How many deliveries an event shows.
const PER_EVENT: usize = 500;

pub(super) async fn list(client: &Client, wanted: ListQuery<'_, DeliveryFilter>) -> DbResult<Page<Delivery>> {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    if let (Some(tenant), Some(id)) = (scope.tenant(), wanted.subscription_id) {
        let statement = client.prepare_cached(OWN_SUBSCRIPTION).await?;
        if client.query_opt(&statement, &[&id.0, &tenant]).await?.is_none() {
            return Ok(Page::empty());
        }
    }
    let waiting = match Waiting::of(scope, wanted) {
        Some(waiting) if waiting.is_little(client).await? => Some(waiting),
        _ => None,
    };
    let filter = |ids: Range<i64>| filter_of(scope, wanted, ids, u64::from(request.limit) + 1, waiting);
    match BlockFilter::of_deliveries(scope, wanted).filter(|_| !leads_by_itself(&wanted.statuses)) {
        Some(blocks) => {
            let listed =
                Listed { select: SELECT_FROM_SAGAS, id: "s.id", row: delivery, filter, blocks: &blocks };
            listed.page(client, request).await
        }
        None => page(client, select(wanted), "s.id", &filter(0..request.top()), request, delivery).await,
    }
}

/// The statement of a first page where no block leads to it; how many rows is its last parameter.
#[cfg(feature = "test-support")]
pub(crate) fn page_of(scope: &TenantScope, wanted: &DeliveryFilter, most: u32) -> (String, Filter) {
    let waiting = Waiting::of(scope, wanted);
    let mut filter = filter_of(scope, wanted, 0..i64::MAX, u64::from(most), waiting);
    let sql = super::newest(select(wanted), "s.id", &filter);
    filter.number(i64::from(most));
    (sql, filter)
}

const fn select(wanted: &DeliveryFilter) -> &'static str {
    if by_event(wanted) { SELECT } else { SELECT_FROM_SAGAS }
}

/// Whether a filter by these statuses is selective: few sagas have them at a time, or an index has them.
fn leads_by_itself(statuses: &BTreeSet<SagaStatus>) -> bool {
    !statuses.is_empty() && !statuses.contains(&SagaStatus::Completed)
}

/// What waits, of a tenant or of all: its page is found among that where it is little. Who has much has some of it among the
/// newest.
#[derive(Clone, Copy)]
enum Waiting<'a> {
    OfTenant(&'a str),
    OfAll,
}

impl<'a> Waiting<'a> {
    /// If what waits is asked for, and nothing that is Completed. (What waits of a subscription has an index.)
    fn of(scope: &'a TenantScope, wanted: &DeliveryFilter) -> Option<Self> {
        let waits =
            leads_by_itself(&wanted.statuses) && wanted.statuses.iter().any(|status| is_waiting(*status));
        let waiting = scope.tenant().map_or(Self::OfAll, Self::OfTenant);
        (waits && wanted.subscription_id.is_none() && !by_event(wanted)).then_some(waiting)
    }

    async fn is_little(self, client: &Client) -> DbResult<bool> {
        let row = match self {
            Self::OfTenant(tenant) => {
                let statement = client.prepare_cached(WAITING_OF_TENANT).await?;
                client.query_one(&statement, &[&tenant]).await?
            }
            Self::OfAll => {
                let statement = client.prepare_cached(WAITING_OF_ALL).await?;
                client.query_one(&statement, &[]).await?
            }
        };
        Ok(row.try_get(0)?)
    }

    /// The newest `most` of it.
    fn newest(self, filter: &mut Filter, wanted: &DeliveryFilter, top: i64, most: u64) -> String {
        let waiting = wanted.statuses.iter().filter(|status| is_waiting(**status));
        let names: Vec<String> = waiting.map(|status| format!("'{status}'")).collect();
        let mut conditions = vec![format!("w.id < {}", filter.number(top))];
        conditions.extend(period(filter, "w.created_at", wanted));
        let mut events = String::new();
        if let Some(event_type) = &wanted.event_type {
            events.push_str(" JOIN events x ON x.id = w.event_id");
            conditions.push(format!("x.event_type = {}", filter.number(event_type.to_string())));
        }
        let sagas = format!(
            "SELECT w.id, w.event_id, w.created_at FROM webhook_delivery_sagas w \
             WHERE w.status IN ({}) AND w.status IN ('Pending', 'PendingRetry')",
            names.join(", ")
        );
        // `OFFSET 0`: else the planner may read the sagas in the order of their ids, all that are newer included.
        let from = match self {
            Self::OfTenant(tenant) => {
                conditions.push(format!("o.tenant = {}", filter.number(tenant.to_owned())));
                format!(
                    "subscriptions o CROSS JOIN LATERAL ({sagas} AND w.subscription_id = o.id OFFSET 0) w"
                )
            }
            Self::OfAll => format!("({sagas} OFFSET 0) w"),
        };
        let most = filter.number(i64::try_from(most).unwrap_or(i64::MAX));
        format!(
            "(SELECT w.id FROM {from}{events} WHERE {} ORDER BY w.id DESC LIMIT {most})",
            conditions.join(" AND ")
        )
    }
}

/// The event leads to its few sagas.
const fn by_event(wanted: &DeliveryFilter) -> bool {
    wanted.event_id.is_some() || wanted.external_id.is_some() || wanted.correlation_id.is_some()
}

/// `most`: how many rows are read of it. `waiting`: what waits, if that is little.
fn filter_of(
    scope: &TenantScope,
    wanted: &DeliveryFilter,
    ids: Range<i64>,
    most: u64,
    waiting: Option<Waiting<'_>>,
) -> Filter {
    let mut filter = Filter::new();
    filter.add("s.id >= ", ids.start);
    filter.add("s.id < ", ids.end);
    filter_statuses(&mut filter, scope, wanted, waiting, ids.end, most);
    filter.add_some("s.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    filter.add_some("s.event_id = ", wanted.event_id.map(|id| id.0));
    wanted.add_event_to(scope, &mut filter);
    filter
}

/// Spelled out, so that the planner can see which partial index fits. What is not Completed is found by what leads to it:
/// the partial index, open jobs, letters. Those are few, where the sagas may be millions.
fn filter_statuses(
    filter: &mut Filter,
    scope: &TenantScope,
    wanted: &DeliveryFilter,
    waiting: Option<Waiting<'_>>,
    top: i64,
    most: u64,
) {
    let statuses = &wanted.statuses;
    if statuses.is_empty() {
        return;
    }
    let names: Vec<String> = statuses.iter().map(|status| format!("'{status}'")).collect();
    filter.add_fixed(&format!("s.status IN ({})", names.join(", ")));
    let only_waiting = waiting.is_none() && statuses.iter().all(|status| is_waiting(*status));
    if by_event(wanted) || !leads_by_itself(statuses) || only_waiting {
        return;
    }
    let mut sources = Vec::new();
    if statuses.iter().any(|status| is_waiting(*status)) {
        sources.push(match (waiting, wanted.subscription_id) {
            (Some(waiting), _) => waiting.newest(filter, wanted, top, most),
            (None, Some(id)) => format!("{WAITING_IDS} AND w.subscription_id = {}", filter.number(id.0)),
            (None, None) => WAITING_IDS.to_owned(),
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

const WAITING_IDS: &str =
    "SELECT w.id FROM webhook_delivery_sagas w WHERE w.status IN ('Pending', 'PendingRetry')";

/// A saga in progress has an open job, or one whose result is not applied yet.
const IN_PROGRESS: &str = "SELECT saga_id FROM webhook_delivery_jobs WHERE status IN ('Pending', 'Leased') \
                           UNION ALL SELECT saga_id FROM finished_jobs";

/// Every dead saga has its letter, by whose head it is found, or waits for it. Heads say all that they are filtered by here, so
/// that the newest `most` are enough.
fn dead(filter: &mut Filter, scope: &TenantScope, wanted: &DeliveryFilter, top: i64, most: u64) -> String {
    let leading = match (wanted.subscription_id, scope.tenant()) {
        (Some(id), _) => Some(("d.subscription_id", filter.number(id.0))),
        (None, Some(tenant)) => Some(("d.tenant", filter.number(tenant.to_owned()))),
        (None, None) => None,
    };
    let (condition, order) = filter.range("d.saga_id", leading.as_ref(), 0..top);
    let mut conditions = vec![condition];
    if let Some(event_type) = &wanted.event_type {
        conditions.push(format!("d.event_type = {}", filter.number(event_type.to_string())));
    }
    conditions.extend(period(filter, "d.saga_created_at", wanted));
    let most = filter.number(i64::try_from(most).unwrap_or(i64::MAX));
    format!(
        "(SELECT d.saga_id FROM letter_heads d WHERE {} ORDER BY {order} LIMIT {most}) \
         UNION ALL SELECT saga_id FROM pending_dead_letters",
        conditions.join(" AND ")
    )
}

/// `column` within the times that are asked for.
fn period(filter: &mut Filter, column: &str, wanted: &DeliveryFilter) -> Vec<String> {
    let times = [(">=", wanted.created_after), ("<", wanted.created_before)];
    let given = times.into_iter().filter_map(|(comparison, time)| Some((comparison, time?)));
    given
        .map(|(comparison, time)| format!("{column} {comparison} {}", filter.number(SqlTime(time))))
        .collect()
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

/// The deliveries with these ids that exist.
pub(super) async fn of_ids(client: &Client, scope: &TenantScope, ids: &[SagaId]) -> DbResult<Vec<Delivery>> {
    let sql = format!("{SELECT} WHERE s.id = ANY($1) AND ($2::text IS NULL OR sub.tenant = $2)");
    let statement = client.prepare_cached(&sql).await?;
    let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
    client.query(&statement, &[&ids, &scope.tenant()]).await?.iter().map(delivery).collect()
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
        next_attempt_at: row.try_get::<_, SqlTime>(7)?.0,
        final_error_code: row.try_get::<_, Option<String>>(8)?.map(ErrorCode::from_stored),
        created_at: row.try_get::<_, SqlTime>(9)?.0,
        updated_at: row.try_get::<_, SqlTime>(10)?.0,
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
        attempt_at: row.try_get::<_, SqlTime>(1)?.0,
        started_at: row.try_get::<_, Option<SqlTime>>(8)?.map(|time| time.0),
        callback_url: row.try_get(9)?,
        retry_at: row.try_get::<_, Option<SqlTime>>(10)?.map(|time| time.0),
        status: parsed(row.try_get(2)?)?,
        response_status: status(row, 3)?,
        error_code: row.try_get::<_, Option<String>>(4)?.map(ErrorCode::from_stored),
        duration_ms: row.try_get::<_, Option<i32>>(5)?.map(natural),
        response_excerpt: row.try_get(6)?,
        lease_resets: natural(row.try_get(7)?),
    })
}
