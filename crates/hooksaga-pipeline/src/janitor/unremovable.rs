//! Events that this process has archived but could not remove. Retries do not archive them again as long as their lines
//! are in the file that is being written. (Somebody may delete an older file.) So an event that can never be removed
//! has one line per daily file.

use hooksaga_saga::{EventId, Expiry};
use hooksaga_store::OldEvent;
use std::collections::HashMap;

/// Archived events that are still there.
#[derive(Debug, Default)]
pub(super) struct PendingRemovals {
    events: HashMap<EventId, Pending>,
    /// The file that their lines are in.
    file: u64,
    /// Grows with each scan of what was left.
    round: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    /// As of when it was found. It is removed as of then: if it has changed since, it stays, and is archived again.
    expiry: Expiry,
    /// When it was last seen.
    round: u64,
}

impl PendingRemovals {
    /// About two megabytes. While there are as many, nothing else is archived.
    pub(super) const MOST: usize = 20_000;

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= Self::MOST
    }

    /// This file is being written: what is in another one is forgotten.
    pub(super) fn in_file(&mut self, file: u64) {
        if self.file != file {
            self.events.clear();
            self.file = file;
        }
    }

    /// These events were archived, in this file.
    pub(super) fn add(&mut self, events: &[OldEvent], expiry: Expiry, file: u64) {
        self.in_file(file);
        let pending = Pending { expiry, round: self.round };
        self.events.extend(events.iter().map(|event| (event.id, pending)));
    }

    /// As of when this event was found, if it was archived.
    pub(super) fn see(&mut self, id: EventId) -> Option<Expiry> {
        let pending = self.events.get_mut(&id)?;
        pending.round = self.round;
        Some(pending.expiry)
    }

    /// These events were removed, or have changed.
    pub(super) fn forget(&mut self, events: &[EventId]) {
        for id in events {
            self.events.remove(id);
        }
    }

    /// A scan of everything begins.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
    }

    /// That scan has ended: what it has not seen was removed by others, or has to stay.
    pub(super) fn end_round(&mut self) {
        let round = self.round;
        self.events.retain(|_, pending| pending.round == round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::{Retention, Timestamp};
    use std::time::Duration;

    fn event(id: i64) -> OldEvent {
        OldEvent { id: EventId(id), rows: 1, payload_bytes: 1 }
    }

    fn expiry(second: i64) -> Expiry {
        let retention = Retention { finished: Duration::from_secs(60), dead_letters: None };
        retention.as_of(Timestamp::from_micros(second * 1_000_000))
    }

    #[test]
    fn what_a_whole_scan_does_not_see_is_forgotten() {
        let mut pending = PendingRemovals::default();
        pending.add(&[event(1), event(2), event(3)], expiry(1), 1);
        pending.begin_round();
        pending.add(&[event(4)], expiry(2), 1);
        assert_eq!(pending.see(EventId(2)), Some(expiry(1)));
        pending.end_round();
        let seen = [1, 2, 3, 4].map(|id| pending.see(EventId(id)));
        assert_eq!(seen, [None, Some(expiry(1)), None, Some(expiry(2))]);
        pending.forget(&[EventId(2)]);
        assert_eq!(pending.see(EventId(2)), None);
    }

    #[test]
    fn what_is_in_another_file_is_forgotten() {
        let mut pending = PendingRemovals::default();
        pending.add(&[event(1)], expiry(1), 1);
        pending.in_file(1);
        assert!(pending.see(EventId(1)).is_some());
        pending.add(&[event(2)], expiry(1), 2);
        assert!(pending.see(EventId(1)).is_none() && pending.see(EventId(2)).is_some());
        pending.in_file(3);
        assert!(pending.is_empty());
    }
}
