//! Events, and what became of them.

use super::{deliveries, page};
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows::take},
    time::Time,
};
use hooksaga_saga::EventId;
use hooksaga_store::{EventDetail, EventFilter, EventHead, Page, PageRequest};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::sync::Arc;

const LIST: &str = "/* reader.events */
SELECT id, event_type, external_id, correlation_id, created_at FROM events";

const GET: &str = "/* reader.event */
SELECT id, event_type, external_id, correlation_id, created_at, payload,
       NOT EXISTS (SELECT 1 FROM unrouted_events q WHERE q.event_id = events.id)
FROM events WHERE id = ?";

pub(super) async fn list(
    mut connection: Conn,
    wanted: &EventFilter,
    request: PageRequest,
) -> DbResult<Page<EventHead>> {
    let mut filter = Filter::new();
    filter.add_some("id < ", request.before);
    filter.add_some("event_type = ", wanted.event_type.as_deref());
    filter.add_some("external_id = ", wanted.external_id.as_deref());
    filter.add_some("correlation_id = ", wanted.correlation_id.as_deref());
    page(&mut connection, LIST, "id", &filter, request, |mut row| head(&mut row)).await
}

pub(super) async fn get(mut connection: Conn, id: EventId) -> DbResult<Option<EventDetail>> {
    let row: Option<Row> = connection.exec_first(GET, (id.0,)).await?;
    let Some(mut row) = row else { return Ok(None) };
    Ok(Some(EventDetail {
        head: head(&mut row)?,
        payload: Arc::from(take::<String>(&mut row, 5)?),
        routed: take(&mut row, 6)?,
        deliveries: deliveries::of_event(&mut connection, id).await?,
    }))
}

fn head(row: &mut Row) -> DbResult<EventHead> {
    Ok(EventHead {
        id: EventId(take(row, 0)?),
        event_type: take(row, 1)?,
        external_id: take(row, 2)?,
        correlation_id: take(row, 3)?,
        created_at: take::<Time>(row, 4)?.0,
    })
}
