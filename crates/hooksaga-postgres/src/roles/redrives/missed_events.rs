//! Scans the events of a period, in the order of their creation, for those that a subscription has no saga of.

use crate::{
    error::{DbError, DbResult},
    roles::{
        dead_letters::requeue::{is_going, lock_events},
        rows::{bigint, integer, natural},
    },
    time::SqlTime,
};
use deadpool_postgres::Transaction;
use hooksaga_saga::{EventId, Saga, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{EventSpan, MissedEvents, PastEvent, Recipient, RequeuedSaga, StepLimits, Trace};
use tokio_postgres::Row;

/// By the index of creation times, from where the scan is, and no more than asked for: events of one moment are sorted as
/// they come (Incremental Sort).
pub(crate) const NEXT_EVENTS: &str = concat!(
    "/* redrives.next_events */
SELECT e.id, e.created_at, e.tenant, e.event_type, e.correlation_id,
       e.tenant = $6 AND (EXISTS (SELECT FROM webhook_delivery_sagas g
                                  WHERE g.event_id = e.id AND g.subscription_id = $5 AND g.generation = 0)
                          OR ",
    is_going!(),
    ")
FROM events e
WHERE e.created_at >= $1 AND e.created_at < $2 AND (e.created_at > $1 OR e.id > $3)
ORDER BY e.created_at, e.id LIMIT $4"
);

const SUBSCRIPTION: &str = "/* redrives.subscription */
SELECT tenant, event_type, active, verified, max_retry_limit FROM subscriptions WHERE id = $1 AND deleted_at IS NULL";

/// Idempotent through the unique key (event, subscription, generation). The events are locked against the janitor; one
/// that was removed meanwhile, or is being removed, gets no saga.
pub(crate) const INSERT: &str = concat!(
    "/* redrives.insert */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at, created_at,
     updated_at)
SELECT e.id, $2, 0, $3::text::saga_status, $4, $5, $6, now(), now()
FROM unnest($1::bigint[]) AS u (event_id) JOIN events e ON e.id = u.event_id
WHERE NOT ",
    is_going!(),
    "
ORDER BY e.id
ON CONFLICT DO NOTHING
RETURNING id, event_id"
);

/// The subscription that a scan is for.
pub(super) async fn read(transaction: &Transaction<'_>, id: SubscriptionId) -> DbResult<Option<Recipient>> {
    let statement = transaction.prepare_cached(SUBSCRIPTION).await?;
    let Some(row) = transaction.query_opt(&statement, &[&id.0]).await? else { return Ok(None) };
    Ok(Some(Recipient {
        id,
        tenant: row.try_get(0)?,
        topics: row.try_get::<_, &str>(1)?.parse().map_err(DbError::unreadable)?,
        active: row.try_get(2)?,
        verified: row.try_get(3)?,
        max_retry_limit: row.try_get::<_, Option<i32>>(4)?.map(natural),
    }))
}

/// Scans the next events of a span, and inserts the missing sagas.
pub(super) async fn scan(
    transaction: &Transaction<'_>,
    recipient: &Recipient,
    EventSpan { after: (at, id), until }: EventSpan,
    now: Timestamp,
    limits: StepLimits,
) -> DbResult<(MissedEvents, Vec<RequeuedSaga>)> {
    let statement = transaction.prepare_cached(NEXT_EVENTS).await?;
    let rows = transaction
        .query(
            &statement,
            &[
                &SqlTime(at),
                &SqlTime(until),
                &id.0,
                &bigint(limits.examined()),
                &recipient.id.0,
                &recipient.tenant,
            ],
        )
        .await?;
    let seen = rows.iter().map(event).collect::<DbResult<Vec<_>>>()?;
    let missed = recipient.choose(seen, limits.create, rows.len() < limits.examined() as usize)?;
    let saga = recipient.saga(limits.default_limit, now);
    let made = insert(transaction, recipient.id, &missed, &saga).await?;
    Ok((missed, made))
}

fn event(row: &Row) -> DbResult<PastEvent> {
    Ok(PastEvent {
        place: (row.try_get::<_, SqlTime>(1)?.0, EventId(row.try_get(0)?)),
        event_type: row.try_get(3)?,
        is_taken: row.try_get(5)?,
        trace: Trace { tenant: row.try_get(2)?, correlation_id: row.try_get(4)? },
    })
}

async fn insert(
    transaction: &Transaction<'_>,
    subscription: SubscriptionId,
    missed: &MissedEvents,
    saga: &Saga,
) -> DbResult<Vec<RequeuedSaga>> {
    let events: Vec<i64> = missed.events().map(|event| event.0).collect();
    if events.is_empty() {
        return Ok(Vec::new());
    }
    lock_events(transaction, &events).await?;
    let statement = transaction.prepare_cached(INSERT).await?;
    let rows = transaction
        .query(
            &statement,
            &[
                &events,
                &subscription.0,
                &saga.status.as_str(),
                &integer(saga.attempt_count),
                &integer(saga.max_retry_limit),
                &SqlTime(saga.next_attempt_at),
            ],
        )
        .await?;
    let made = |row: &Row| Ok(missed.made(SagaId(row.try_get(0)?), EventId(row.try_get(1)?)));
    rows.iter().map(made).collect()
}
