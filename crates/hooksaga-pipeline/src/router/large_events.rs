//! What the router knows of a queue in which large events wait: which ones they are, up to where it has examined the queue, and
//! whose turn is next.
//!
//! Each event of the queue is examined once, in the order of arrival. Large ones are remembered here, so that nobody looks at
//! them again before their turn. All of this is memory: another router, or the next process, examines the queue for itself.

use hooksaga_saga::EventId;
use hooksaga_store::{Examined, LargeEvent, RoutedEvent};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::Bound,
    time::{Duration, Instant},
};

#[derive(Debug)]
pub(super) struct LargeEvents {
    /// When a large event was last worked on.
    pub(super) last_step: Instant,
    /// Large events that wait: by tenant, and in each tenant by type.
    waiting: Ring<Ring<BTreeSet<EventId>>>,
    /// How long steps that began with each of them have waited, in all.
    known: HashMap<EventId, Duration>,
    /// Events that somebody else had locked, or that have left the queue.
    passed_over: HashSet<EventId>,
    /// The last event up to which the queue has been examined.
    reached: EventId,
    /// The newest event that was examined.
    newest: EventId,
    /// When the queue was last examined from its beginning.
    swept: Instant,
}

impl LargeEvents {
    /// Large events that are remembered. Those beyond that are found again when half of these are done.
    const MOST: usize = 100_000;
    /// Ids are handed out before the commits of ingestion: an event can appear behind newer ones, but hardly by more ids than this.
    const MARGIN: i64 = 2000;
    /// What commits later than that, and what was passed over, is found this soon.
    const SWEPT_EVERY: Duration = Duration::from_secs(1);

    pub(super) fn new(now: Instant) -> Self {
        Self {
            last_step: now,
            waiting: Ring::default(),
            known: HashMap::new(),
            passed_over: HashSet::new(),
            reached: EventId(0),
            newest: EventId(0),
            swept: now,
        }
    }

    /// Whether no large event waits, as far as is known.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The event behind which the next pass looks for new ones.
    pub(super) fn begin(&mut self, now: Instant) -> EventId {
        if now.saturating_duration_since(self.swept) >= Self::SWEPT_EVERY {
            self.swept = now;
            self.passed_over.clear();
            if self.known.len() <= Self::MOST / 2 {
                self.reached = EventId(0);
            }
        }
        if self.reached < self.newest { self.reached } else { EventId(self.reached.0 - Self::MARGIN) }
    }

    /// Whether this event is still to be examined.
    pub(super) fn is_new(&self, event: EventId) -> bool {
        !self.known.contains_key(&event) && !self.passed_over.contains(&event)
    }

    /// Notes what became of these events.
    pub(super) fn examined(&mut self, events: &[EventId], examined: &Examined) {
        let routed: HashSet<EventId> = examined.routed.iter().map(|event| event.event_id).collect();
        let stayed = events.iter().filter(|event| !routed.contains(event));
        self.passed_over.extend(stayed);
        for LargeEvent { event_id, tenant, event_type } in &examined.large {
            if self.known.len() < Self::MOST {
                self.passed_over.remove(event_id);
                self.known.insert(*event_id, Duration::ZERO);
                self.waiting.member(tenant).member(event_type).insert(*event_id);
            }
        }
    }

    /// The queue has been examined up to this event.
    pub(super) fn reached(&mut self, event: EventId) {
        self.newest = self.newest.max(event);
        // There is no room for more: newer events can be small, older ones can wait.
        self.reached = if self.known.len() < Self::MOST { event } else { self.newest };
    }

    /// How long the steps of the event whose turn is next have waited, in all.
    pub(super) fn next_has_waited(&self) -> Duration {
        let next = self.waiting.peek().and_then(Ring::peek).and_then(BTreeSet::first);
        next.and_then(|event| self.known.get(event)).copied().unwrap_or_default()
    }

    /// The next turn: the oldest events of one type of one tenant. Tenants take turns, and so do the types of each.
    pub(super) fn turn(&mut self, most: usize, now: Instant) -> Vec<EventId> {
        let events = self.waiting.next().and_then(Ring::next);
        let events: Vec<EventId> =
            events.map(|events| events.iter().copied().take(most).collect()).unwrap_or_default();
        if let Some(waited) = events.first().and_then(|event| self.known.get_mut(event)) {
            *waited += now.saturating_duration_since(self.last_step);
        }
        events
    }

    /// Notes what became of a turn's events. What is not routed to its end goes on with the next turn of its type.
    pub(super) fn stepped(&mut self, events: &[EventId], routed: &[RoutedEvent], now: Instant) {
        self.last_step = now;
        let unfinished = routed.last().filter(|event| !event.complete).map(|event| event.event_id);
        let left = events.iter().filter(|event| unfinished.is_none_or(|unfinished| **event < unfinished));
        let left: Vec<EventId> = left.copied().collect();
        for event in &left {
            self.known.remove(event);
        }
        self.waiting.prune(|types| {
            types.prune(|waiting| {
                for event in &left {
                    waiting.remove(event);
                }
                waiting.is_empty()
            });
            types.members.is_empty()
        });
        // One that was not completed, somebody else works on.
        self.passed_over.extend(left);
    }
}

/// Members that take turns in the order of their names.
#[derive(Debug)]
struct Ring<T> {
    members: BTreeMap<String, T>,
    /// Whose turn was last.
    last: String,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self { members: BTreeMap::new(), last: String::new() }
    }
}

impl<T: Default> Ring<T> {
    fn member(&mut self, name: &str) -> &mut T {
        self.members.entry(name.to_owned()).or_default()
    }
}

impl<T> Ring<T> {
    fn next_entry(&self) -> Option<(&String, &T)> {
        let behind = (Bound::Excluded(self.last.as_str()), Bound::Unbounded);
        self.members.range::<str, _>(behind).next().or_else(|| self.members.first_key_value())
    }

    /// Whose turn is next.
    fn peek(&self) -> Option<&T> {
        self.next_entry().map(|(_, member)| member)
    }

    fn next(&mut self) -> Option<&mut T> {
        self.last = self.next_entry()?.0.clone();
        self.members.get_mut(&self.last)
    }

    /// Changes the member whose turn was last; it goes if the change says that nothing is left of it.
    fn prune(&mut self, change: impl FnOnce(&mut T) -> bool) {
        if self.members.get_mut(&self.last).is_some_and(change) {
            self.members.remove(&self.last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn large(event: i64, tenant: &str, event_type: &str) -> LargeEvent {
        let [tenant, event_type] = [tenant, event_type].map(str::to_owned);
        LargeEvent { event_id: EventId(event), tenant, event_type }
    }

    fn crowd(now: Instant, large: Vec<LargeEvent>) -> LargeEvents {
        let mut crowd = LargeEvents::new(now);
        let events: Vec<EventId> = large.iter().map(|event| event.event_id).collect();
        crowd.examined(&events, &Examined { large, ..Examined::default() });
        crowd.reached(*events.last().unwrap());
        crowd
    }

    #[test]
    fn tenants_take_turns_and_in_each_its_types() {
        let now = Instant::now();
        let queue = [(1, "a", "x"), (2, "a", "x"), (3, "a", "y"), (4, "b", "x"), (5, "a", "x")];
        let mut crowd = crowd(now, queue.map(|(event, tenant, kind)| large(event, tenant, kind)).into());
        let mut turns = Vec::new();
        while !crowd.is_empty() {
            let turn = crowd.turn(2, now);
            turns.push(turn.iter().map(|event| event.0).collect::<Vec<_>>());
            crowd.stepped(&turn, &[], now);
        }
        assert_eq!(turns, [vec![1, 2], vec![4], vec![3], vec![5]]);
        assert_eq!(crowd.turn(2, now), []);
    }

    #[test]
    fn what_is_not_routed_to_its_end_has_another_turn() {
        let now = Instant::now();
        let mut crowd = crowd(now, (1..=3).map(|event| large(event, "a", "x")).collect());
        let turn = crowd.turn(3, now);
        let routed = |event, complete| RoutedEvent {
            event_id: EventId(event),
            tenant: String::new(),
            event_type: "order.created".to_owned(),
            correlation_id: String::new(),
            sagas: Vec::new(),
            unmatched: hooksaga_store::Unmatched::default(),
            complete,
            unwanted: false,
        };
        crowd.stepped(&turn, &[routed(1, true), routed(2, false)], now);
        assert_eq!(crowd.turn(3, now), [EventId(2), EventId(3)]);
    }

    /// One that has waited long enough does not make the next one wait less.
    #[test]
    fn each_event_waits_by_itself() {
        let now = Instant::now();
        let mut crowd = crowd(now, (1..=2).map(|event| large(event, "a", "x")).collect());
        let step = Duration::from_millis(250);
        assert_eq!(crowd.next_has_waited(), Duration::ZERO);
        for steps in 1..=3 {
            let first = crowd.turn(1, now + steps * step);
            assert_eq!(first, [EventId(1)]);
            assert_eq!(crowd.next_has_waited(), steps * step);
            crowd.last_step = now + steps * step;
        }
        crowd.stepped(&[EventId(1)], &[], now + 3 * step);
        assert_eq!(crowd.next_has_waited(), Duration::ZERO, "it is the second one's turn");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_rest_is_found_later() {
        let mut now = Instant::now();
        let last = i64::try_from(LargeEvents::MOST).unwrap() + 10;
        let mut crowd = crowd(now, (1..=last).map(|event| large(event, "a", "x")).collect());
        assert_eq!(crowd.known.len(), LargeEvents::MOST);
        let newest = EventId(last - LargeEvents::MARGIN);
        assert_eq!((crowd.begin(now), crowd.is_new(EventId(last))), (newest, false));
        now += LargeEvents::SWEPT_EVERY;
        assert_eq!(
            crowd.begin(now),
            newest,
            "there is no room for what a look from the beginning would find"
        );
        let half = crowd.turn(LargeEvents::MOST / 2, now);
        crowd.stepped(&half, &[], now);
        now += LargeEvents::SWEPT_EVERY;
        assert_eq!((crowd.begin(now), crowd.is_new(EventId(last))), (EventId(0), true));
    }
}
