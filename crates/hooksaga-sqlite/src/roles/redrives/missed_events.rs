//! Scans the events of a period, in the order of their creation, for those that a subscription has no saga of.

use crate::{
    error::DbResult,
    roles::{dead_letters::requeue::is_going, rows},
    session::Tx,
};
use hooksaga_saga::{EventId, SubscriptionId};
use hooksaga_store::{EventSpan, MissedEvents, PastEvent, Recipient, StepLimits, Trace};

/// Scans the index of creation times, in which the ids are in order too, from the current position, up to a limit.
pub(crate) const NEXT_EVENTS: &str = concat!(
    "/* redrives.next_events */
SELECT e.id, e.created_at, e.tenant, e.event_type, e.correlation_id,
       e.tenant = ?6 AND (EXISTS (SELECT 1 FROM webhook_delivery_sagas AS g
                                   WHERE g.event_id = e.id AND g.subscription_id = ?5 AND g.generation = 0)
                          OR ",
    is_going!(),
    ")
  FROM events AS e INDEXED BY idx_event_created
 WHERE e.created_at >= ?1 AND e.created_at < ?2 AND (e.created_at > ?1 OR e.id > ?3)
 ORDER BY e.created_at, e.id LIMIT ?4"
);

const SUBSCRIPTION: &str = "/* redrives.subscription_to_walk_for */
SELECT tenant, event_type, active, verified, max_retry_limit FROM subscriptions WHERE id = ?1 AND deleted_at IS NULL";

/// The subscription that a scan is for.
pub(super) fn read(tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Option<Recipient>> {
    let found = rows::all(tx, SUBSCRIPTION, [id.0], |row| {
        Ok(Recipient {
            id,
            tenant: row.get(0)?,
            topics: rows::parsed(row, 1)?,
            active: row.get(2)?,
            verified: row.get(3)?,
            max_retry_limit: row.get(4)?,
        })
    })?;
    Ok(found.into_iter().next())
}

/// The next events of a span, and which of them get a saga.
pub(super) fn scan(
    tx: &Tx<'_>,
    recipient: &Recipient,
    span: EventSpan,
    limits: StepLimits,
) -> DbResult<MissedEvents> {
    let examine = limits.examined();
    let EventSpan { after: (at, id), until } = span;
    let values =
        (at.as_micros(), until.as_micros(), id.0, examine, recipient.id.0, recipient.tenant.as_str());
    let seen = rows::all(tx, NEXT_EVENTS, values, |row| {
        Ok(PastEvent {
            place: (rows::time(row, 1)?, EventId(row.get(0)?)),
            event_type: row.get(3)?,
            is_taken: row.get(5)?,
            trace: Trace { tenant: row.get(2)?, correlation_id: row.get(4)? },
        })
    })?;
    let is_end = seen.len() < examine as usize;
    Ok(recipient.choose(seen, limits.create, is_end)?)
}
