//! `router_worker`: makes one saga per event and matching subscription, in steps of a bounded size.

use super::{
    multi_row::{InsertMissing, Write, several},
    rows,
};
use crate::{
    engine::RoleHandle,
    error::DbResult,
    session::{Commit, Tx},
};
use async_trait::async_trait;
use hooksaga_saga::{EventId, EventType, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{
    Examined, LargeEvent, ListedLimits, MissedEarly, RouteBatch, RouteLimits, RoutedEvent, RoutedSaga,
    RouterStore, SmallLimits, StoreResult, Unmatched,
};
use rusqlite::{OptionalExtension as _, Row};
use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

const TAKE_EVENTS: &str = "/* router.take_events */
SELECT q.event_id, q.after_subscription_id, e.tenant, e.event_type, e.correlation_id, e.created_at
  FROM unrouted_events AS q CROSS JOIN events AS e ON e.id = q.event_id
 ORDER BY q.event_id LIMIT ?1";

const TAKE_EVENT: &str = "/* router.take_event */
SELECT q.event_id, q.after_subscription_id, e.tenant, e.event_type, e.correlation_id, e.created_at
  FROM unrouted_events AS q CROSS JOIN events AS e ON e.id = q.event_id
 WHERE q.event_id = ?1";

const QUEUED: &str = "/* router.queued */
SELECT event_id FROM unrouted_events WHERE event_id > ?1 ORDER BY event_id LIMIT ?2";

/// In the order of the primary key, and no more than asked for; paused and unverified ones too, since they are examined
/// all the same.
const SUBSCRIPTIONS_OF_TOPIC: &str = "/* router.subscriptions_of_topic */
SELECT t.subscription_id, s.active, s.verified, s.disabled_reason IS NOT NULL, coalesce(s.max_retry_limit, ?5),
       s.unverified_since
  FROM subscription_topics AS t CROSS JOIN subscriptions AS s ON s.id = t.subscription_id
 WHERE t.tenant = ?1 AND t.topic = ?2 AND t.subscription_id > ?3
 ORDER BY t.subscription_id LIMIT ?4";

macro_rules! insert_sagas {
    ($name:literal, $rows:expr) => {
        concat!(
            "/* router.",
            $name,
            " */
INSERT OR FAIL INTO webhook_delivery_sagas
    (next_attempt_at, created_at, updated_at, event_id, subscription_id, max_retry_limit, generation, status, attempt_count)
VALUES ",
            $rows,
            " ON CONFLICT DO NOTHING"
        )
    };
}
pub(super) const INSERT_SAGAS: InsertMissing = InsertMissing {
    write: Write {
        several: insert_sagas!("insert_sagas", several!("(?1, ?1, ?1, ?, ?, ?, 0, 'Pending', 0)")),
        one: insert_sagas!("insert_saga", "(?1, ?1, ?1, ?, ?, ?, 0, 'Pending', 0)"),
    },
    find: "/* router.find_saga */
SELECT id FROM webhook_delivery_sagas WHERE event_id = ?1 AND subscription_id = ?2 AND generation = 0",
};

/// An event that is routed in several steps adds up.
const NOTE_UNMATCHED: &str = "/* router.note_unmatched */
INSERT OR FAIL INTO unmatched_events (event_id, paused, disabled, unverified) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (event_id) DO UPDATE
   SET paused = paused + excluded.paused, disabled = disabled + excluded.disabled,
       unverified = unverified + excluded.unverified";

/// Queues the missed events that the verification does not queue.
const QUEUE_GAP: &str = "/* router.queue_gap */
INSERT OR FAIL INTO catch_ups (subscription_id, since, until) VALUES (?1, ?2, ?3)";

const LEAVE_QUEUE: Write = Write {
    several: concat!(
        "/* router.leave_queue */ DELETE FROM unrouted_events WHERE event_id IN (",
        several!("?"),
        ")"
    ),
    one: "/* router.leave_queue_alone */ DELETE FROM unrouted_events WHERE event_id = ?1",
};

const NOTE_PROGRESS: &str = "/* router.note_progress */
UPDATE OR FAIL unrouted_events SET after_subscription_id = ?2 WHERE event_id = ?1";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[
    TAKE_EVENTS,
    TAKE_EVENT,
    QUEUED,
    SUBSCRIPTIONS_OF_TOPIC,
    INSERT_SAGAS.write.one,
    INSERT_SAGAS.find,
    LEAVE_QUEUE.several,
    LEAVE_QUEUE.one,
    NOTE_PROGRESS,
    NOTE_UNMATCHED,
    QUEUE_GAP,
];

pub(crate) struct RouterSql(pub(crate) RoleHandle);

#[async_trait]
impl RouterStore for RouterSql {
    async fn route(&self, limits: RouteLimits, default_limit: u32) -> StoreResult<RouteBatch> {
        let job = move |tx: &Tx<'_>| {
            let queued = rows::all(tx, TAKE_EVENTS, [limits.events], queued_event)?;
            route(tx, queued, limits.sagas, default_limit)
        };
        self.0.write_linked(Commit::Deferred, job).await
    }

    async fn queued(&self, after: EventId, limit: u32) -> StoreResult<Vec<EventId>> {
        self.0.read(move |tx| rows::all(tx, QUEUED, (after.0, limit), |row| Ok(EventId(row.get(0)?)))).await
    }

    async fn route_small(&self, events: &[EventId], limits: SmallLimits) -> StoreResult<Examined> {
        let events = events.to_vec();
        let job = move |tx: &Tx<'_>| route_small(tx, &events, limits);
        self.0.write_linked(Commit::Deferred, job).await
    }

    async fn route_listed(&self, events: &[EventId], limits: ListedLimits) -> StoreResult<RouteBatch> {
        let events = events.to_vec();
        let job = move |tx: &Tx<'_>| route(tx, listed(tx, &events)?, limits.sagas, limits.default_limit);
        self.0.write_linked(Commit::Deferred, job).await
    }
}

/// An event of the queue.
struct QueuedEvent {
    id: EventId,
    after: SubscriptionId,
    tenant: String,
    event_type: EventType,
    correlation_id: String,
    created_at: Timestamp,
}

impl QueuedEvent {
    /// As one that is not complete.
    fn into_routed(self, sagas: Vec<RoutedSaga>, unmatched: Unmatched) -> RoutedEvent {
        let Self { id: event_id, tenant, event_type, correlation_id, .. } = self;
        let event_type = event_type.to_string();
        RoutedEvent {
            event_id,
            tenant,
            event_type,
            correlation_id,
            sagas,
            unmatched,
            complete: false,
            unwanted: false,
        }
    }
}

/// A subscription with a topic that matches.
#[derive(Clone, Copy)]
struct Candidate {
    id: SubscriptionId,
    active: bool,
    verified: bool,
    disabled: bool,
    max_retry_limit: u32,
    unverified_since: Option<Timestamp>,
}

impl Candidate {
    /// It is active but not verified, and its gap begins after this event.
    fn misses_early(&self, event: &QueuedEvent) -> bool {
        let later = self.unverified_since.is_some_and(|since| event.created_at < since);
        later && self.active && !self.disabled && !self.verified
    }
}

fn queued_event(row: &Row<'_>) -> rusqlite::Result<QueuedEvent> {
    Ok(QueuedEvent {
        id: EventId(row.get(0)?),
        after: SubscriptionId(row.get(1)?),
        tenant: row.get(2)?,
        event_type: rows::parsed(row, 3)?,
        correlation_id: row.get(4)?,
        created_at: rows::time(row, 5)?,
    })
}

/// Those that are in the queue.
fn listed(tx: &Tx<'_>, events: &[EventId]) -> DbResult<Vec<QueuedEvent>> {
    let mut take = tx.prepare(TAKE_EVENT)?;
    let mut queued = Vec::with_capacity(events.len());
    for id in events {
        queued.extend(take.query_row([id.0], queued_event).optional()?);
    }
    Ok(queued)
}

/// Separates the small events, and routes them.
fn route_small(tx: &Tx<'_>, events: &[EventId], limits: SmallLimits) -> DbResult<Examined> {
    let mut resolver = Resolver::new(limits.each, limits.default_limit);
    let (each, mut left) = (limits.each as usize, limits.sagas.max(limits.each) as usize);
    let (mut small, mut examined) = (Vec::new(), Examined::default());
    for event in listed(tx, events)? {
        let matching = resolver.candidates(tx, &event)?.len();
        if matching > each {
            let QueuedEvent { id: event_id, tenant, event_type, .. } = event;
            examined.large.push(LargeEvent { event_id, tenant, event_type: event_type.to_string() });
        } else if matching > left {
            examined.next = Some(event.id);
            break;
        } else {
            left -= matching;
            small.push(event);
        }
    }
    let sagas = limits.sagas.max(limits.each);
    examined.routed = route(tx, small, sagas, limits.default_limit)?.events;
    Ok(examined)
}

fn route(tx: &Tx<'_>, queued: Vec<QueuedEvent>, sagas: u32, default_limit: u32) -> DbResult<RouteBatch> {
    // A pass that could consider nobody would never get on.
    let mut left = sagas.max(1) as usize;
    let mut resolver = Resolver::new(sagas.max(1), default_limit);
    let mut events = Vec::with_capacity(queued.len());
    // The sagas of all events, and the events that are done: written together at the end.
    let (mut new, mut done, mut missed_early) = (Vec::new(), Vec::new(), MissedEarly::default());
    for event in queued {
        if left == 0 {
            // Not begun: this says that the queue is not empty.
            events.push(event.into_routed(Vec::new(), Unmatched::default()));
            break;
        }
        let candidates = resolver.candidates(tx, &event)?;
        let considered = &candidates[..candidates.len().min(left)];
        left -= considered.len();
        let mut unmatched = Unmatched::default();
        for candidate in considered {
            if !(candidate.active && candidate.verified) {
                unmatched.count(candidate.active, candidate.disabled);
                if candidate.misses_early(&event) {
                    missed_early.note(candidate.id, event.created_at);
                }
                continue;
            }
            new.push((events.len(), [event.id.0, candidate.id.0, candidate.max_retry_limit.into()]));
        }
        if unmatched.total() > 0 {
            let counts = [unmatched.paused, unmatched.disabled, unmatched.unverified];
            let [paused, disabled, unverified] = counts.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
            tx.execute(NOTE_UNMATCHED, (event.id.0, paused, disabled, unverified))?;
        }
        let complete = considered.len() == candidates.len();
        match considered.last() {
            Some(last) if !complete => {
                tx.execute(NOTE_PROGRESS, (event.id.0, last.id.0))?;
            }
            _ => done.push([event.id.0]),
        }
        let is_first_pass = event.after == SubscriptionId(0);
        let nobody = unmatched.total() == considered.len() as u64 && !event.event_type.is_test();
        let unwanted = complete && is_first_pass && nobody;
        let sagas = Vec::with_capacity(considered.len());
        events.push(RoutedEvent { complete, unwanted, ..event.into_routed(sagas, unmatched) });
        if !complete {
            break;
        }
    }
    let rows: Vec<_> = new.iter().map(|(_, row)| *row).collect();
    let ids = INSERT_SAGAS.run(tx, tx.now.as_micros(), &rows)?;
    for ((event, [_, subscription, _]), id) in new.into_iter().zip(ids) {
        if let Some(id) = id {
            let saga = RoutedSaga { saga_id: SagaId(id), subscription_id: SubscriptionId(subscription) };
            events[event].sagas.push(saga);
        }
    }
    for gap in missed_early.gaps() {
        tx.execute(QUEUE_GAP, (gap.subscription_id.0, gap.since.as_micros(), gap.until.as_micros()))?;
    }
    LEAVE_QUEUE.run(tx, &[], &done)?;
    Ok(RouteBatch { events })
}

/// Finds the subscriptions of events, once per transaction, tenant and type: a change is seen by the next batch.
struct Resolver {
    /// The most of one event: one more than a pass may consider shows that there are more.
    most: usize,
    default_limit: u32,
    /// Those of events that are routed from the beginning, by tenant and type.
    known: HashMap<String, HashMap<EventType, Rc<[Candidate]>>>,
}

impl Resolver {
    /// One that finds an event's first `considered` subscriptions, and whether there are more.
    fn new(considered: u32, default_limit: u32) -> Self {
        Self { most: considered as usize + 1, default_limit, known: HashMap::new() }
    }

    /// The first subscriptions behind `after` with a topic that matches, in the order of their ids.
    fn candidates(&mut self, tx: &Tx<'_>, event: &QueuedEvent) -> DbResult<Rc<[Candidate]>> {
        if event.after != SubscriptionId(0) {
            return self.look_up(tx, event);
        }
        let known = self.known.get(event.tenant.as_str()).and_then(|types| types.get(&event.event_type));
        if let Some(known) = known {
            return Ok(known.clone());
        }
        let candidates = self.look_up(tx, event)?;
        let types = self.known.entry(event.tenant.clone()).or_default();
        types.insert(event.event_type.clone(), candidates.clone());
        Ok(candidates)
    }

    fn look_up(&self, tx: &Tx<'_>, event: &QueuedEvent) -> DbResult<Rc<[Candidate]>> {
        let mut found = BTreeMap::new();
        let mut of_topic = tx.prepare(SUBSCRIPTIONS_OF_TOPIC)?;
        for topic in event.event_type.matching_topics() {
            let limit = i64::try_from(self.most).unwrap_or(i64::MAX);
            let values = (&event.tenant, topic.as_str(), event.after.0, limit, self.default_limit);
            let subscriptions = of_topic.query_map(values, |row| {
                Ok(Candidate {
                    id: SubscriptionId(row.get(0)?),
                    active: row.get(1)?,
                    verified: row.get(2)?,
                    disabled: row.get(3)?,
                    max_retry_limit: row.get(4)?,
                    unverified_since: rows::optional_time(row, 5)?,
                })
            })?;
            for candidate in subscriptions {
                let candidate = candidate?;
                found.insert(candidate.id, candidate);
            }
        }
        // Each topic contributed its first ones, so the first of all are among them.
        Ok(found.into_values().take(self.most).collect())
    }
}
