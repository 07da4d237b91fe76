//! The walk over the events of a time, in the order of their creation: which of them a subscription has no saga of.

use crate::{
    error::DbResult,
    roles::{dead_letters::is_going, rows},
    session::Tx,
};
use hooksaga_saga::{Chosen, EventId, EventType, Fate, SubscriptionId, Timestamp, Topics, choose};
use hooksaga_store::{StepLimits, Trace};
use std::collections::HashMap;

/// By the index of creation times, which has the ids in order too; from where the walk is, and no more than asked for.
pub(crate) const NEXT_EVENTS: &str = concat!(
    "/* dead_letter_operator: next_events */
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

const SUBSCRIPTION: &str = "/* dead_letter_operator: subscription_to_walk_for */
SELECT tenant, event_type, active, verified FROM subscriptions WHERE id = ?1 AND deleted_at IS NULL";

/// Whom the walk is for.
pub(super) struct Subscription {
    pub(super) id: SubscriptionId,
    tenant: String,
    topics: Topics,
    pub(super) active: bool,
    pub(super) verified: bool,
}

impl Subscription {
    pub(super) fn read(tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Option<Self>> {
        let found = rows::all(tx, SUBSCRIPTION, [id.0], |row| {
            let (tenant, topics) = (row.get(0)?, rows::parsed(row, 1)?);
            Ok(Self { id, tenant, topics, active: row.get(2)?, verified: row.get(3)? })
        })?;
        Ok(found.into_iter().next())
    }

    pub(super) fn is_deliverable(&self) -> bool {
        self.active && self.verified
    }
}

/// A place in the walk: behind this event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) at: Timestamp,
    pub(super) id: EventId,
}

/// What a step found.
pub(super) struct Walked {
    pub(super) chosen: Chosen<Place>,
    /// Of those to send.
    pub(super) traces: HashMap<EventId, Trace>,
}

/// The next events behind a place and before a time.
pub(super) fn walk(
    tx: &Tx<'_>,
    subscription: &Subscription,
    after: Place,
    until: Timestamp,
    limits: StepLimits,
) -> DbResult<Walked> {
    let examine = limits.examine.max(1);
    let values = (
        after.at.as_micros(),
        until.as_micros(),
        after.id.0,
        examine,
        subscription.id.0,
        subscription.tenant.as_str(),
    );
    let mut traces = HashMap::new();
    let seen = rows::all(tx, NEXT_EVENTS, values, |row| {
        let place = Place { id: EventId(row.get(0)?), at: rows::time(row, 1)? };
        let own = row.get_ref(2)?.as_str()? == subscription.tenant;
        if !own || !subscription.topics.matches(&rows::parsed::<EventType>(row, 3)?) {
            return Ok((place, Fate::Pass));
        }
        if row.get(5)? {
            return Ok((place, Fate::Skip));
        }
        traces.insert(place.id, Trace { tenant: subscription.tenant.clone(), correlation_id: row.get(4)? });
        Ok((place, Fate::Send))
    })?;
    let is_end = seen.len() < examine as usize;
    Ok(Walked { chosen: choose(&seen, limits.create as usize, is_end), traces })
}
