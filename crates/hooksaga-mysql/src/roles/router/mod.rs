//! `router_worker`: inserts one saga per event and matching subscription.
//!
//! It reads the queue and its events, which never change, and then runs one transaction. The transaction first locks the
//! queue's rows. What it reads after that includes every subscription that existed when the events were accepted, because in
//! READ COMMITTED each statement sees what was committed when it began. While the lock is held, no other transaction inserts
//! sagas of generation 0 for these events.
//!
//! A pass considers a bounded number of subscriptions. The event at which the pass ends stays queued, with the last
//! subscription that was considered; the next pass resumes after it (`candidates`).

pub(crate) mod candidates;

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        batch::{Batch, Field},
        rows::{expect_rows, rows, take},
    },
    time::SqlTime,
    transaction::BatchedTransaction,
};
use async_trait::async_trait;
use candidates::{Candidate, Candidates, QueuedEvent};
use hooksaga_saga::{EventId, EventType, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{
    Examined, LargeEvent, ListedLimits, MissedEarly, RouteBatch, RouteLimits, RoutedEvent, RoutedSaga,
    RouterStore, SmallLimits, StoreResult, Unmatched,
};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicBool, Ordering},
};

/// Runs before a transaction begins: an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* router.peek */
SELECT e.id, e.tenant, e.event_type, e.correlation_id, UTC_TIMESTAMP(6), e.created_at
FROM (SELECT event_id FROM unrouted_events FORCE INDEX (PRIMARY) ORDER BY event_id LIMIT ?) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.event_id";

pub(crate) const QUEUED: &str = "/* router.queued */
SELECT event_id FROM unrouted_events FORCE INDEX (PRIMARY) WHERE event_id > ? ORDER BY event_id LIMIT ?";

pub(crate) fn lock(limit: u32) -> String {
    format!(
        "/* router.lock */
SELECT event_id, after_subscription_id FROM unrouted_events FORCE INDEX (PRIMARY)
ORDER BY event_id LIMIT {limit} FOR UPDATE SKIP LOCKED"
    )
}

/// By key, so that no other row is locked or waited for. `ids`: a batch of numbers.
pub(crate) fn lock_listed(ids: &str) -> String {
    format!(
        "/* router.lock_listed */
SELECT q.event_id, q.after_subscription_id
FROM (SELECT * FROM JSON_TABLE('{ids}', '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN unrouted_events q FORCE INDEX (PRIMARY) ON q.event_id = u.id FOR UPDATE SKIP LOCKED"
    )
}

pub(crate) const EVENTS: &str = "/* router.events */
SELECT e.id, e.tenant, e.event_type, e.correlation_id, UTC_TIMESTAMP(6), e.created_at
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.id";

/// The generation 0 sagas of the given pairs.
pub(crate) const SAGAS: &str = "/* router.sagas */
SELECT s.id, s.event_id, s.subscription_id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    event_id BIGINT PATH '$[0]', subscription_id BIGINT PATH '$[1]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (uniq_saga_event_subscription)
    ON s.event_id = u.event_id AND s.subscription_id = u.subscription_id AND s.generation = 0";

/// MariaDB's RETURNING would need a right to read every column that it writes.
pub(crate) const INSERT: &str = "/* router.insert */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, max_retry_limit, next_attempt_at, created_at, updated_at)
SELECT u.event_id, u.subscription_id, 0, u.max_retry_limit, u.now, u.now, u.now
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    event_id BIGINT PATH '$[0]', subscription_id BIGINT PATH '$[1]', max_retry_limit INT PATH '$[2]',
    now DATETIME(6) PATH '$[3]')) AS u";

pub(crate) const NOTE_UNMATCHED: &str = "/* router.note_unmatched */
INSERT INTO unmatched_events (event_id, paused, disabled, unverified)
SELECT u.event_id, u.paused, u.disabled, u.unverified
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    event_id BIGINT PATH '$[0]', paused BIGINT PATH '$[1]', disabled BIGINT PATH '$[2]',
    unverified BIGINT PATH '$[3]')) AS u
ON DUPLICATE KEY UPDATE paused = unmatched_events.paused + VALUES(paused),
    disabled = unmatched_events.disabled + VALUES(disabled), unverified = unmatched_events.unverified + VALUES(unverified)";

/// Queues the missed events that the verification does not queue.
pub(crate) const QUEUE_GAPS: &str = "/* router.queue_gaps */
INSERT INTO catch_ups (subscription_id, since, until)
SELECT u.subscription_id, u.since, u.until
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    subscription_id BIGINT PATH '$[0]', since DATETIME(6) PATH '$[1]', until DATETIME(6) PATH '$[2]')) AS u";

/// By key, so that it never waits for rows that another router has locked. `ids`: a batch of numbers.
pub(crate) fn forget(ids: &str) -> String {
    format!(
        "/* router.forget */
DELETE q FROM (SELECT * FROM JSON_TABLE('{ids}', '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN unrouted_events q FORCE INDEX (PRIMARY) ON q.event_id = u.id"
    )
}

pub(crate) fn resume(after: i64, event: i64) -> String {
    format!(
        "/* router.resume */ UPDATE unrouted_events SET after_subscription_id = {after} WHERE event_id = {event}"
    )
}

pub(crate) struct RouterSql(pub(crate) RolePool);

#[async_trait]
impl RouterStore for RouterSql {
    async fn route(&self, limits: RouteLimits, default_limit: u32) -> StoreResult<RouteBatch> {
        let RouteLimits { events, sagas } = limits;
        let routed = self.pass(Taken::Oldest(events), Bound::Together(sagas.max(1)), default_limit).await?;
        Ok(RouteBatch { events: routed.routed })
    }

    async fn queued(&self, after: EventId, limit: u32) -> StoreResult<Vec<EventId>> {
        let read = |mut connection: Conn| async move {
            let ids: Vec<i64> = connection.exec(QUEUED, (after.0, limit)).await?;
            Ok(ids.into_iter().map(EventId).collect())
        };
        self.0.run(read).await
    }

    async fn route_small(&self, events: &[EventId], limits: SmallLimits) -> StoreResult<Examined> {
        self.pass(Taken::Listed(events), Bound::Small(limits), limits.default_limit).await
    }

    async fn route_listed(&self, events: &[EventId], limits: ListedLimits) -> StoreResult<RouteBatch> {
        let bound = Bound::Together(limits.sagas.max(1));
        let routed = self.pass(Taken::Listed(events), bound, limits.default_limit).await?;
        Ok(RouteBatch { events: routed.routed })
    }
}

/// Which events a pass takes.
#[derive(Clone, Copy)]
enum Taken<'a> {
    /// This many events, in the order of their ids.
    Oldest(u32),
    Listed(&'a [EventId]),
}

/// Which subscriptions it considers.
#[derive(Clone, Copy)]
enum Bound {
    /// This many subscriptions, one event after the other.
    Together(u32),
    /// All subscriptions of each small event.
    Small(SmallLimits),
}

impl RouterSql {
    async fn pass(&self, taken: Taken<'_>, bound: Bound, default_limit: u32) -> StoreResult<Examined> {
        // Hardly ever are there sagas already. So the first try does not look for them; their keys would tell.
        let check_existing = &AtomicBool::new(false);
        self.0
            .run_inserting(|connection| async move {
                let routed =
                    route(connection, taken, bound, default_limit, check_existing.load(Ordering::Relaxed))
                        .await;
                if routed.as_ref().is_err_and(DbError::is_duplicate) {
                    check_existing.store(true, Ordering::Relaxed);
                }
                routed
            })
            .await
    }
}

async fn route(
    mut connection: Conn,
    taken: Taken<'_>,
    bound: Bound,
    default_limit: u32,
    check_existing: bool,
) -> DbResult<Examined> {
    let mut seen = ReadEvents::default();
    let lock = match taken {
        Taken::Oldest(0) => return Ok(Examined::default()),
        Taken::Oldest(most) => {
            seen.note(connection.exec(PEEK, (most,)).await?)?;
            lock(most)
        }
        Taken::Listed(events) => {
            let Some(document) = Batch::ids(events.iter().map(|id| id.0)).into_iter().next() else {
                return Ok(Examined::default());
            };
            seen.note(connection.exec(EVENTS, (&document,)).await?)?;
            lock_listed(&document)
        }
    };
    let Some(now) = seen.now else { return Ok(Examined::default()) };
    let (mut transaction, queued) = BatchedTransaction::begin(connection, &lock).await?;
    let pair = |mut row: Row| Ok((take(&mut row, 0)?, take(&mut row, 1)?));
    let queued = queued.into_iter().map(pair).collect::<DbResult<Vec<(i64, i64)>>>()?;
    // Where other routers are at work, these can be others than those that the look saw.
    let unseen = queued.iter().map(|(id, _)| *id).filter(|id| !seen.events.contains_key(id));
    for document in Batch::ids(unseen) {
        let read = transaction.exec(EVENTS, (document,)).await?;
        seen.note(read)?;
    }
    let events = seen.locked(queued);
    if events.is_empty() {
        transaction.rollback().await?;
        return Ok(Examined::default());
    }
    let mut examined = Examined::default();
    let considered = match bound {
        Bound::Together(sagas) => consider(&mut transaction, events, sagas).await?,
        Bound::Small(limits) => consider_small(&mut transaction, events, limits, &mut examined).await?,
    };
    if considered.is_empty() {
        transaction.rollback().await?;
        return Ok(examined);
    }

    let mut new = Vec::new();
    for Considered { event, candidates, .. } in &considered {
        let deliverable = candidates.iter().filter(|candidate| candidate.deliverable);
        new.extend(deliverable.map(|candidate| Pair {
            event: event.id,
            subscription: candidate.subscription,
            limit: candidate.max_retry_limit.unwrap_or(default_limit),
        }));
    }
    if check_existing {
        let there = sagas(&mut transaction, &new).await?;
        new.retain(|pair| !there.contains_key(&(pair.event, pair.subscription)));
    }
    let mut made = insert(&mut transaction, &new, now).await?;
    note_unmatched(&mut transaction, &considered).await?;
    queue_gaps(&mut transaction, &considered).await?;
    transaction.commit(&leave_queue(&considered)).await?;

    let routed = considered.into_iter().map(|Considered { event, candidates, complete }| RoutedEvent {
        event_id: EventId(event.id),
        unwanted: complete
            && event.after == 0
            && event.event_type != EventType::TEST
            && !candidates.iter().any(|candidate| candidate.deliverable),
        unmatched: unmatched(&candidates),
        sagas: candidates
            .iter()
            .filter_map(|candidate| {
                let saga_id = SagaId(made.remove(&(event.id, candidate.subscription))?);
                Some(RoutedSaga { saga_id, subscription_id: SubscriptionId(candidate.subscription) })
            })
            .collect(),
        tenant: event.tenant,
        event_type: event.event_type,
        correlation_id: event.correlation_id,
        complete,
    });
    examined.routed = routed.collect();
    Ok(examined)
}

/// The events that were read, and the database's clock at the first read.
#[derive(Default)]
struct ReadEvents {
    events: HashMap<i64, QueuedEvent>,
    now: Option<Timestamp>,
}

impl ReadEvents {
    fn note(&mut self, read: Vec<Row>) -> DbResult<()> {
        for mut row in read {
            let row = &mut row;
            let id = take(row, 0)?;
            self.now.get_or_insert(take::<SqlTime>(row, 4)?.0);
            let (tenant, event_type, correlation_id) = (take(row, 1)?, take(row, 2)?, take(row, 3)?);
            let created_at = take::<SqlTime>(row, 5)?.0;
            self.events
                .insert(id, QueuedEvent { id, tenant, event_type, correlation_id, created_at, after: 0 });
        }
        Ok(())
    }

    /// The queued events in the order of their ids, each from where an earlier pass stopped.
    fn locked(mut self, mut queued: Vec<(i64, i64)>) -> Vec<QueuedEvent> {
        queued.sort_unstable();
        let event = |(id, after)| Some(QueuedEvent { after, ..self.events.remove(&id)? });
        queued.into_iter().filter_map(event).collect()
    }
}

/// An event, and the subscriptions that this pass considers for it.
struct Considered {
    event: QueuedEvent,
    candidates: Vec<Candidate>,
    complete: bool,
}

/// Takes the events one after the other, until this many subscriptions have been considered. Their candidates are looked up
/// together; each time these are too many, for half as many events.
async fn consider(transaction: &mut Conn, events: Vec<QueuedEvent>, limit: u32) -> DbResult<Vec<Considered>> {
    let mut left = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut considered = Vec::with_capacity(events.len());
    let mut together = events.len();
    let mut rest = VecDeque::from(events);
    while !rest.is_empty() {
        together = together.min(rest.len());
        let candidates = Candidates::read(transaction, rest.range(..together), left).await?;
        if candidates.is_none() && together > 1 {
            together /= 2;
            continue;
        }
        let candidates = candidates.unwrap_or_default();
        for event in rest.drain(..together) {
            let (candidates, complete) = candidates.of(transaction, &event, left).await?;
            // An event that has not been begun is returned as well: it shows that the queue is not empty.
            left -= candidates.len();
            considered.push(Considered { event, candidates, complete });
            if !complete {
                return Ok(considered);
            }
        }
    }
    Ok(considered)
}

/// The small events, with all their candidates; the large ones are named. Each kind of event is looked up once.
async fn consider_small(
    transaction: &mut Conn,
    events: Vec<QueuedEvent>,
    limits: SmallLimits,
    examined: &mut Examined,
) -> DbResult<Vec<Considered>> {
    let [each, mut left] = [limits.each, limits.sagas.max(limits.each)]
        .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    // All together, unless that is a crowd.
    let together = Candidates::read(transaction, events.iter(), left).await?.unwrap_or_default();
    let (mut considered, mut known) = (Vec::new(), HashMap::new());
    for event in events {
        let kind = (event.tenant.clone(), event.event_type.clone());
        let whole = event.after == 0;
        let (candidates, complete) = match known.get(&kind).filter(|_| whole) {
            Some(found) => Clone::clone(found),
            None => together.of(transaction, &event, each).await?,
        };
        if whole {
            known.entry(kind).or_insert_with(|| (candidates.clone(), complete));
        }
        if !complete {
            let QueuedEvent { id, tenant, event_type, .. } = event;
            examined.large.push(LargeEvent { event_id: EventId(id), tenant, event_type });
        } else if candidates.len() > left {
            examined.next = Some(EventId(event.id));
            break;
        } else {
            left -= candidates.len();
            considered.push(Considered { event, candidates, complete });
        }
    }
    Ok(considered)
}

/// A saga to insert.
struct Pair {
    event: i64,
    subscription: i64,
    limit: u32,
}

/// The ids of the new sagas, by event and subscription.
async fn insert(transaction: &mut Conn, new: &[Pair], now: Timestamp) -> DbResult<HashMap<(i64, i64), i64>> {
    let (mut inserted, mut first) = (0, None);
    for document in Batch::of(new, |pair| {
        [Field::Int(pair.event), Field::Int(pair.subscription), Field::Int(pair.limit.into()), Field::At(now)]
    }) {
        transaction.exec_drop(INSERT, (document,)).await?;
        inserted += transaction.affected_rows();
        first = transaction.last_insert_id();
    }
    expect_rows("routing", rows(new.len()), inserted)?;
    // Of a single row the server has told the id.
    if let ([pair], Some(id)) = (new, first.and_then(|id| i64::try_from(id).ok())) {
        return Ok(HashMap::from([((pair.event, pair.subscription), id)]));
    }
    let made = sagas(transaction, new).await?;
    expect_rows("routing", rows(made.len()), inserted)?;
    Ok(made)
}

/// The existing sagas of these pairs.
async fn sagas(transaction: &mut Conn, pairs: &[Pair]) -> DbResult<HashMap<(i64, i64), i64>> {
    let mut found = HashMap::with_capacity(pairs.len());
    for document in Batch::of(pairs, |pair| [Field::Int(pair.event), Field::Int(pair.subscription)]) {
        let read: Vec<(i64, i64, i64)> = transaction.exec(SAGAS, (document,)).await?;
        found.extend(read.into_iter().map(|(saga, event, subscription)| ((event, subscription), saga)));
    }
    Ok(found)
}

/// The subscriptions that could not get the event.
fn unmatched(candidates: &[Candidate]) -> Unmatched {
    let mut unmatched = Unmatched::default();
    for candidate in candidates.iter().filter(|candidate| !candidate.deliverable) {
        unmatched.count(candidate.active, candidate.disabled);
    }
    unmatched
}

/// Stores how many subscriptions missed each event, if any did; a later pass adds its own.
async fn note_unmatched(transaction: &mut Conn, considered: &[Considered]) -> DbResult<()> {
    let missed = considered.iter().map(|one| (one.event.id, unmatched(&one.candidates)));
    let missed = missed.filter(|(_, unmatched)| unmatched.total() > 0);
    let number = |count: u64| Field::Int(i64::try_from(count).unwrap_or(i64::MAX));
    for document in Batch::of(missed, |(event, unmatched)| {
        [
            Field::Int(event),
            number(unmatched.paused),
            number(unmatched.disabled),
            number(unmatched.unverified),
        ]
    }) {
        transaction.exec_drop(NOTE_UNMATCHED, (document,)).await?;
    }
    Ok(())
}

/// Queues the events that unverified subscriptions missed and that are older than their gap, if there are any.
async fn queue_gaps(transaction: &mut Conn, considered: &[Considered]) -> DbResult<()> {
    let mut missed = MissedEarly::default();
    for Considered { event, candidates, .. } in considered {
        for candidate in candidates.iter().filter(|candidate| candidate.misses_early(event)) {
            missed.note(SubscriptionId(candidate.subscription), event.created_at);
        }
    }
    for document in Batch::of(missed.gaps(), |gap| {
        [Field::Int(gap.subscription_id.0), Field::At(gap.since), Field::At(gap.until)]
    }) {
        transaction.exec_drop(QUEUE_GAPS, (document,)).await?;
    }
    Ok(())
}

/// Removes the completed events from the queue, and stores the progress of the last one.
fn leave_queue(considered: &[Considered]) -> Vec<String> {
    // In the order of their ids, as they came from the queue.
    let complete = considered.iter().filter(|considered| considered.complete).map(|one| one.event.id);
    let mut statements: Vec<String> =
        Batch::ids(complete).into_iter().map(|document| forget(&document)).collect();
    for Considered { event, candidates, .. } in considered.iter().filter(|considered| !considered.complete) {
        if let Some(last) = candidates.last() {
            statements.push(resume(last.subscription, event.id));
        }
    }
    statements
}
