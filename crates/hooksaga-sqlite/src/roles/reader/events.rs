//! Events.

use super::{
    deliveries,
    list::{Access, Source, page},
};
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows},
    session::Tx,
};
use hooksaga_saga::EventId;
use hooksaga_store::{EventDetail, EventFilter, EventHead, Page, PageRequest};
use rusqlite::{OptionalExtension, Row};

const LIST: Source = Source {
    select: "/* api_reader: events */ SELECT e.id, e.event_type, e.external_id, e.correlation_id, e.created_at",
    from: "events AS e",
    from_unindexed: "events AS e NOT INDEXED",
    id: "e.id",
    newest: "/* api_reader: newest_event */ SELECT max(id) FROM events",
};

const DETAIL: &str = "/* api_reader: event */
SELECT e.id, e.event_type, e.external_id, e.correlation_id, e.created_at, e.payload,
       NOT EXISTS (SELECT 1 FROM unrouted_events AS q WHERE q.event_id = e.id)
  FROM events AS e WHERE e.id = ?1";

pub(super) fn list(tx: &Tx<'_>, filter: EventFilter, request: PageRequest) -> DbResult<Page<EventHead>> {
    let EventFilter { event_type, external_id, correlation_id } = filter;
    // These two name one event, or the few of one request: their index leads straight to them.
    let pointed = external_id.is_some() || correlation_id.is_some();
    let access = if pointed { Access::Direct } else { Access::RecentFirst };
    let mut filters = Filter::default();
    filters.add_some(if pointed { "+e.event_type = ?" } else { "e.event_type = ?" }, event_type);
    filters.add_some("e.external_id = ?", external_id);
    filters.add_some("e.correlation_id = ?", correlation_id);
    page(tx, LIST, &filters, access, request, head, |event| event.id.0)
}

pub(super) fn detail(tx: &Tx<'_>, id: EventId) -> DbResult<Option<EventDetail>> {
    let found = tx
        .prepare(DETAIL)?
        .query_row([id.0], |row| Ok((head(row)?, rows::shared_text(row, 5)?, row.get(6)?)))
        .optional()?;
    let Some((head, payload, routed)) = found else {
        return Ok(None);
    };
    Ok(Some(EventDetail { head, payload, routed, deliveries: deliveries::of_event(tx, id)? }))
}

fn head(row: &Row<'_>) -> rusqlite::Result<EventHead> {
    Ok(EventHead {
        id: EventId(row.get(0)?),
        event_type: row.get(1)?,
        external_id: row.get(2)?,
        correlation_id: row.get(3)?,
        created_at: rows::time(row, 4)?,
    })
}
