//! Events, and what became of them.

use super::{deliveries, page};
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows::count},
    time::Time,
};
use deadpool_postgres::Client;
use hooksaga_saga::EventId;
use hooksaga_store::{EventDetail, EventFilter, EventHead, Listing, Page, TenantScope, Unmatched};
use std::sync::Arc;
use tokio_postgres::Row;

const LIST: &str = "/* reader.events */
SELECT id, event_type, external_id, correlation_id, created_at, tenant FROM events";

const GET: &str = "/* reader.event */
SELECT id, event_type, external_id, correlation_id, created_at, tenant, payload,
       NOT EXISTS (SELECT FROM unrouted_events q WHERE q.event_id = events.id),
       coalesce(u.paused, 0), coalesce(u.disabled, 0), coalesce(u.unverified, 0)
FROM events LEFT JOIN unmatched_events u ON u.event_id = events.id
WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)";

pub(super) async fn list(client: &Client, wanted: Listing<'_, EventFilter>) -> DbResult<Page<EventHead>> {
    let Listing { scope, filter: wanted, page: request } = wanted;
    let mut filter = Filter::new();
    filter.add_some("id < ", request.before);
    filter.add_scope("tenant = ", scope);
    filter.add_some("event_type = ", wanted.event_type.clone());
    filter.add_some("external_id = ", wanted.external_id.clone());
    filter.add_some("correlation_id = ", wanted.correlation_id.clone());
    filter.add_some("created_at >= ", wanted.created_after.map(Time));
    filter.add_some("created_at < ", wanted.created_before.map(Time));
    page(client, LIST, "id", &filter, request, head).await
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
        created_at: row.try_get::<_, Time>(4)?.0,
    })
}
