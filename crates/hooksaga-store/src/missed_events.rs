//! Scans the events of a period, in the order of their creation, for those that a subscription has no saga of. A back end
//! reads the events; this file decides what follows from them.

use crate::{EventPlace, Requeued, RequeuedSaga, StoreError, StoreResult, Trace};
use hooksaga_saga::{
    Chosen, EventId, EventType, Fate, Saga, SagaId, SubscriptionId, Timestamp, Topics, choose,
};
use std::collections::HashMap;

/// Whom the scan is for: a subscription that is not deleted.
#[derive(Clone, Debug)]
pub struct Recipient {
    pub id: SubscriptionId,
    pub tenant: String,
    pub topics: Topics,
    pub active: bool,
    pub verified: bool,
    pub max_retry_limit: Option<u32>,
}

/// Which events a step examines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventSpan {
    /// Behind this one.
    pub after: EventPlace,
    /// Created before.
    pub until: Timestamp,
}

/// An event that a step examines.
#[derive(Clone, Debug)]
pub struct PastEvent {
    pub place: EventPlace,
    pub trace: Trace,
    pub event_type: String,
    /// The subscription has a saga of it, or the event is about to be removed.
    pub is_taken: bool,
}

/// What a step makes sagas of.
#[derive(Clone, Debug)]
pub struct MissedEvents {
    pub chosen: Chosen<EventPlace>,
    subscription_id: SubscriptionId,
    /// Of those to send.
    traces: HashMap<EventId, Trace>,
}

impl Recipient {
    pub fn is_deliverable(&self) -> bool {
        self.active && self.verified
    }

    /// The saga that each event gets.
    pub fn saga(&self, default_limit: u32, now: Timestamp) -> Saga {
        Saga::new(self.max_retry_limit.unwrap_or(default_limit), now)
    }

    /// Chooses up to `most` of these events, which are in the order of the scan. `is_end` says that there are none behind
    /// them.
    pub fn choose(&self, events: Vec<PastEvent>, most: u32, is_end: bool) -> StoreResult<MissedEvents> {
        let mut traces = HashMap::new();
        let mut seen = Vec::with_capacity(events.len());
        for event in events {
            let fate = self.fate(&event)?;
            if fate == Fate::Send {
                traces.insert(event.place.1, event.trace);
            }
            seen.push((event.place, fate));
        }
        let chosen = choose(&seen, most as usize, is_end);
        Ok(MissedEvents { chosen, subscription_id: self.id, traces })
    }

    fn fate(&self, event: &PastEvent) -> StoreResult<Fate> {
        if event.trace.tenant != self.tenant {
            return Ok(Fate::Pass);
        }
        let event_type =
            event.event_type.parse::<EventType>().map_err(|error| StoreError::Other(error.to_string()))?;
        Ok(match self.topics.matches(&event_type) {
            false => Fate::Pass,
            true if event.is_taken => Fate::Skip,
            true => Fate::Send,
        })
    }
}

impl MissedEvents {
    /// The events to send.
    pub fn events(&self) -> impl Iterator<Item = EventId> {
        self.chosen.send.iter().map(|place| place.1)
    }

    /// The saga that was made of an event.
    pub fn made(&self, saga_id: SagaId, event: EventId) -> RequeuedSaga {
        RequeuedSaga {
            requeued: Requeued { saga_id, generation: 0 },
            subscription_id: self.subscription_id,
            trace: self.traces.get(&event).cloned().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: i64, tenant: &str, event_type: &str, is_taken: bool) -> PastEvent {
        let trace = Trace { tenant: tenant.to_owned(), correlation_id: format!("c{id}") };
        let place = (Timestamp::from_micros(id), EventId(id));
        PastEvent { place, trace, event_type: event_type.to_owned(), is_taken }
    }

    #[test]
    fn events_of_the_tenant_and_the_topics_that_have_no_saga_get_one() {
        let recipient = Recipient {
            id: SubscriptionId(7),
            tenant: "acme".to_owned(),
            topics: "order.*".parse().unwrap(),
            active: true,
            verified: true,
            max_retry_limit: None,
        };
        let events = vec![
            event(1, "acme", "order.paid", false),
            event(2, "other", "order.paid", false),
            event(3, "acme", "user.left", false),
            event(4, "acme", "order.sent", true),
            event(5, "acme", "order.sent", false),
            event(6, "acme", "order.sent", false),
        ];
        let missed = recipient.choose(events, 2, true).unwrap();
        assert_eq!(missed.events().collect::<Vec<_>>(), [EventId(1), EventId(5)]);
        assert_eq!((missed.chosen.examined, missed.chosen.skipped, missed.chosen.is_end), (3, 1, false));
        assert_eq!(missed.chosen.reached, Some((Timestamp::from_micros(5), EventId(5))));
        let made = missed.made(SagaId(9), EventId(5));
        assert_eq!((made.subscription_id, made.trace.correlation_id.as_str()), (SubscriptionId(7), "c5"));
    }
}
