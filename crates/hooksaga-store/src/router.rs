//! `router_worker`: makes one saga per event and matching subscription.

use crate::StoreResult;
use async_trait::async_trait;
use hooksaga_saga::{EventId, SagaId, SubscriptionId, Timestamp};
use std::{collections::BTreeMap, fmt};

/// What one pass of routing may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteLimits {
    /// Events taken from the queue.
    pub events: u32,
    /// Subscriptions considered, which is also the most sagas that the pass writes: an event with more matching
    /// subscriptions than that is routed in several passes.
    pub sagas: u32,
}

/// A saga that this pass created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutedSaga {
    pub saga_id: SagaId,
    pub subscription_id: SubscriptionId,
}

/// How many subscriptions with a matching topic got no saga, each counted once: disabled, else paused, else unverified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    pub paused: u64,
    pub disabled: u64,
    pub unverified: u64,
}

impl Unmatched {
    pub fn total(self) -> u64 {
        self.paused + self.disabled + self.unverified
    }

    /// Counts a subscription that is not deliverable.
    pub fn count(&mut self, active: bool, disabled: bool) {
        match (active, disabled) {
            (_, true) => self.disabled += 1,
            (false, false) => self.paused += 1,
            (true, false) => self.unverified += 1,
        }
    }
}

/// "2 of this type: 1 paused, 1 unverified"
impl fmt::Display for Unmatched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of this type", self.total())?;
        let parts = [(self.disabled, "disabled"), (self.paused, "paused"), (self.unverified, "unverified")];
        for (i, (number, what)) in parts.into_iter().filter(|(number, _)| *number > 0).enumerate() {
            write!(f, "{} {number} {what}", if i == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

/// A time of which a subscription missed events, because it was not verified when they were routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub subscription_id: SubscriptionId,
    /// Created at or after.
    pub since: Timestamp,
    /// Created before.
    pub until: Timestamp,
}

/// Events that a pass found unverified subscriptions for, though they were created before `unverified_since`: their
/// transaction committed late, or the URL changed before they were routed. The gap that the verification queues begins
/// later, so the router queues these itself.
#[derive(Clone, Debug, Default)]
pub struct MissedEarly(BTreeMap<(SubscriptionId, i64), Gap>);

impl MissedEarly {
    /// Events of a pass that are no further apart share a gap: few rows for a long queue, and next to no other events
    /// in between.
    const TOGETHER: i64 = 1_000_000;

    pub fn note(&mut self, subscription_id: SubscriptionId, created_at: Timestamp) {
        let behind = Timestamp::from_micros(created_at.as_micros() + 1);
        let gap = Gap { subscription_id, since: created_at, until: behind };
        let key = (subscription_id, created_at.as_micros().div_euclid(Self::TOGETHER));
        let known = self.0.entry(key).or_insert(gap);
        known.since = known.since.min(created_at);
        known.until = known.until.max(behind);
    }

    pub fn gaps(&self) -> impl Iterator<Item = &Gap> {
        self.0.values()
    }
}

/// An event that this pass worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedEvent {
    pub event_id: EventId,
    pub tenant: String,
    pub event_type: String,
    pub correlation_id: String,
    /// The sagas that are new; one that was there already is not listed.
    pub sagas: Vec<RoutedSaga>,
    /// The subscriptions that this pass considered and that could not be delivered to.
    pub unmatched: Unmatched,
    /// Whether every matching subscription has been considered: the event has left the queue. If not, a later pass
    /// resumes where this one stopped.
    pub complete: bool,
    /// Nobody gets it: this pass considered every matching subscription, from the first to the last, and none could be
    /// delivered to. Never so for a test event, which is not routed to its subscription.
    pub unwanted: bool,
}

/// What examining some events may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallLimits {
    /// The most subscriptions that a small event matches.
    pub each: u32,
    /// Subscriptions of all small events together. At least `each`.
    pub sagas: u32,
    /// For subscriptions that have no limit of retries of their own.
    pub default_limit: u32,
}

/// What routing listed events may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedLimits {
    /// Subscriptions that are considered.
    pub sagas: u32,
    /// For subscriptions that have no limit of retries of their own.
    pub default_limit: u32,
}

/// A queued event that matches more subscriptions than a small one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeEvent {
    pub event_id: EventId,
    pub tenant: String,
    pub event_type: String,
}

/// What became of the events that were examined. One that is in neither list has left the queue, or somebody else has
/// locked it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examined {
    /// The small ones, all complete, in the order of event ids.
    pub routed: Vec<RoutedEvent>,
    pub large: Vec<LargeEvent>,
    /// The first one that was not examined, because there was no room left for it.
    pub next: Option<EventId>,
}

/// One pass of routing, in the order of event ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteBatch {
    pub events: Vec<RoutedEvent>,
}

#[async_trait]
pub trait RouterStore: Send + Sync {
    /// Locks queued events (those that nobody else has locked), oldest first, THEN resolves the active and verified
    /// subscriptions of their tenant with a topic that matches, by index and in the order of subscription ids, and inserts
    /// generation 0 sagas that are not there yet (`max_retry_limit`: the subscription's, else `default_limit`).
    ///
    /// An event whose subscriptions have all been considered leaves the queue. The event at which `limits.sagas` was
    /// reached stays, with the last subscription id that was considered stored beside it in the same commit; events
    /// behind it are not touched. Subscriptions that matched but could not get the event are counted beside it; for one
    /// that is not verified, and an event older than its gap, the event's time is queued for catching up. At most one
    /// event of a pass is incomplete: the last one.
    async fn route(&self, limits: RouteLimits, default_limit: u32) -> StoreResult<RouteBatch>;

    /// The first `limit` events in the queue behind `after`, by its key and without a lock.
    async fn queued(&self, after: EventId, limit: u32) -> StoreResult<Vec<EventId>>;

    /// Of these events, which are in the order of their ids: each that matches no more than `limits.each` further subscriptions is
    /// routed to its end, until the next small one exceeds `limits.sagas`. The large ones are not touched, and are named.
    async fn route_small(&self, events: &[EventId], limits: SmallLimits) -> StoreResult<Examined>;

    /// [`Self::route`], of these events only.
    async fn route_listed(&self, events: &[EventId], limits: ListedLimits) -> StoreResult<RouteBatch>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_second_share_a_gap_and_no_other_do() {
        let mut missed = MissedEarly::default();
        for (subscription, micros) in [(1, 5_000_007), (1, 5_000_003), (1, 7_000_000), (2, 5_000_004)] {
            missed.note(SubscriptionId(subscription), Timestamp::from_micros(micros));
        }
        let gap = |id, since, until| Gap {
            subscription_id: SubscriptionId(id),
            since: Timestamp::from_micros(since),
            until: Timestamp::from_micros(until),
        };
        let expected =
            [gap(1, 5_000_003, 5_000_008), gap(1, 7_000_000, 7_000_001), gap(2, 5_000_004, 5_000_005)];
        assert_eq!(missed.gaps().copied().collect::<Vec<_>>(), expected);
    }
}
