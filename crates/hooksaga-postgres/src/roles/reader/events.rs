//! Events, and whether they were routed.

use super::{blocks::Listed, deliveries, page};
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows::count},
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_saga::EventId;
use hooksaga_store::{
    BlockFilter, Conditions as _, EventDetail, EventFilter, EventHead, ListQuery, Page, TenantScope,
    Unmatched,
};
use std::{ops::Range, sync::Arc};
use tokio_postgres::Row;

const LIST: &str = "/* reader.events */
SELECT id, event_type, external_id, correlation_id, created_at, tenant FROM events";

const GET: &str = "/* reader.event */
SELECT id, event_type, external_id, correlation_id, created_at, tenant, payload,
       NOT EXISTS (SELECT FROM unrouted_events q WHERE q.event_id = events.id),
       coalesce(u.paused, 0), coalesce(u.disabled, 0), coalesce(u.unverified, 0)
FROM events LEFT JOIN unmatched_events u ON u.event_id = events.id
WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)";

/// Counts up to the limit only.
const FEW: &str = "/* reader.few_events */
SELECT count(*) <= 5000 FROM (SELECT FROM events WHERE tenant = $1 LIMIT 5001) counted";

/// How a tenant's index has the ids.
const BY_TENANT: &str = "tenant DESC, id";

pub(super) async fn list(client: &Client, wanted: ListQuery<'_, EventFilter>) -> DbResult<Page<EventHead>> {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    // A tenant has an index of its own, which is best where it leads to few; and without a type all that is of use of the
    // blocks is where the times begin and end.
    let tenant = match scope.tenant().filter(|_| !is_pointed(wanted)) {
        Some(tenant) if wanted.event_type.is_none() || has_few_events(client, tenant).await? => Some(tenant),
        _ => None,
    };
    let filter = |ids: Range<i64>| match tenant {
        Some(tenant) => filter_of_tenant(tenant, wanted, ids),
        None => filter_of(scope, wanted, ids),
    };
    let id = if tenant.is_some() { BY_TENANT } else { "id" };
    let Some(blocks) = BlockFilter::of_events(scope, wanted) else {
        return page(client, LIST, id, &filter(0..request.top()), request, head).await;
    };
    let listed = Listed { select: LIST, id, row: head, filter, blocks: &blocks };
    match tenant {
        Some(_) => listed.page_between(client, request).await,
        None => listed.page(client, request).await,
    }
}

/// The statement of a tenant's first page; how many rows is its last parameter.
#[cfg(feature = "test-support")]
pub(crate) fn page_of_tenant(tenant: &str, wanted: &EventFilter, most: i64) -> (String, Filter) {
    let mut filter = filter_of_tenant(tenant, wanted, 0..i64::MAX);
    let sql = super::newest(LIST, BY_TENANT, &filter);
    filter.number(most);
    (sql, filter)
}

/// Whether a tenant has few rows. If so, a list reads all of them by the tenant's index and sorts; otherwise it scans the newest
/// rows of all tenants, where some of the tenant's will be found soon.
async fn has_few_events(client: &Client, tenant: &str) -> DbResult<bool> {
    let statement = client.prepare_cached(FEW).await?;
    Ok(client.query_one(&statement, &[&tenant]).await?.try_get(0)?)
}

/// Whether its filter names one event, or the few of one request: their index leads straight to them.
fn is_pointed(wanted: &EventFilter) -> bool {
    wanted.external_id.is_some() || wanted.correlation_id.is_some()
}

fn filter_of(scope: &TenantScope, wanted: &EventFilter, ids: Range<i64>) -> Filter {
    let mut filter = Filter::new();
    filter.add("id >= ", ids.start);
    filter.add("id < ", ids.end);
    filter.add_text("tenant", scope.tenant());
    if is_pointed(wanted) {
        wanted.add_to(&mut filter);
    } else {
        add_to_ids(wanted, &mut filter);
    }
    filter
}

/// What is asked of events that their ids lead to. Written so that no index fits: else the planner may read all events of the
/// type or the times, for each range of ids.
fn add_to_ids(wanted: &EventFilter, filter: &mut Filter) {
    filter.add_text("event_type || ''", wanted.event_type.as_ref());
    filter.add_period("created_at + interval '0'", wanted.created_after, wanted.created_before);
}

/// By the tenant's index. As an array: to the planner an equality would say that any index has the order, and where all of the
/// tenant's events are old, it would go by the primary key. A range of tenant and id ([`Filter::range`]) would not end where the
/// ids do, but where the tenant does.
fn filter_of_tenant(tenant: &str, wanted: &EventFilter, ids: Range<i64>) -> Filter {
    let mut filter = Filter::new();
    filter.add_around("tenant = ANY (ARRAY[", tenant.to_owned(), "::text])");
    filter.add("id >= ", ids.start);
    filter.add("id < ", ids.end);
    add_to_ids(wanted, &mut filter);
    filter
}

pub(super) async fn get(client: &Client, scope: &TenantScope, id: EventId) -> DbResult<Option<EventDetail>> {
    let statement = client.prepare_cached(GET).await?;
    let row = client.query_opt(&statement, &[&id.0, &scope.tenant()]).await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(EventDetail {
        head: head(&row)?,
        payload: Arc::from(row.try_get::<_, &str>(6)?),
        routed: row.try_get(7)?,
        unmatched: Unmatched {
            paused: count(row.try_get(8)?),
            disabled: count(row.try_get(9)?),
            unverified: count(row.try_get(10)?),
        },
        deliveries: deliveries::of_event(client, id).await?,
    }))
}

fn head(row: &Row) -> DbResult<EventHead> {
    Ok(EventHead {
        id: EventId(row.try_get(0)?),
        tenant: row.try_get(5)?,
        event_type: row.try_get(1)?,
        external_id: row.try_get(2)?,
        correlation_id: row.try_get(3)?,
        created_at: row.try_get::<_, SqlTime>(4)?.0,
    })
}
