//! Deliveries and their attempts.

use super::{blocks::Listed, events::has_few_events, page};
use crate::{
    error::DbResult,
    roles::{
        batch::Batch,
        filter::Filter,
        rows::{natural, parsed, take},
    },
    time::SqlTime,
};
use hooksaga_saga::{ErrorCode, EventId, JobId, SagaId, SagaStatus, SubscriptionId};
use hooksaga_store::{
    Attempt, BlockFilter, Conditions as _, Delivery, DeliveryDetail, DeliveryFilter, ListQuery, Page,
    TenantScope,
};
use mysql_async::{Conn, Params, Row, Value, prelude::Queryable as _};
use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
};

/// The expression is `held`: the delivery is open, and waits for its subscription.
const COLUMNS: &str = "/* reader.deliveries */
SELECT s.id, s.event_id, s.subscription_id, s.generation, s.status, s.attempt_count, s.max_retry_limit,
       s.next_attempt_at, s.final_error_code, s.created_at, s.updated_at,
       s.status IN ('Pending', 'InProgress', 'PendingRetry') AND NOT COALESCE(sub.deliverable, FALSE),
       e.tenant, e.event_type, e.external_id, e.correlation_id, COALESCE(sub.callback_url, '')
FROM ";
/// Scans sagas in the order of their ids.
const SAGAS: &str =
    "webhook_delivery_sagas s STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id";
/// Reads a range of ids.
const SAGAS_BY_ID: &str = "webhook_delivery_sagas s FORCE INDEX (PRIMARY) STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id";
/// Reads the sagas with these ids (`d`), in the order of the ids.
const SAGAS_OF: &str = "d
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = d.saga_id
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id";

/// The ids that a caller passes.
const GIVEN_IDS: &str = "(SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (saga_id BIGINT PATH '$[0]')) AS t)";

/// Finds waiting sagas if there are few, and sagas in progress, of which there are never many.
const BY_STATUS: &str = "webhook_delivery_sagas s FORCE INDEX (idx_saga_status_retry)";
/// Finds the waiting sagas of a subscription, or of a tenant by its subscriptions.
const WAITING_OF_SUBSCRIPTION: &str = "webhook_delivery_sagas s FORCE INDEX (idx_saga_waiting)";
const WAITING_OF_TENANT: &str = "subscriptions sub FORCE INDEX (idx_sub_tenant)
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (idx_saga_waiting) ON s.waiting_subscription_id = sub.id";
/// Joined for a filter by tenant, and for one by type.
const WITH_SUBSCRIPTION: &str =
    " STRAIGHT_JOIN subscriptions sub FORCE INDEX (PRIMARY) ON sub.id = s.subscription_id";
const WITH_EVENT: &str = " STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id";

/// Counts up to the limit only.
const TENANT_HAS_FEW_WAITING: &str = "/* reader.waiting_of_tenant */
SELECT COUNT(*) <= 10000
FROM (SELECT 1 FROM subscriptions sub FORCE INDEX (idx_sub_tenant)
      STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (idx_saga_waiting) ON s.waiting_subscription_id = sub.id
      WHERE sub.tenant = ? LIMIT 10001) counted";

const SUBSCRIPTION_HAS_FEW_WAITING: &str = "/* reader.waiting_of_subscription */
SELECT COUNT(*) <= 10000
FROM (SELECT 1 FROM webhook_delivery_sagas FORCE INDEX (idx_saga_waiting)
      WHERE waiting_subscription_id = ? LIMIT 10001) counted";

/// Counts up to the limit only.
const FEW_WAITING: &str = "/* reader.waiting_sagas */
SELECT COUNT(*) <= 20000
FROM (SELECT 1 FROM webhook_delivery_sagas FORCE INDEX (idx_saga_status_retry)
      WHERE status IN ('Pending', 'PendingRetry') LIMIT 20001) counted";

/// For a filter by columns of the event: the server chooses the plan.
const SAGAS_OF_EVENTS: &str = "webhook_delivery_sagas s JOIN events e ON e.id = s.event_id";
/// For a tenant with few events.
const SAGAS_OF_TENANT: &str = "events e FORCE INDEX (idx_event_tenant)
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (uniq_saga_event_subscription) ON s.event_id = e.id";
const SUBSCRIPTION: &str = "
LEFT JOIN subscriptions sub ON sub.id = s.subscription_id";

const ATTEMPTS: &str = "/* reader.attempts */
SELECT id, attempt_at, status, response_status, error_code, duration_ms, response_excerpt, lease_resets,
       started_at, callback_url, retry_at
FROM webhook_delivery_jobs WHERE saga_id = ? ORDER BY attempt_at";

/// Only for the deliveries of the page: as a column of the list it would be looked up for every row that is sorted.
const LAST_RESPONSES: &str = "/* reader.last_responses */
SELECT u.id, (SELECT j.response_status FROM webhook_delivery_jobs j FORCE INDEX (uniq_job_saga_attempt)
              WHERE j.saga_id = u.id AND j.response_status IS NOT NULL ORDER BY j.attempt_at DESC LIMIT 1)
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u";

/// A subscription of another tenant looks like one that does not exist, and takes no longer.
const OWN_SUBSCRIPTION: &str = "/* reader.own_subscription */
SELECT id FROM subscriptions WHERE id = ? AND tenant = ?";

/// How many deliveries an event shows.
const PER_EVENT: usize = 500;

pub(super) async fn list(
    mut connection: Conn,
    listing: ListQuery<'_, DeliveryFilter>,
) -> DbResult<Page<Delivery>> {
    let ListQuery { scope, filter: wanted, page: request } = listing;
    if let (Some(tenant), Some(id)) = (scope.tenant(), wanted.subscription_id) {
        let own: Option<i64> = connection.exec_first(OWN_SUBSCRIPTION, (id.0, tenant)).await?;
        if own.is_none() {
            return Ok(Page::empty());
        }
    }
    let filter = |ids: Range<i64>| filter_of(scope, wanted, ids);
    let of_events = wanted.external_id.is_some() || wanted.correlation_id.is_some();
    let of_event = of_events || wanted.event_id.is_some();
    if leads_by_itself(&wanted.statuses)
        && !of_event
        && let Some(ids) = ids_by_status(&mut connection, listing).await?
    {
        let mut page = of_ids(&mut connection, ids, listing).await?;
        add_last_responses(&mut connection, &mut page.items).await?;
        return Ok(page);
    }
    let from = match scope.tenant() {
        _ if of_events => SAGAS_OF_EVENTS,
        _ if wanted.event_id.is_some() => SAGAS,
        Some(tenant) if has_few_events(&mut connection, tenant).await? => SAGAS_OF_TENANT,
        _ if wanted.event_type.is_some() => SAGAS_OF_EVENTS,
        _ => SAGAS,
    };
    let select = format!("{COLUMNS}{from}{SUBSCRIPTION}");
    let mut page = match BlockFilter::of_deliveries(scope, wanted) {
        Some(blocks) if !leads_by_itself(&wanted.statuses) => {
            let select_range = format!("{COLUMNS}{SAGAS_BY_ID}{SUBSCRIPTION}");
            let listed = Listed {
                select: &select,
                select_range: &select_range,
                id: "s.id",
                row: delivery,
                filter,
                blocks: &blocks,
            };
            listed.page(&mut connection, request).await?
        }
        _ => page(&mut connection, &select, "s.id", &filter(0..request.top()), request, delivery).await?,
    };
    add_last_responses(&mut connection, &mut page.items).await?;
    Ok(page)
}

/// Whether a filter by these statuses is selective: few sagas have them at a time, or an index has them.
fn leads_by_itself(statuses: &BTreeSet<SagaStatus>) -> bool {
    !statuses.is_empty() && !statuses.contains(&SagaStatus::Completed)
}

/// Statements that find the ids of a page. They are parts of one statement, which sees each saga with one status only.
#[derive(Default)]
struct Ids {
    statements: Vec<String>,
    parameters: Vec<Value>,
}

impl Ids {
    fn add(&mut self, statement: String, parameters: &Filter) {
        self.statements.push(statement);
        self.parameters.extend_from_slice(parameters.values());
    }

    /// The newest sagas with these statuses.
    fn add_sagas(&mut self, from: &str, statuses: &[SagaStatus], listing: ListQuery<'_, DeliveryFilter>) {
        let ListQuery { scope, filter: wanted, page: request } = listing;
        let mut from = from.to_owned();
        let mut filter = Filter::new();
        filter.add("s.id < ", request.top());
        add_statuses(&mut filter, statuses);
        match wanted.subscription_id.map(|id| id.0) {
            Some(id) if from == WAITING_OF_SUBSCRIPTION => filter.add("s.waiting_subscription_id = ", id),
            Some(id) => filter.add("s.subscription_id = ", id),
            None => filter.add_text("sub.tenant", scope.tenant()),
        }
        if wanted.subscription_id.is_none() && scope.tenant().is_some() && from != WAITING_OF_TENANT {
            from.push_str(WITH_SUBSCRIPTION);
        }
        if wanted.event_type.is_some() {
            from.push_str(WITH_EVENT);
            filter.add_text("e.event_type", wanted.event_type.as_ref());
        }
        filter.add_period("s.created_at", wanted.created_after, wanted.created_before);
        let statement = format!(
            "SELECT s.id AS saga_id FROM {from} {} ORDER BY s.id DESC LIMIT {}",
            filter.where_clause(),
            request.limit + 1
        );
        self.add(statement, &filter);
    }

    /// The newest dead sagas: each has a letter, and is found by its head, or waits for its letter. Heads have all columns of
    /// this filter.
    fn add_dead(&mut self, listing: ListQuery<'_, DeliveryFilter>) {
        let ListQuery { scope, filter: wanted, page: request } = listing;
        let index = match (wanted.subscription_id, scope.tenant()) {
            (Some(_), _) => "idx_head_dead_subscription",
            (None, Some(_)) => "idx_head_dead",
            (None, None) => "idx_head_saga",
        };
        let mut heads = Filter::new();
        heads.add("h.saga_id < ", request.top());
        heads.add_some("h.subscription_id = ", wanted.subscription_id.map(|id| id.0));
        if wanted.subscription_id.is_none() {
            heads.add_text("h.tenant", scope.tenant());
        }
        heads.add_text("h.event_type", wanted.event_type.as_ref());
        heads.add_period("h.saga_created_at", wanted.created_after, wanted.created_before);
        let statement = format!(
            "SELECT h.saga_id FROM letter_heads h FORCE INDEX ({index}) {} ORDER BY h.saga_id DESC LIMIT {}",
            heads.where_clause(),
            request.limit + 1
        );
        self.add(statement, &heads);
        self.add("SELECT saga_id FROM pending_dead_letters".to_owned(), &Filter::new());
    }

    fn union(&self) -> String {
        match &*self.statements {
            [one] => one.clone(),
            many => many.iter().map(|one| format!("({one})")).collect::<Vec<_>>().join(" UNION ALL "),
        }
    }
}

/// The statements that find deliveries with one of the statuses, none of which is Completed. `None` if too many deliveries wait
/// to be sorted: then some of them are among the newest.
async fn ids_by_status(
    connection: &mut Conn,
    listing: ListQuery<'_, DeliveryFilter>,
) -> DbResult<Option<Ids>> {
    let wanted = listing.filter;
    let waiting: Vec<SagaStatus> = wanted.statuses.iter().copied().filter(|it| is_waiting(*it)).collect();
    let mut ids = Ids::default();
    if !waiting.is_empty() {
        let from = match (wanted.subscription_id, listing.scope.tenant()) {
            // All of them wait, or there are few.
            (Some(id), _)
                if waiting.len() == wanted.statuses.len()
                    || subscription_has_few_waiting(connection, id).await? =>
            {
                WAITING_OF_SUBSCRIPTION
            }
            (None, Some(tenant)) if tenant_has_few_waiting(connection, tenant).await? => WAITING_OF_TENANT,
            (None, None) if few_wait(connection).await? => BY_STATUS,
            _ => return Ok(None),
        };
        ids.add_sagas(from, &waiting, listing);
    }
    if wanted.statuses.contains(&SagaStatus::InProgress) {
        ids.add_sagas(BY_STATUS, &[SagaStatus::InProgress], listing);
    }
    if wanted.statuses.contains(&SagaStatus::DeadLettered) {
        ids.add_dead(listing);
    }
    Ok(Some(ids))
}

/// A page whose ids are found first: the other columns are read only for the rows of the page.
async fn of_ids(
    connection: &mut Conn,
    ids: Ids,
    listing: ListQuery<'_, DeliveryFilter>,
) -> DbResult<Page<Delivery>> {
    let ListQuery { scope, filter: wanted, page: request } = listing;
    let filter = filter_of(scope, wanted, 0..request.top());
    let select = format!(
        "{COLUMNS}({}) {SAGAS_OF}{SUBSCRIPTION} {} ORDER BY d.saga_id DESC LIMIT {}",
        ids.union(),
        filter.where_clause(),
        request.limit + 1
    );
    let mut parameters = ids.parameters;
    parameters.extend_from_slice(filter.values());
    let rows: Vec<Row> = connection.exec(select, Params::Positional(parameters)).await?;
    super::cut(rows, request.limit as usize, delivery)
}

async fn subscription_has_few_waiting(connection: &mut Conn, id: SubscriptionId) -> DbResult<bool> {
    Ok(connection.exec_first(SUBSCRIPTION_HAS_FEW_WAITING, (id.0,)).await?.unwrap_or(true))
}

async fn tenant_has_few_waiting(connection: &mut Conn, tenant: &str) -> DbResult<bool> {
    Ok(connection.exec_first(TENANT_HAS_FEW_WAITING, (tenant,)).await?.unwrap_or(true))
}

async fn few_wait(connection: &mut Conn) -> DbResult<bool> {
    Ok(connection.query_first(FEW_WAITING).await?.unwrap_or(true))
}

fn is_waiting(status: SagaStatus) -> bool {
    matches!(status, SagaStatus::Pending | SagaStatus::PendingRetry)
}

fn add_statuses<'a>(filter: &mut Filter, statuses: impl IntoIterator<Item = &'a SagaStatus>) {
    let statuses: Vec<&str> = statuses.into_iter().map(|status| status.as_str()).collect();
    filter.add_any("s.status", &statuses);
}

fn filter_of(scope: &TenantScope, wanted: &DeliveryFilter, ids: Range<i64>) -> Filter {
    let mut filter = Filter::new();
    filter.add("s.id >= ", ids.start);
    filter.add("s.id < ", ids.end);
    add_statuses(&mut filter, &wanted.statuses);
    filter.add_some("s.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    filter.add_some("s.event_id = ", wanted.event_id.map(|id| id.0));
    wanted.add_event_to(scope, &mut filter);
    filter
}

async fn add_last_responses(connection: &mut Conn, deliveries: &mut [Delivery]) -> DbResult<()> {
    let mut last: HashMap<i64, Option<i64>> = HashMap::with_capacity(deliveries.len());
    for document in Batch::ids(deliveries.iter().map(|delivery| delivery.saga_id.0)) {
        last.extend(connection.exec::<(i64, Option<i64>), _, _>(LAST_RESPONSES, (document,)).await?);
    }
    for delivery in deliveries {
        let status = last.get(&delivery.saga_id.0).copied().flatten();
        delivery.last_response_status = status.and_then(|status| u16::try_from(status).ok());
    }
    Ok(())
}

pub(super) async fn get(
    mut connection: Conn,
    scope: &TenantScope,
    id: SagaId,
) -> DbResult<Option<DeliveryDetail>> {
    let sql = format!("{COLUMNS}{SAGAS}{SUBSCRIPTION} WHERE s.id = ?");
    let row: Option<Row> = connection.exec_first(sql, (id.0,)).await?;
    let found = row.map(delivery).transpose()?.filter(|delivery| scope.includes(&delivery.tenant));
    let Some(mut delivery) = found else { return Ok(None) };
    add_last_responses(&mut connection, std::slice::from_mut(&mut delivery)).await?;
    let attempts: Vec<Row> = connection.exec(ATTEMPTS, (id.0,)).await?;
    Ok(Some(DeliveryDetail {
        delivery,
        attempts: attempts.into_iter().map(attempt).collect::<Result<_, _>>()?,
    }))
}

/// An event's deliveries, oldest first.
pub(super) async fn of_event(connection: &mut Conn, id: EventId) -> DbResult<Vec<Delivery>> {
    let sql = format!("{COLUMNS}{SAGAS}{SUBSCRIPTION} WHERE s.event_id = ? ORDER BY s.id LIMIT {PER_EVENT}");
    let rows: Vec<Row> = connection.exec(sql, (id.0,)).await?;
    let mut deliveries = rows.into_iter().map(delivery).collect::<DbResult<Vec<_>>>()?;
    add_last_responses(connection, &mut deliveries).await?;
    Ok(deliveries)
}

/// The deliveries with these ids that exist.
pub(super) async fn of_given_ids(
    mut connection: Conn,
    scope: &TenantScope,
    ids: &[SagaId],
) -> DbResult<Vec<Delivery>> {
    let sql = format!("{COLUMNS}{GIVEN_IDS} {SAGAS_OF}{SUBSCRIPTION}");
    let mut found = Vec::with_capacity(ids.len());
    for document in Batch::ids(ids.iter().map(|id| id.0)) {
        let rows: Vec<Row> = connection.exec(sql.as_str(), (document,)).await?;
        for row in rows {
            found.push(delivery(row)?);
        }
    }
    found.retain(|delivery: &Delivery| scope.includes(&delivery.tenant));
    add_last_responses(&mut connection, &mut found).await?;
    Ok(found)
}

/// A delivery without its last response.
fn delivery(mut row: Row) -> DbResult<Delivery> {
    let row = &mut row;
    Ok(Delivery {
        saga_id: SagaId(take(row, 0)?),
        tenant: take(row, 12)?,
        event_id: EventId(take(row, 1)?),
        subscription_id: SubscriptionId(take(row, 2)?),
        generation: natural(take(row, 3)?),
        status: parsed(&take::<String>(row, 4)?)?,
        attempt_count: natural(take(row, 5)?),
        max_retry_limit: natural(take(row, 6)?),
        next_attempt_at: take::<SqlTime>(row, 7)?.0,
        final_error_code: take::<Option<String>>(row, 8)?.map(ErrorCode::from_stored),
        created_at: take::<SqlTime>(row, 9)?.0,
        updated_at: take::<SqlTime>(row, 10)?.0,
        held: take(row, 11)?,
        event_type: take(row, 13)?,
        external_id: take(row, 14)?,
        correlation_id: take(row, 15)?,
        callback_url: take(row, 16)?,
        last_response_status: None,
    })
}

pub(crate) fn attempt(mut row: Row) -> DbResult<Attempt> {
    let row = &mut row;
    Ok(Attempt {
        job_id: JobId(take(row, 0)?),
        attempt_at: take::<SqlTime>(row, 1)?.0,
        started_at: take::<Option<SqlTime>>(row, 8)?.map(|time| time.0),
        callback_url: take(row, 9)?,
        retry_at: take::<Option<SqlTime>>(row, 10)?.map(|time| time.0),
        status: parsed(&take::<String>(row, 2)?)?,
        response_status: take::<Option<i64>>(row, 3)?.and_then(|status| u16::try_from(status).ok()),
        error_code: take::<Option<String>>(row, 4)?.map(ErrorCode::from_stored),
        duration_ms: take::<Option<i64>>(row, 5)?.map(natural),
        response_excerpt: take(row, 6)?,
        lease_resets: natural(take(row, 7)?),
    })
}
