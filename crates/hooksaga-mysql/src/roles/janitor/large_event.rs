//! Events with very many deliveries: their deliveries are removed some at a time.
//!
//! The first step decides about the whole event and lists it in `removals`, where it stays until it is removed. No saga of a
//! listed event is created, so later steps only read the sagas that they remove. The cost of a step does not depend on the
//! number of sagas.

use super::{LOCK, MARK, delete_events, delete_sagas, remains};
use crate::{
    error::{DbError, DbResult},
    roles::{
        batch::Batch,
        event_locks,
        rows::{natural, parsed, rows, take},
    },
    time::SqlTime,
};
use hooksaga_saga::{EventRemains, Expiry, SagaRemains, SubscriptionId};
use hooksaga_store::{DeliveryPlace, EventPart, Removed, RemovedPart};
use mysql_async::{Row, Transaction, prelude::Queryable as _};

pub(crate) const LISTED: &str = "/* janitor.listed */
SELECT e.created_at,
       EXISTS (SELECT 1 FROM removals r FORCE INDEX (PRIMARY) WHERE r.kind = 'event' AND r.subject_id = e.id),
       UTC_TIMESTAMP(6)
FROM events e FORCE INDEX (PRIMARY) WHERE e.id = ?";

/// By the unique key, from where the last step ended.
pub(crate) const PART: &str = "/* janitor.part */
SELECT g.id, g.subscription_id, g.generation, g.status, g.updated_at, d.created_at
FROM (SELECT id, subscription_id, generation, status, updated_at
      FROM webhook_delivery_sagas FORCE INDEX (uniq_saga_event_subscription)
      WHERE event_id = ? AND subscription_id >= ? AND (subscription_id > ? OR generation > ?)
      ORDER BY event_id, subscription_id, generation LIMIT ?) g
LEFT JOIN dead_letters d FORCE INDEX (uniq_dead_letter_saga) ON d.saga_id = g.id";

/// Before the first place of this scan there may be sagas that were created before the event was listed.
pub(crate) const HAS_SAGAS: &str = "/* janitor.has_sagas */
SELECT 1 FROM webhook_delivery_sagas FORCE INDEX (uniq_saga_event_subscription) WHERE event_id = ? LIMIT 1";

pub(super) async fn remove(
    transaction: &mut Transaction<'_>,
    wanted: EventPart,
    expiry: Expiry,
) -> DbResult<RemovedPart> {
    let event = wanted.event;
    let [document] = <[String; 1]>::try_from(Batch::ids([event.0]))
        .map_err(|_| DbError::unreadable("one event in several batches"))?;
    let locked: Option<i64> = transaction.exec_first(LOCK, (document.as_str(),)).await?;
    if locked.is_none() {
        return Ok(RemovedPart::default());
    }
    event_locks::lock(transaction, [event.0]).await?;
    // Statements of their own: they see what was committed before the lock was taken.
    let found: Option<(SqlTime, bool, SqlTime)> = transaction.exec_first(LISTED, (event.0,)).await?;
    let Some((created_at, is_listed, now)) = found else { return Ok(RemovedPart::default()) };
    let expiry = expiry.at_the_latest(now.0);
    if !is_listed {
        let found = remains(transaction, &[event.0]).await?;
        if !found.iter().any(|(event, _)| expiry.may_go(&event.remains)) {
            return Ok(RemovedPart::default());
        }
        transaction.exec_drop(MARK, (document.as_str(),)).await?;
    }

    let (subscription, generation) = wanted.behind();
    let values = (event.0, subscription, subscription, generation, wanted.limit);
    let read: Vec<Row> = transaction.exec(PART, values).await?;
    let mut part = Vec::with_capacity(read.len());
    for mut row in read {
        let row = &mut row;
        let place = DeliveryPlace {
            subscription_id: SubscriptionId(take(row, 1)?),
            generation: natural(take(row, 2)?),
        };
        let saga = SagaRemains {
            status: parsed(&take::<String>(row, 3)?)?,
            updated_at: take::<SqlTime>(row, 4)?.0,
            letter_at: take::<Option<SqlTime>>(row, 5)?.map(|time| time.0),
        };
        part.push((place, take::<i64>(row, 0)?, saga));
    }
    part.sort_unstable_by_key(|(place, ..)| *place);
    let sagas = part.iter().map(|(_, _, saga)| *saga);
    if !expiry.may_go(&EventRemains::of_sagas(created_at.0, sagas)) {
        return Ok(RemovedPart::default());
    }
    let mut removed = Removed::default();
    delete_sagas(transaction, part.iter().map(|(_, saga, _)| *saga).collect(), &mut removed).await?;
    if rows(part.len()) >= u64::from(wanted.limit) {
        return Ok(RemovedPart { removed, resume_after: part.last().map(|(place, ..)| *place) });
    }
    let rest: Option<i64> = transaction.exec_first(HAS_SAGAS, (event.0,)).await?;
    if rest.is_none() {
        delete_events(transaction, &[document], &mut removed).await?;
    }
    Ok(RemovedPart { removed, resume_after: None })
}
