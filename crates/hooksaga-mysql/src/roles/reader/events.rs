//! Events, and whether they were routed.

use super::{blocks::Listed, deliveries, page};
use crate::{
    error::DbResult,
    roles::{
        filter::Filter,
        rows::{count, take},
    },
    time::SqlTime,
};
use hooksaga_saga::EventId;
use hooksaga_store::{
    BlockFilter, Conditions as _, EventDetail, EventFilter, EventHead, ListQuery, Page, TenantScope,
    Unmatched,
};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::{ops::Range, sync::Arc};

const LIST: &str = "/* reader.events */
SELECT id, event_type, external_id, correlation_id, created_at, tenant FROM events";

const GET: &str = "/* reader.event */
SELECT id, event_type, external_id, correlation_id, created_at, tenant, payload,
       NOT EXISTS (SELECT 1 FROM unrouted_events q WHERE q.event_id = events.id),
       COALESCE(m.paused, 0), COALESCE(m.disabled, 0), COALESCE(m.unverified, 0)
FROM events LEFT JOIN unmatched_events m ON m.event_id = events.id
WHERE id = ?";

/// Counts up to the limit only.
const FEW: &str = "/* reader.few_events */
SELECT COUNT(*) <= 5000
FROM (SELECT 1 FROM events FORCE INDEX (idx_event_tenant) WHERE tenant = ? LIMIT 5001) counted";

pub(super) async fn list(
    mut connection: Conn,
    wanted: ListQuery<'_, EventFilter>,
) -> DbResult<Page<EventHead>> {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    let filter = |ids: Range<i64>| filter_of(scope, wanted, ids);
    // A tenant has an index of its own, which is best where it leads to few; and without a type all that is of use of the
    // blocks is where the times begin and end.
    let by_tenant = match scope.tenant() {
        Some(tenant) => wanted.event_type.is_none() || has_few_events(&mut connection, tenant).await?,
        None => false,
    };
    // The narrowest index; where none is named, the server chooses.
    let index = match (&wanted.external_id, &wanted.correlation_id) {
        (Some(_), _) => " FORCE INDEX (uniq_event_external_id)",
        (_, Some(_)) => " FORCE INDEX (idx_event_correlation)",
        _ if by_tenant => " FORCE INDEX (idx_event_tenant)",
        _ => "",
    };
    let select = format!("{LIST}{index}");
    let read = |mut row| head(&mut row);
    let Some(blocks) = BlockFilter::of_events(scope, wanted) else {
        return page(&mut connection, &select, "id", &filter(0..request.top()), request, read).await;
    };
    let select_range = format!("{LIST} FORCE INDEX (PRIMARY)");
    let (select, select_range) = (select.as_str(), select_range.as_str());
    let listed = Listed { select, select_range, id: "id", row: read, filter, blocks: &blocks };
    match by_tenant {
        true => listed.page_between(&mut connection, request).await,
        false => listed.page(&mut connection, request).await,
    }
}

/// Whether a tenant has few rows. If so, a list reads all of them by the tenant's index and sorts; otherwise it scans the newest
/// rows of all tenants, where some of the tenant's will be found soon.
pub(super) async fn has_few_events(connection: &mut Conn, tenant: &str) -> DbResult<bool> {
    Ok(connection.exec_first(FEW, (tenant,)).await?.unwrap_or(true))
}

fn filter_of(scope: &TenantScope, wanted: &EventFilter, ids: Range<i64>) -> Filter {
    let mut filter = Filter::new();
    filter.add("id >= ", ids.start);
    filter.add("id < ", ids.end);
    filter.add_text("tenant", scope.tenant());
    wanted.add_to(&mut filter);
    filter
}

pub(super) async fn get(
    mut connection: Conn,
    scope: &TenantScope,
    id: EventId,
) -> DbResult<Option<EventDetail>> {
    let row: Option<Row> = connection.exec_first(GET, (id.0,)).await?;
    let Some(mut row) = row else { return Ok(None) };
    let head = head(&mut row)?;
    if !scope.includes(&head.tenant) {
        return Ok(None);
    }
    Ok(Some(EventDetail {
        head,
        payload: Arc::from(take::<String>(&mut row, 6)?),
        routed: take(&mut row, 7)?,
        unmatched: Unmatched {
            paused: count(take(&mut row, 8)?),
            disabled: count(take(&mut row, 9)?),
            unverified: count(take(&mut row, 10)?),
        },
        deliveries: deliveries::of_event(&mut connection, id).await?,
    }))
}

fn head(row: &mut Row) -> DbResult<EventHead> {
    Ok(EventHead {
        id: EventId(take(row, 0)?),
        tenant: take(row, 5)?,
        event_type: take(row, 1)?,
        external_id: take(row, 2)?,
        correlation_id: take(row, 3)?,
        created_at: take::<SqlTime>(row, 4)?.0,
    })
}
