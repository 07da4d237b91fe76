//! Events with very many deliveries: their deliveries are removed some at a time.
//!
//! The first step decides about the whole event and lists it in `removals`, where it stays until it is removed. No saga of a
//! listed event is created, so later steps only read the sagas that they remove. The cost of a step does not depend on the
//! number of sagas.

use super::{DELETE_EVENT, DELETE_UNMATCHED, MARK, UNMARK, clock, delete_saga, remains};
use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::{EventRemains, Expiry, SagaRemains, SubscriptionId};
use hooksaga_store::{DeliveryPlace, EventPart, Removed, RemovedPart};
use rusqlite::OptionalExtension;

pub(super) const LISTED: &str = "/* janitor.listed */
SELECT e.created_at, EXISTS (SELECT 1 FROM removals AS r WHERE r.kind = 'event' AND r.subject_id = e.id)
  FROM events AS e WHERE e.id = ?1";

/// By the unique key, from where the last step ended.
pub(super) const PART: &str = "/* janitor.part */
SELECT g.id, g.subscription_id, g.generation, g.status, g.updated_at, d.created_at
  FROM webhook_delivery_sagas AS g INDEXED BY uniq_saga_event_subscription
  LEFT JOIN dead_letters AS d ON d.saga_id = g.id
 WHERE g.event_id = ?1 AND (g.subscription_id, g.generation) > (?2, ?3)
 ORDER BY g.subscription_id, g.generation LIMIT ?4";

/// Before the first place of this scan there may be sagas that were created before the event was listed.
pub(super) const HAS_SAGAS: &str = "/* janitor.has_sagas */
SELECT 1 FROM webhook_delivery_sagas INDEXED BY uniq_saga_event_subscription WHERE event_id = ?1 LIMIT 1";

pub(super) fn remove(tx: &Tx<'_>, wanted: EventPart, expiry: Expiry) -> DbResult<RemovedPart> {
    let (event, expiry) = (wanted.event, expiry.at_the_latest(clock(tx)?));
    let found = tx
        .prepare(LISTED)?
        .query_row([event.0], |row| Ok((rows::time(row, 0)?, row.get::<_, bool>(1)?)))
        .optional()?;
    let Some((created_at, is_listed)) = found else { return Ok(RemovedPart::default()) };
    if !is_listed {
        if !remains(tx, event)?.is_some_and(|event| expiry.may_go(&event.remains)) {
            return Ok(RemovedPart::default());
        }
        tx.execute(MARK, [event.0])?;
    }
    let (subscription, generation) = wanted.behind();
    let part = rows::all(tx, PART, (event.0, subscription, generation, wanted.limit), |row| {
        let place = DeliveryPlace { subscription_id: SubscriptionId(row.get(1)?), generation: row.get(2)? };
        let saga = SagaRemains {
            status: rows::parsed(row, 3)?,
            updated_at: rows::time(row, 4)?,
            letter_at: rows::optional_time(row, 5)?,
        };
        Ok((row.get::<_, i64>(0)?, place, saga))
    })?;
    let sagas = part.iter().map(|(_, _, saga)| *saga);
    if !expiry.may_go(&EventRemains::of_sagas(created_at, sagas)) {
        return Ok(RemovedPart::default());
    }
    let mut removed = Removed::default();
    for (saga, ..) in &part {
        delete_saga(tx, *saga, &mut removed)?;
    }
    if part.len() >= wanted.limit as usize {
        let resume_after = part.last().map(|(_, place, _)| *place);
        return Ok(RemovedPart { removed, resume_after });
    }
    if !tx.prepare(HAS_SAGAS)?.exists([event.0])? {
        tx.execute(DELETE_UNMATCHED, [event.0])?;
        removed.events = tx.execute(DELETE_EVENT, [event.0])? as u64;
        tx.execute(UNMARK, [event.0])?;
    }
    Ok(RemovedPart { removed, resume_after: None })
}
