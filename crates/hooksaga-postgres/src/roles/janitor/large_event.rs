//! Events with very many deliveries: their deliveries are removed some at a time.
//!
//! The first step decides about the whole event and lists it in `removals`, where it stays until it is removed. No saga of a
//! listed event is created, so later steps only read the sagas that they remove. The cost of a step does not depend on the
//! number of sagas.

use super::{DELETE_EVENTS, DELETE_SAGAS, LOCK, MARK, REMAINS, UNMARK, ids, remains};
use crate::{
    error::DbResult,
    roles::rows::{bigint, count, integer, natural, parsed},
    time::SqlTime,
};
use deadpool_postgres::Transaction;
use hooksaga_saga::{EventRemains, Expiry, SagaRemains, SubscriptionId};
use hooksaga_store::{DeliveryPlace, EventPart, Removed, RemovedPart};

pub(crate) const LISTED: &str = "/* janitor.listed */
SELECT e.created_at, EXISTS (SELECT FROM removals r WHERE r.kind = 'event' AND r.subject_id = e.id), now()
FROM events e WHERE e.id = $1";

/// By the unique key, from where the last step ended.
pub(crate) const PART: &str = "/* janitor.part */
SELECT g.id, g.subscription_id, g.generation, g.status::text, g.updated_at, d.created_at
FROM (
    SELECT id, subscription_id, generation, status, updated_at FROM webhook_delivery_sagas
    WHERE event_id = $1 AND (subscription_id, generation) > ($2, $3)
    ORDER BY subscription_id, generation LIMIT $4
) g
LEFT JOIN LATERAL (SELECT created_at FROM dead_letters WHERE saga_id = g.id OFFSET 0) d ON true";

pub(super) async fn remove(
    transaction: &Transaction<'_>,
    wanted: EventPart,
    expiry: Expiry,
) -> DbResult<RemovedPart> {
    let event = wanted.event;
    let going = ids(transaction, LOCK, &[event.0]).await?;
    if going.is_empty() {
        return Ok(RemovedPart::default());
    }
    // Statements of their own: they see what was committed before the lock was taken.
    let statement = transaction.prepare_cached(LISTED).await?;
    let row = transaction.query_one(&statement, &[&event.0]).await?;
    let (created_at, is_listed) = (row.try_get::<_, SqlTime>(0)?.0, row.try_get::<_, bool>(1)?);
    let expiry = expiry.at_the_latest(row.try_get::<_, SqlTime>(2)?.0);
    if !is_listed {
        let statement = transaction.prepare_cached(REMAINS).await?;
        let row = transaction.query_one(&statement, &[&going]).await?;
        if !expiry.may_go(&remains(&row)?.0.remains) {
            return Ok(RemovedPart::default());
        }
        let statement = transaction.prepare_cached(MARK).await?;
        transaction.execute(&statement, &[&going]).await?;
    }

    let (subscription, generation) = wanted.behind();
    let statement = transaction.prepare_cached(PART).await?;
    let generation = integer(generation);
    let rows =
        transaction.query(&statement, &[&event.0, &subscription, &generation, &bigint(wanted.limit)]).await?;
    let mut sagas: Vec<i64> = Vec::with_capacity(rows.len());
    let mut part = Vec::with_capacity(rows.len());
    let mut last = None;
    for row in &rows {
        sagas.push(row.try_get(0)?);
        last = Some(DeliveryPlace {
            subscription_id: SubscriptionId(row.try_get(1)?),
            generation: natural(row.try_get(2)?),
        });
        part.push(SagaRemains {
            status: parsed(row.try_get(3)?)?,
            updated_at: row.try_get::<_, SqlTime>(4)?.0,
            letter_at: row.try_get::<_, Option<SqlTime>>(5)?.map(|time| time.0),
        });
    }
    if !expiry.may_go(&EventRemains::of_sagas(created_at, part)) {
        return Ok(RemovedPart::default());
    }
    let statement = transaction.prepare_cached(DELETE_SAGAS).await?;
    let counts = transaction.query_one(&statement, &[&sagas]).await?;
    let mut removed = Removed {
        events: 0,
        sagas: count(counts.try_get(2)?),
        jobs: count(counts.try_get(1)?),
        dead_letters: count(counts.try_get(0)?),
    };
    if sagas.len() >= wanted.limit as usize {
        return Ok(RemovedPart { removed, resume_after: last });
    }
    let statement = transaction.prepare_cached(DELETE_EVENTS).await?;
    removed.events = count(transaction.query_one(&statement, &[&going]).await?.try_get(0)?);
    let statement = transaction.prepare_cached(UNMARK).await?;
    transaction.execute(&statement, &[&going]).await?;
    Ok(RemovedPart { removed, resume_after: None })
}
