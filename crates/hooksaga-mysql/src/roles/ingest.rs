//! `event_ingest_writer`: appends events.
//!
//! One transaction looks up who holds the external ids of the batch, inserts the events whose ids are free, and puts their
//! ids into the queue. If somebody takes an id between the lookup and the insert, the insert fails, and the next try finds
//! the holder. There is no "on conflict do nothing": it would need the right to UPDATE events, or hide other errors
//! (INSERT IGNORE).
//!
//! An id can also be held by a transaction that stays open, because its process is frozen. An INSERT would wait for it, and
//! would lock the gap before the id while it waits, so that everybody whose id falls into that gap waits as well. So the
//! lookup locks rows and does not wait (NOWAIT, at READ COMMITTED without gaps): it fails at once if an id is being
//! inserted. The transaction ends, which releases all locks, and is tried again a little later. After about a second the
//! caller gets an error; a batch of several events gets it after a quarter of a second. An id that is taken between the
//! lookup and the insert still makes the INSERT wait, but for a second at most (`options`).
//!
//! There is no RETURNING. A multi-row INSERT … VALUES gets consecutive ids: InnoDB promises it, in every lock mode, for
//! inserts whose number of rows is known. LAST_INSERT_ID is the first of them. The rows are read back and compared, to be
//! sure; a server where the comparison fails gets its rows one by one from then on.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        batch::{Batch, Field, identifier, list},
        rows::take,
    },
    time::SqlTime,
    transaction::BatchedTransaction,
};
use async_trait::async_trait;
use hooksaga_saga::{EventId, ExternalId, Timestamp};
use hooksaga_store::{Appended, EventHead, IngestStore, NewEvent, StoreError, StoreResult};
use mysql_async::{Conn, Error, Params, Row, Value, prelude::Queryable as _};
use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

/// The clock, the distance between two ids, and how large a statement may be.
const CLOCK: &str =
    "/* ingest.clock */ SELECT UTC_TIMESTAMP(6), @@auto_increment_increment, @@max_allowed_packet";

/// The events that hold the given external ids. (MySQL and MariaDB spell a shared lock differently: hence the version
/// comments.)
pub(crate) const EXISTING: &str = concat!(
    "/* ingest.existing */
SELECT e.id, e.external_id, e.event_type, e.correlation_id, e.created_at, e.payload_bytes, e.tenant
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    tenant VARCHAR(200) PATH '$[0]', external_id VARCHAR(400) PATH '$[1]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (uniq_event_external_id)
    ON e.external_id = ",
    identifier!("u.external_id"),
    " AND e.tenant = ",
    identifier!("u.tenant"),
    " /*!80000 FOR SHARE */ /*M!100300 LOCK IN SHARE MODE */ NOWAIT"
);

/// Payloads to compare with.
pub(crate) const PAYLOADS: &str =
    "/* ingest.payloads */ SELECT id, payload FROM events FORCE INDEX (PRIMARY)";

const INSERT: &str = "/* ingest.append */ INSERT INTO events (tenant, event_type, payload, external_id, correlation_id, created_at) VALUES ";

pub(crate) const READ_BACK: &str = "/* ingest.read_back */
SELECT id, correlation_id FROM events FORCE INDEX (PRIMARY) WHERE id BETWEEN ? AND ? ORDER BY id";

const QUEUE: &str = "/* ingest.queue */ INSERT INTO unrouted_events (event_id) VALUES ";

/// The largest payload that the servers accept. It is read first, and only written if it differs: an application in
/// SERIALIZABLE that has called `hooksaga_append` holds a lock on the row.
const LIMIT: &str = "/* ingest.limit */ SELECT max_payload_bytes FROM ingest_limits WHERE id = 1";
const INSERT_LIMIT: &str =
    "/* ingest.insert_limit */ INSERT INTO ingest_limits (id, max_payload_bytes) VALUES (1, ?)";
const UPDATE_LIMIT: &str =
    "/* ingest.update_limit */ UPDATE ingest_limits SET max_payload_bytes = ? WHERE id = 1";

/// A tenant, and an external id of it.
type Key<'e> = (&'e str, &'e str);

fn key(event: &NewEvent) -> Option<Key<'_>> {
    event.external_id.as_ref().map(|id| (event.tenant.as_str(), id.as_str()))
}

/// How often a batch of several events is tried again while one of its ids is held: about a quarter of a second in all.
const RETRIES_OF_SEVERAL: u32 = 7;
/// The most rows in one INSERT. Their number is a power of two, so that there are few texts to prepare.
const MOST_ROWS: usize = 256;
/// The most bytes of payloads in one statement, or read for comparison at a time.
const MOST_BYTES: usize = 8 << 20;

pub(crate) struct IngestSql {
    pool: RolePool,
    /// This server's multi-row inserts did not get consecutive ids.
    one_by_one: AtomicBool,
}

impl IngestSql {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool, one_by_one: AtomicBool::new(false) }
    }

    async fn append_once(&self, connection: Conn, events: &[NewEvent]) -> DbResult<Vec<Appended>> {
        let (mut transaction, clock) = BatchedTransaction::begin(connection, CLOCK).await?;
        let mut clock: Row = only(clock.into_iter().next())?;
        let now = take::<SqlTime>(&mut clock, 0)?.0;
        let numbering = Numbering { first: 0, step: take(&mut clock, 1)? };
        let packet: usize = take(&mut clock, 2)?;

        let held = existing(&mut transaction, events).await?;
        // If two events of the batch have the same id, the first is inserted.
        let mut first_of: HashMap<Key<'_>, usize> = HashMap::new();
        let mut places: Vec<usize> = Vec::with_capacity(events.len());
        for (place, event) in events.iter().enumerate() {
            match key(event) {
                Some(key) if held.contains_key(&key) => {}
                Some(key) if first_of.contains_key(&key) => {}
                Some(key) => {
                    first_of.insert(key, place);
                    places.push(place);
                }
                None => places.push(place),
            }
        }
        // In the order of the key, so that two batches with the same ids wait for each other instead of deadlocking.
        places.sort_by_key(|&place| key(&events[place]).map(|(tenant, id)| (id, tenant)));

        let mut heads: HashMap<usize, EventHead> = HashMap::with_capacity(places.len());
        for run in runs(events, &places, packet, self.one_by_one.load(Ordering::Relaxed)) {
            let ids = self.insert(&mut transaction, events, run, now, numbering).await?;
            heads.extend(run.iter().zip(ids).map(|(&place, id)| (place, head(&events[place], id, now))));
        }
        if heads.is_empty() {
            transaction.rollback().await?;
        } else {
            let mut ids: Vec<i64> = heads.values().map(|head| head.id.0).collect();
            ids.sort_unstable();
            let values = ids.iter().map(|id| format!("({id})")).collect::<Vec<_>>().join(",");
            transaction.commit(&[format!("{QUEUE}{values}")]).await?;
        }

        let answer = |(place, event): (usize, &NewEvent)| {
            if let Some(head) = heads.get(&place) {
                return Ok(Appended::Created(head.clone()));
            }
            let key = key(event).unwrap_or_default();
            if let Some(holder) = held.get(&key) {
                return Ok(match holder.same.contains(&place) {
                    true => Appended::Duplicate(holder.head.clone()),
                    false => Appended::Conflict { existing: holder.head.id },
                });
            }
            let first = first_of.get(&key).copied();
            let holder = first.and_then(|first| Some((&events[first], heads.get(&first)?)));
            let (original, head) = holder.ok_or_else(|| DbError::unreadable("an event without a result"))?;
            let same = original.event_type == event.event_type && original.payload == event.payload;
            Ok(match same {
                true => Appended::Duplicate(head.clone()),
                false => Appended::Conflict { existing: head.id },
            })
        };
        events.iter().enumerate().map(answer).collect()
    }

    /// Inserts a run of events in one statement and returns their ids, in the same order.
    async fn insert(
        &self,
        transaction: &mut Conn,
        events: &[NewEvent],
        run: &[usize],
        now: Timestamp,
        numbering: Numbering,
    ) -> DbResult<Vec<i64>> {
        let mut values = Vec::with_capacity(run.len() * 6);
        for &place in run {
            let event = &events[place];
            values.extend([
                Value::from(event.tenant.as_str()),
                Value::from(event.event_type.as_str()),
                Value::from(&*event.payload),
                Value::from(event.external_id.as_ref().map(ExternalId::as_str)),
                Value::from(event.correlation_id.as_str()),
                Value::from(SqlTime(now)),
            ]);
        }
        let sql = format!("{INSERT}{}", vec!["(?,?,?,?,?,?)"; run.len()].join(","));
        transaction.exec_drop(sql, Params::Positional(values)).await?;
        let first = transaction.last_insert_id().and_then(|id| i64::try_from(id).ok());
        let first = first.ok_or_else(|| DbError::unreadable("an insert without an id"))?;
        let ids = Numbering { first, ..numbering }.ids(run.len());
        if let [_] = run {
            return Ok(ids);
        }
        let bounds = (first, ids.last().copied().unwrap_or(first));
        // Rows of other transactions may lie in between: each node of a Galera Cluster uses its own share of the numbers.
        let found: Vec<(i64, Vec<u8>)> = transaction.exec(READ_BACK, bounds).await?;
        let found: HashMap<i64, Vec<u8>> = found.into_iter().collect();
        let is_there = |(id, &place): (&i64, &usize)| {
            found.get(id).is_some_and(|found| found == events[place].correlation_id.as_str().as_bytes())
        };
        if !ids.iter().zip(run).all(is_there) {
            self.one_by_one.store(true, Ordering::Relaxed);
            return Err(DbError::Renumbered);
        }
        Ok(ids)
    }
}

#[async_trait]
impl IngestStore for IngestSql {
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<Appended>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let held = &AtomicU32::new(0);
        self.pool
            .run_inserting(|connection| async move {
                match self.append_once(connection, events).await {
                    // The other events of the batch must not wait for long.
                    Err(DbError::Held(what))
                        if events.len() > 1 && held.fetch_add(1, Ordering::Relaxed) >= RETRIES_OF_SEVERAL =>
                    {
                        Err(DbError::Store(StoreError::Contended(what)))
                    }
                    done => done,
                }
            })
            .await
    }

    async fn store_payload_limit(&self, bytes: u64) -> StoreResult<()> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.pool
            .run_inserting(|mut connection| async move {
                let stored: Option<i64> = connection.query_first(LIMIT).await?;
                match stored {
                    None => connection.exec_drop(INSERT_LIMIT, (bytes,)).await?,
                    Some(stored) if stored != bytes => connection.exec_drop(UPDATE_LIMIT, (bytes,)).await?,
                    Some(_) => {}
                }
                Ok(())
            })
            .await
    }
}

/// How ids follow each other.
#[derive(Clone, Copy)]
struct Numbering {
    first: i64,
    step: i64,
}

impl Numbering {
    fn ids(self, count: usize) -> Vec<i64> {
        std::iter::successors(Some(self.first), |id| id.checked_add(self.step)).take(count).collect()
    }
}

fn only(row: Option<Row>) -> DbResult<Row> {
    row.ok_or_else(|| DbError::unreadable("no clock"))
}

fn head(event: &NewEvent, id: i64, created_at: Timestamp) -> EventHead {
    EventHead {
        id: EventId(id),
        tenant: event.tenant.to_string(),
        event_type: event.event_type.to_string(),
        external_id: event.external_id.as_ref().map(ExternalId::to_string),
        correlation_id: event.correlation_id.to_string(),
        created_at,
    }
}

/// Splits the places into runs whose length is a power of two, and whose bytes fit into a packet (unless a single event is
/// larger).
fn runs<'p>(events: &[NewEvent], places: &'p [usize], packet: usize, one_by_one: bool) -> Vec<&'p [usize]> {
    let budget = (packet / 2).min(MOST_BYTES);
    let size = |place: usize| events[place].payload.len() + 1000;
    let mut runs = Vec::new();
    let mut rest = places;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fitting = rest
            .iter()
            .take_while(|&&place| {
                bytes += size(place);
                bytes <= budget
            })
            .count();
        let most = if one_by_one { 1 } else { fitting.clamp(1, MOST_ROWS) };
        let (run, tail) = rest.split_at(1 << most.ilog2());
        runs.push(run);
        rest = tail;
    }
    runs
}

/// Who holds an external id.
struct Holder {
    head: EventHead,
    /// The places of the batch that have the same content.
    same: HashSet<usize>,
}

async fn existing<'e>(transaction: &mut Conn, events: &'e [NewEvent]) -> DbResult<HashMap<Key<'e>, Holder>> {
    let wanted: HashSet<Key<'e>> = events.iter().filter_map(key).collect();
    let mut found: HashMap<(String, String), (EventHead, usize)> = HashMap::new();
    for document in Batch::of(&wanted, |(tenant, id)| [Field::Text(tenant), Field::Text(id)]) {
        let rows: Vec<Row> = transaction.exec(EXISTING, (document,)).await.map_err(held_elsewhere)?;
        for mut row in rows {
            let external_id: String = take(&mut row, 1)?;
            let tenant: String = take(&mut row, 6)?;
            let head = EventHead {
                id: EventId(take(&mut row, 0)?),
                tenant: tenant.clone(),
                event_type: take(&mut row, 2)?,
                external_id: Some(external_id.clone()),
                correlation_id: take(&mut row, 3)?,
                created_at: take::<SqlTime>(&mut row, 4)?.0,
            };
            found.insert((tenant, external_id), (head, take(&mut row, 5)?));
        }
    }
    if found.is_empty() {
        return Ok(HashMap::new());
    }
    let holder = |key: Key<'e>| {
        let holder = found.remove(&(key.0.to_owned(), key.1.to_owned()))?;
        Some((key, holder))
    };
    let held: HashMap<Key<'e>, (EventHead, usize)> = wanted.into_iter().filter_map(holder).collect();

    // Only events of the same type and length can be equal. Their payloads are read, a few megabytes at a time.
    let mut candidates: HashMap<i64, Vec<usize>> = HashMap::new();
    for (place, event) in events.iter().enumerate() {
        let holder = key(event).and_then(|key| held.get(&key));
        if let Some((head, length)) = holder
            && head.event_type == event.event_type.as_str()
            && *length == event.payload.len()
        {
            candidates.entry(head.id.0).or_default().push(place);
        }
    }
    let mut same: HashMap<i64, HashSet<usize>> = HashMap::new();
    let mut ids: Vec<i64> = candidates.keys().copied().collect();
    ids.sort_unstable();
    let size = |id: &i64| candidates[id].first().map_or(0, |&place| events[place].payload.len());
    while !ids.is_empty() {
        let mut bytes = 0;
        let count = ids
            .iter()
            .take_while(|id| {
                bytes += size(id);
                bytes <= MOST_BYTES
            })
            .count();
        let rest = ids.split_off(count.max(1));
        let sql = format!("{PAYLOADS} WHERE id IN ({})", list(ids));
        let payloads: Vec<(i64, Vec<u8>)> = transaction.query(sql).await?;
        for (id, payload) in payloads {
            let equal = candidates[&id].iter().filter(|&&place| events[place].payload.as_bytes() == payload);
            same.insert(id, equal.copied().collect());
        }
        ids = rest;
    }
    let holders = held.into_iter().map(|(key, (head, _))| {
        let same = same.remove(&head.id.0).unwrap_or_default();
        (key, Holder { head, same })
    });
    Ok(holders.collect())
}

/// The error of a lookup that met a row which somebody has locked.
fn held_elsewhere(error: Error) -> DbError {
    let error = DbError::from(error);
    if error.is_locked_out() {
        return DbError::Held(
            "an external_id of this batch is being stored by a transaction that has not ended; try again later"
                .to_owned(),
        );
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::{CorrelationId, EventType, Tenant};
    use std::sync::Arc;

    fn events(sizes: &[usize]) -> Vec<NewEvent> {
        let event = |size: &usize| NewEvent {
            tenant: "default".parse::<Tenant>().expect("a name"),
            event_type: "t".parse::<EventType>().expect("a name"),
            payload: Arc::from("x".repeat(*size)),
            external_id: None,
            correlation_id: "c".parse::<CorrelationId>().expect("a name"),
        };
        sizes.iter().map(event).collect()
    }

    fn lengths(sizes: &[usize], packet: usize, one_by_one: bool) -> Vec<usize> {
        let places: Vec<usize> = (0..sizes.len()).collect();
        let events = events(sizes);
        runs(&events, &places, packet, one_by_one).into_iter().map(<[usize]>::len).collect()
    }

    #[test]
    fn runs_are_powers_of_two() {
        assert_eq!(lengths(&[10; 300], 64 << 20, false), [256, 32, 8, 4]);
        assert_eq!(lengths(&[10; 3], 64 << 20, true), [1, 1, 1]);
        assert_eq!(lengths(&[], 64 << 20, false), [] as [usize; 0]);
    }

    #[test]
    fn runs_fit_into_a_packet_unless_one_event_does_not() {
        assert_eq!(lengths(&[400_000; 9], 4 << 20, false), [4, 4, 1]);
        assert_eq!(lengths(&[10, 9_000_000, 10], 4 << 20, false), [1, 1, 1]);
    }

    #[test]
    fn ids_follow_each_other_by_the_servers_step() {
        assert_eq!(Numbering { first: 7, step: 3 }.ids(3), [7, 10, 13]);
    }
}
