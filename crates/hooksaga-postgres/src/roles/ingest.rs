//! `event_ingest_writer`: appends events.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    time::SqlTime,
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::{EventId, ExternalId};
use hooksaga_store::{Appended, EventHead, IngestStore, NewEvent, StoreError, StoreResult};
use tokio_postgres::error::SqlState;

/// One statement, one round trip, one commit. Ids are drawn first; the result has a line for every event (with
/// its id) and one for every event that went in (without its place): they are matched here, not in SQL, where
/// without hash joins every line would be compared with every other. Rows go in by `external_id` and tenant, so that
/// two batches with the same ids wait for each other instead of deadlocking; of two equal ones in a batch the first
/// goes in.
macro_rules! append {
    ($on_conflict:literal) => {
        concat!(
            r#"/* ingest.append */
WITH input AS MATERIALIZED (
    SELECT nextval('events_id_seq') AS id, ord, tenant, event_type, payload, external_id, correlation_id
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
         WITH ORDINALITY AS u (tenant, event_type, payload, external_id, correlation_id, ord)
), created AS (
    INSERT INTO events (id, tenant, event_type, payload, external_id, correlation_id, created_at)
    SELECT id, tenant, event_type, payload, external_id, correlation_id, now()
    FROM input ORDER BY external_id COLLATE "C", tenant COLLATE "C", ord
    "#,
            $on_conflict,
            r#"
    RETURNING id, created_at
), queued AS (
    INSERT INTO unrouted_events (event_id) SELECT id FROM created
)
SELECT id, ord, NULL::timestamptz FROM input
UNION ALL
SELECT id, NULL, created_at FROM created"#
        )
    };
}

pub(crate) const APPEND: &str = append!("ON CONFLICT DO NOTHING");
/// For events without an `external_id`: no key of theirs can be taken, and not looking is a third cheaper.
pub(crate) const APPEND_NEW: &str = append!("");

/// The events that took the `external_id`s. A statement of its own, after the insert: only a new snapshot sees
/// what the insert waited for.
pub(crate) const EXISTING: &str = "/* ingest.existing */
SELECT u.place, e.id, e.event_type, e.correlation_id, e.created_at,
       e.event_type = u.event_type AND e.payload = u.payload
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[])
     AS u (place, tenant, event_type, payload, external_id)
JOIN events e ON e.external_id = u.external_id AND e.tenant = u.tenant";

/// Writes only what differs.
const STORE_LIMIT: &str = "/* ingest.store_limit */
INSERT INTO ingest_limits AS l (id, max_payload_bytes) VALUES (1, $1)
ON CONFLICT (id) DO UPDATE SET max_payload_bytes = $1 WHERE l.max_payload_bytes <> $1";

/// How often an event is tried whose `external_id` was taken and then free again.
const TRIES: usize = 5;

pub(crate) struct IngestSql(pub(crate) RolePool);

#[async_trait]
impl IngestStore for IngestSql {
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<Appended>> {
        let mut results: Vec<Option<Appended>> = vec![None; events.len()];
        for _ in 0..TRIES {
            let open: Vec<usize> = (0..events.len()).filter(|&place| results[place].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let open = &open;
            let created = self.0.run(|client| async move { insert(&client, events, open).await }).await?;
            for (place, head) in created {
                results[place] = Some(Appended::Created(head));
            }
            let taken: Vec<usize> = open.iter().copied().filter(|&place| results[place].is_none()).collect();
            if taken.is_empty() {
                break;
            }
            let taken = &taken;
            let found = self.0.run(|client| async move { existing(&client, events, taken).await }).await?;
            for (place, result) in found {
                results[place] = Some(result);
            }
        }
        let results: Option<Vec<Appended>> = results.into_iter().collect();
        results.ok_or_else(|| {
            StoreError::Unavailable(
                "other transactions keep inserting and rolling back this external_id".to_owned(),
            )
        })
    }

    async fn store_payload_limit(&self, bytes: u64) -> StoreResult<()> {
        let bytes = &i64::try_from(bytes).unwrap_or(i64::MAX);
        self.0
            .run(|client| async move {
                client.execute(STORE_LIMIT, &[bytes]).await?;
                Ok(())
            })
            .await
    }
}

/// Events as columns, in the order of `places`.
struct EventColumns<'a> {
    tenants: Vec<&'a str>,
    types: Vec<&'a str>,
    payloads: Vec<&'a str>,
    external_ids: Vec<Option<&'a str>>,
    correlation_ids: Vec<&'a str>,
}

impl<'a> EventColumns<'a> {
    fn new(events: &'a [NewEvent], places: &[usize]) -> Self {
        let of = |column: fn(&'a NewEvent) -> &'a str| {
            places.iter().map(|&place| column(&events[place])).collect()
        };
        Self {
            tenants: of(|event| event.tenant.as_str()),
            types: of(|event| event.event_type.as_str()),
            payloads: of(|event| &event.payload),
            external_ids: places
                .iter()
                .map(|&place| events[place].external_id.as_ref().map(ExternalId::as_str))
                .collect(),
            correlation_ids: of(|event| event.correlation_id.as_str()),
        }
    }
}

/// The events that went in, each with its place in `events`.
async fn insert(client: &Client, events: &[NewEvent], places: &[usize]) -> DbResult<Vec<(usize, EventHead)>> {
    let columns = EventColumns::new(events, places);
    let sql = if columns.external_ids.iter().all(Option::is_none) { APPEND_NEW } else { APPEND };
    let statement = client.prepare_cached(sql).await?;
    let rows = client
        .query(
            &statement,
            &[
                &columns.tenants,
                &columns.types,
                &columns.payloads,
                &columns.external_ids,
                &columns.correlation_ids,
            ],
        )
        .await
        .map_err(held_elsewhere)?;

    // A UNION ALL returns its halves in order: ids with their place first, then those that went in.
    let mut place_of = std::collections::HashMap::with_capacity(places.len());
    let mut created = Vec::with_capacity(places.len());
    for row in rows {
        let id: i64 = row.try_get(0)?;
        if let Some(ordinal) = row.try_get::<_, Option<i64>>(1)? {
            let ordinal = usize::try_from(ordinal - 1).map_err(DbError::unreadable)?;
            place_of.insert(id, places[ordinal]);
        } else {
            created.push((id, row.try_get::<_, SqlTime>(2)?.0));
        }
    }
    created
        .into_iter()
        .map(|(id, created_at)| {
            let place = *place_of.get(&id).ok_or_else(|| DbError::unreadable("an unknown event id"))?;
            let event = &events[place];
            let head = EventHead {
                id: EventId(id),
                tenant: event.tenant.to_string(),
                event_type: event.event_type.to_string(),
                external_id: event.external_id.as_ref().map(ToString::to_string),
                correlation_id: event.correlation_id.to_string(),
                created_at,
            };
            Ok((place, head))
        })
        .collect()
}

/// The insert waits for a transaction that is storing one of its ids, but not for long (`lock_timeout`).
fn held_elsewhere(error: tokio_postgres::Error) -> DbError {
    if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
        let text = "an external_id is being stored by a transaction that has not ended; try again later";
        return DbError::Store(StoreError::Contended(text.to_owned()));
    }
    error.into()
}

/// What holds the `external_id`s of the events that did not go in. One may be missing: its holder was undone.
async fn existing(
    client: &Client,
    events: &[NewEvent],
    places: &[usize],
) -> DbResult<Vec<(usize, Appended)>> {
    let keys = places.iter().map(|&place| i64::try_from(place)).collect::<Result<Vec<_>, _>>();
    let keys = keys.map_err(DbError::unreadable)?;
    let columns = EventColumns::new(events, places);
    let statement = client.prepare_cached(EXISTING).await?;
    let rows = client
        .query(
            &statement,
            &[&keys, &columns.tenants, &columns.types, &columns.payloads, &columns.external_ids],
        )
        .await?;
    rows.iter()
        .map(|row| {
            let place = usize::try_from(row.try_get::<_, i64>(0)?).map_err(DbError::unreadable)?;
            let id = EventId(row.try_get(1)?);
            if !row.try_get::<_, bool>(5)? {
                return Ok((place, Appended::Conflict { existing: id }));
            }
            let head = EventHead {
                id,
                tenant: events[place].tenant.to_string(),
                event_type: row.try_get(2)?,
                external_id: events[place].external_id.as_ref().map(ToString::to_string),
                correlation_id: row.try_get(3)?,
                created_at: row.try_get::<_, SqlTime>(4)?.0,
            };
            Ok((place, Appended::Duplicate(head)))
        })
        .collect()
}
