//! The walk over the events of a time, in the order of their creation: which of them a subscription has no saga of.

use crate::{
    error::{DbError, DbResult},
    roles::{
        batch::{Batch, Field},
        dead_letters::requeue::{LOCK_EVENTS, is_going},
        event_locks,
        rows::{natural, parsed, rows, take},
    },
    time::Time,
};
use hooksaga_saga::{Chosen, EventType, Fate, Saga, SagaId, SubscriptionId, Timestamp, Topics, choose};
use hooksaga_store::{Requeued, RequeuedSaga, StepLimits, Trace};
use mysql_async::{Row, Transaction, prelude::Queryable as _};
use std::collections::HashMap;

/// By the index of creation times, which has the ids in order too; from where the walk is, and no more than asked for.
pub(crate) const NEXT_EVENTS: &str = concat!(
    "/* redrives.next_events */
SELECT e.id, e.created_at, e.tenant, e.event_type, e.correlation_id,
       e.tenant = ? AND (EXISTS (SELECT 1 FROM webhook_delivery_sagas g FORCE INDEX (uniq_saga_event_subscription)
                                 WHERE g.event_id = e.id AND g.subscription_id = ? AND g.generation = 0)
                         OR ",
    is_going!(),
    ")
FROM events e FORCE INDEX (idx_event_created)
WHERE e.created_at >= ? AND e.created_at < ? AND (e.created_at > ? OR e.id > ?)
ORDER BY e.created_at, e.id LIMIT ?"
);

const SUBSCRIPTION: &str = "/* redrives.subscription */
SELECT tenant, event_type, active, verified, max_retry_limit FROM subscriptions WHERE id = ? AND deleted_at IS NULL";

/// Twice is once, by the unique key: what exists was left out before, and what comes in between fails the whole, to be looked
/// at again. The events are locked against the janitor; one that has gone meanwhile, or is going, gets no saga.
pub(crate) const INSERT: &str = concat!(
    "/* redrives.insert */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at, created_at,
     updated_at)
SELECT u.event_id, ?, 0, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (event_id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.event_id
WHERE NOT ",
    is_going!()
);

pub(crate) const MADE: &str = "/* redrives.made */
SELECT s.id, s.event_id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (event_id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (uniq_saga_event_subscription)
    ON s.event_id = u.event_id AND s.subscription_id = ? AND s.generation = 0";

/// Whom the walk is for.
pub(super) struct Subscription {
    pub(super) id: SubscriptionId,
    tenant: String,
    topics: Topics,
    pub(super) active: bool,
    pub(super) verified: bool,
    max_retry_limit: Option<u32>,
}

impl Subscription {
    pub(super) async fn read(
        transaction: &mut Transaction<'_>,
        id: SubscriptionId,
    ) -> DbResult<Option<Self>> {
        let row: Option<Row> = transaction.exec_first(SUBSCRIPTION, (id.0,)).await?;
        let Some(mut row) = row else { return Ok(None) };
        Ok(Some(Self {
            id,
            tenant: take(&mut row, 0)?,
            topics: take::<String>(&mut row, 1)?.parse().map_err(DbError::unreadable)?,
            active: take(&mut row, 2)?,
            verified: take(&mut row, 3)?,
            max_retry_limit: take::<Option<i64>>(&mut row, 4)?.map(natural),
        }))
    }

    pub(super) fn is_deliverable(&self) -> bool {
        self.active && self.verified
    }
}

/// A place in the walk: behind this event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) at: Timestamp,
    pub(super) id: i64,
}

/// Looks at the next events behind a place and before a time, and makes the sagas that are missing.
pub(super) async fn walk(
    transaction: &mut Transaction<'_>,
    subscription: &Subscription,
    after: Place,
    until: Timestamp,
    now: Timestamp,
    limits: StepLimits,
) -> DbResult<(Chosen<Place>, Vec<RequeuedSaga>)> {
    let examine = limits.examine.max(1);
    let at = Time(after.at);
    let values = (&subscription.tenant, subscription.id.0, at, Time(until), at, after.id, examine);
    let read: Vec<Row> = transaction.exec(NEXT_EVENTS, values).await?;
    let is_end = rows(read.len()) < u64::from(examine);
    let mut traces: HashMap<i64, Trace> = HashMap::new();
    let mut seen = Vec::with_capacity(read.len());
    for mut row in read {
        let row = &mut row;
        let place = Place { id: take(row, 0)?, at: take::<Time>(row, 1)?.0 };
        let own = take::<String>(row, 2)? == subscription.tenant;
        let fate = if !own || !subscription.topics.matches(&parsed::<EventType>(&take::<String>(row, 3)?)?) {
            Fate::Pass
        } else if take(row, 5)? {
            Fate::Skip
        } else {
            let (tenant, correlation_id) = (subscription.tenant.clone(), take(row, 4)?);
            traces.insert(place.id, Trace { tenant, correlation_id });
            Fate::Send
        };
        seen.push((place, fate));
    }
    let chosen = choose(&seen, limits.create as usize, is_end);
    let made = insert(transaction, subscription, &chosen, &traces, now, limits.default_limit).await?;
    Ok((chosen, made))
}

async fn insert(
    transaction: &mut Transaction<'_>,
    subscription: &Subscription,
    chosen: &Chosen<Place>,
    traces: &HashMap<i64, Trace>,
    now: Timestamp,
    default_limit: u32,
) -> DbResult<Vec<RequeuedSaga>> {
    let saga = Saga::new(subscription.max_retry_limit.unwrap_or(default_limit), now);
    let mut events: Vec<i64> = chosen.send.iter().map(|place| place.id).collect();
    events.sort_unstable();
    let mut made = Vec::with_capacity(events.len());
    event_locks::lock(transaction, events.iter().copied()).await?;
    for document in Batch::of(&events, |event| [Field::Int(*event)]) {
        let values = (
            subscription.id.0,
            saga.status.as_str(),
            saga.attempt_count,
            saga.max_retry_limit,
            Time(saga.next_attempt_at),
            document.as_str(),
        );
        transaction.exec_drop(LOCK_EVENTS, (document.as_str(),)).await?;
        transaction.exec_drop(INSERT, values).await?;
        let sagas: Vec<(i64, i64)> = transaction.exec(MADE, (document.as_str(), subscription.id.0)).await?;
        made.extend(sagas.into_iter().map(|(saga, event)| RequeuedSaga {
            requeued: Requeued { saga_id: SagaId(saga), generation: 0 },
            subscription_id: subscription.id,
            trace: traces.get(&event).cloned().unwrap_or_default(),
        }));
    }
    Ok(made)
}
