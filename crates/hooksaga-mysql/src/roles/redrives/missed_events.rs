//! Scans the events of a period, in the order of their creation, for those that a subscription has no saga of.

use crate::{
    error::{DbError, DbResult},
    roles::{
        batch::{Batch, Field},
        dead_letters::requeue::{LOCK_EVENTS, is_going},
        event_locks,
        rows::{natural, rows, take},
    },
    time::SqlTime,
};
use hooksaga_saga::{EventId, Saga, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{EventSpan, MissedEvents, PastEvent, Recipient, RequeuedSaga, StepLimits, Trace};
use mysql_async::{Row, Transaction, prelude::Queryable as _};

/// Scans the index of creation times, in which the ids are in order too, from the current position, up to a limit.
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

/// Idempotent through the unique key. Existing sagas were excluded by the read before; if another transaction inserts
/// one in between, this INSERT fails as a whole and the step is repeated. The events are locked against the janitor;
/// one that was removed meanwhile, or is being removed, gets no saga.
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

/// The subscription that a scan is for.
pub(super) async fn read(
    transaction: &mut Transaction<'_>,
    id: SubscriptionId,
) -> DbResult<Option<Recipient>> {
    let row: Option<Row> = transaction.exec_first(SUBSCRIPTION, (id.0,)).await?;
    let Some(mut row) = row else { return Ok(None) };
    Ok(Some(Recipient {
        id,
        tenant: take(&mut row, 0)?,
        topics: take::<String>(&mut row, 1)?.parse().map_err(DbError::unreadable)?,
        active: take(&mut row, 2)?,
        verified: take(&mut row, 3)?,
        max_retry_limit: take::<Option<i64>>(&mut row, 4)?.map(natural),
    }))
}

/// Scans the next events of a span, and inserts the missing sagas.
pub(super) async fn scan(
    transaction: &mut Transaction<'_>,
    recipient: &Recipient,
    EventSpan { after: (at, id), until }: EventSpan,
    now: Timestamp,
    limits: StepLimits,
) -> DbResult<(MissedEvents, Vec<RequeuedSaga>)> {
    let (at, until) = (SqlTime(at), SqlTime(until));
    let values = (&recipient.tenant, recipient.id.0, at, until, at, id.0, limits.examined());
    let read: Vec<Row> = transaction.exec(NEXT_EVENTS, values).await?;
    let is_end = rows(read.len()) < u64::from(limits.examined());
    let seen = read.into_iter().map(event).collect::<DbResult<Vec<_>>>()?;
    let missed = recipient.choose(seen, limits.create, is_end)?;
    let saga = recipient.saga(limits.default_limit, now);
    let made = insert(transaction, recipient.id, &missed, &saga).await?;
    Ok((missed, made))
}

fn event(mut row: Row) -> DbResult<PastEvent> {
    let row = &mut row;
    Ok(PastEvent {
        place: (take::<SqlTime>(row, 1)?.0, EventId(take(row, 0)?)),
        event_type: take(row, 3)?,
        is_taken: take(row, 5)?,
        trace: Trace { tenant: take(row, 2)?, correlation_id: take(row, 4)? },
    })
}

async fn insert(
    transaction: &mut Transaction<'_>,
    subscription: SubscriptionId,
    missed: &MissedEvents,
    saga: &Saga,
) -> DbResult<Vec<RequeuedSaga>> {
    let mut events: Vec<i64> = missed.events().map(|event| event.0).collect();
    events.sort_unstable();
    let mut made = Vec::with_capacity(events.len());
    event_locks::lock(transaction, events.iter().copied()).await?;
    for document in Batch::of(&events, |event| [Field::Int(*event)]) {
        let values = (
            subscription.0,
            saga.status.as_str(),
            saga.attempt_count,
            saga.max_retry_limit,
            SqlTime(saga.next_attempt_at),
            document.as_str(),
        );
        transaction.exec_drop(LOCK_EVENTS, (document.as_str(),)).await?;
        transaction.exec_drop(INSERT, values).await?;
        let sagas: Vec<(i64, i64)> = transaction.exec(MADE, (document.as_str(), subscription.0)).await?;
        made.extend(sagas.into_iter().map(|(saga, event)| missed.made(SagaId(saga), EventId(event))));
    }
    Ok(made)
}
