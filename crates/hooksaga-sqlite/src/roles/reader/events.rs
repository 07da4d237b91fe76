//! Events.

use super::{
    blocks::{Access, Listed, Source, page, page_between},
    deliveries,
};
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows},
    session::Tx,
};
use hooksaga_saga::{EventId, Timestamp};
use hooksaga_store::{
    BlockFilter, Conditions as _, EventDetail, EventFilter, EventHead, Page, PageRequest, TenantScope,
    Unmatched,
};
use rusqlite::{OptionalExtension, Row};

const LIST: Source = Source {
    select: "/* reader.events */ SELECT e.id, e.event_type, e.external_id, e.correlation_id, e.created_at, e.tenant",
    from: "events AS e",
    from_unindexed: "events AS e NOT INDEXED",
    id: "e.id",
    newest: "/* reader.newest_event */ SELECT max(id) FROM events",
};

/// For one tenant's events: its index has the ids in order, too.
const OF_TENANT: Source = Source { from: "events AS e INDEXED BY idx_event_tenant", ..LIST };

/// Counts up to the limit only.
const FEW: &str = "/* reader.few_events */
SELECT count(*) <= 20000 FROM (SELECT 1 FROM events INDEXED BY idx_event_tenant WHERE tenant = ?1 LIMIT 20001)";

const DETAIL: &str = "/* reader.event */
SELECT e.id, e.event_type, e.external_id, e.correlation_id, e.created_at, e.tenant, e.payload,
       NOT EXISTS (SELECT 1 FROM unrouted_events AS q WHERE q.event_id = e.id),
       coalesce(u.paused, 0), coalesce(u.disabled, 0), coalesce(u.unverified, 0)
  FROM events AS e LEFT JOIN unmatched_events AS u ON u.event_id = e.id
 WHERE e.id = ?1 AND (?2 IS NULL OR e.tenant = ?2)";

pub(super) fn list(
    tx: &Tx<'_>,
    scope: &TenantScope,
    filter: EventFilter,
    request: PageRequest,
) -> DbResult<Page<EventHead>> {
    let blocks = BlockFilter::of_events(scope, &filter);
    let EventFilter { event_type, external_id, correlation_id, created_after, created_before } = filter;
    // These two name one event, or the few of one request: their index leads straight to them.
    let pointed = external_id.is_some() || correlation_id.is_some();
    // A type has blocks of its own for each tenant, but a few events are read sooner than those.
    let by_tenant = match scope.tenant() {
        Some(tenant) if !pointed => {
            event_type.is_none() || tx.prepare(FEW)?.query_row([tenant], |row| row.get(0))?
        }
        _ => false,
    };
    let (source, access) = match pointed {
        true => (LIST, Access::Direct),
        false if by_tenant => (OF_TENANT, Access::Direct),
        false => (LIST, Access::RecentFirst),
    };
    let mut filters = Filter::default();
    filters.add_text("e.tenant", scope.tenant());
    filters.add_text(if pointed { "+e.event_type" } else { "e.event_type" }, event_type.as_ref());
    filters.add_text("e.external_id", external_id.as_ref());
    filters.add_text("e.correlation_id", correlation_id.as_ref());
    // Without an end the range of an index may be nearly all there is, and would have to be sorted.
    let before = if created_after.is_some() { "e.created_at < ?" } else { "+e.created_at < ?" };
    filters.add_some("e.created_at >= ?", created_after.map(Timestamp::as_micros));
    filters.add_some(before, created_before.map(Timestamp::as_micros));
    let listed = Listed { source, access, filter: &filters, read: head, id: |event| event.id.0 };
    match &blocks {
        Some(blocks) if by_tenant => page_between(tx, &listed, blocks, request),
        blocks => page(tx, &listed, blocks.as_ref(), request),
    }
}

pub(super) fn detail(tx: &Tx<'_>, scope: &TenantScope, id: EventId) -> DbResult<Option<EventDetail>> {
    let found = tx
        .prepare(DETAIL)?
        .query_row((id.0, scope.tenant()), |row| {
            let unmatched = Unmatched {
                paused: rows::count(row, 8)?,
                disabled: rows::count(row, 9)?,
                unverified: rows::count(row, 10)?,
            };
            Ok((head(row)?, rows::shared_text(row, 6)?, row.get(7)?, unmatched))
        })
        .optional()?;
    let Some((head, payload, routed, unmatched)) = found else {
        return Ok(None);
    };
    Ok(Some(EventDetail { head, payload, routed, unmatched, deliveries: deliveries::of_event(tx, id)? }))
}

fn head(row: &Row<'_>) -> rusqlite::Result<EventHead> {
    Ok(EventHead {
        id: EventId(row.get(0)?),
        event_type: row.get(1)?,
        external_id: row.get(2)?,
        correlation_id: row.get(3)?,
        created_at: rows::time(row, 4)?,
        tenant: row.get(5)?,
    })
}
