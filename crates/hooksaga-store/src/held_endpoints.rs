//! Endpoints whose row of failures somebody keeps locked: a process that is frozen in the middle of applying their results,
//! or of looking after them. A back end passes their results over for a while, so that it gets on with all others.

use hooksaga_saga::SubscriptionId;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The endpoints that were seen held a moment ago.
#[derive(Debug, Default)]
pub struct HeldEndpoints(Mutex<BTreeMap<SubscriptionId, Instant>>);

impl HeldEndpoints {
    /// For so long their results are passed over; then one pass waits again to see whether they still are.
    const PASSED_OVER: Duration = Duration::from_secs(5);

    fn seen(&self) -> MutexGuard<'_, BTreeMap<SubscriptionId, Instant>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody holds these.
    pub fn note(&self, held: impl IntoIterator<Item = SubscriptionId>, now: Instant) {
        self.seen().extend(held.into_iter().map(|id| (id, now)));
    }

    /// Those whose results are passed over now, in order.
    pub fn at(&self, now: Instant) -> Vec<SubscriptionId> {
        let mut seen = self.seen();
        if seen.is_empty() {
            return Vec::new();
        }
        seen.retain(|_, at| now.saturating_duration_since(*at) < Self::PASSED_OVER);
        seen.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_is_passed_over_for_a_while() {
        let (held, began) = (HeldEndpoints::default(), Instant::now());
        assert_eq!(held.at(began), []);
        held.note([SubscriptionId(7), SubscriptionId(3)], began);
        held.note([SubscriptionId(7)], began + Duration::from_secs(4));
        assert_eq!(held.at(began + Duration::from_secs(4)), [SubscriptionId(3), SubscriptionId(7)]);
        assert_eq!(held.at(began + Duration::from_secs(5)), [SubscriptionId(7)]);
        assert_eq!(held.at(began + Duration::from_secs(9)), []);
    }
}
