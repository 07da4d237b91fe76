//! What this worker has in flight, and how much more it may claim.
//!
//! A subscription may hold at most two thirds of the slots that the others leave free, so that one endpoint that starts
//! to hang cannot take all slots for a whole timeout. The last eighth is reserved for subscriptions with nothing in
//! flight, one job each. So a healthy endpoint gets a slot until as many endpoints hang as there are slots. `allot`
//! relies on both rules.
//!
//! Payload bytes are limited, too. They count until the body is written to the socket. A body that stays in memory
//! belongs to an endpoint that accepts no connection or does not read. Once such bodies take half of the limit, large
//! payloads are handed back; small ones are still sent.

use hooksaga_saga::SubscriptionId;
use hooksaga_store::ClaimLimits;
use prometheus_client::metrics::gauge::Gauge;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// Payload bytes of all attempts in flight.
pub(super) const PAYLOAD_BYTES: u64 = 64 * 1024 * 1024;
/// Payloads up to this size are sent even while bodies that are not written take most of [`PAYLOAD_BYTES`].
const SMALL: usize = 64 * 1024;
/// Jobs per claim meanwhile.
const SHORT_CLAIM: u32 = 16;

/// Shared by the claim loop and every attempt.
#[derive(Debug)]
pub(super) struct InFlight {
    slots: u32,
    state: Mutex<State>,
    changed: Notify,
    start: Instant,
    busy: Gauge,
}

#[derive(Debug, Default)]
struct State {
    jobs: u32,
    payload_bytes: u64,
    /// Payload bytes, by the time interval in which they were acquired.
    bytes_by_beginning: BTreeMap<u64, u64>,
    by_subscription: HashMap<SubscriptionId, u32>,
    /// Attempts in flight, by the time interval in which they started.
    by_beginning: BTreeMap<u64, u32>,
    /// When a claim that had to pass over these subscriptions last found nothing beside them.
    found_nothing: Option<(Instant, Vec<SubscriptionId>)>,
}

/// One attempt that holds a slot; dropping it frees the slot.
#[derive(Debug)]
pub(super) struct Slot {
    of: Arc<InFlight>,
    subscription: SubscriptionId,
    beginning: u64,
}

/// Payload bytes that are in memory; dropping it gives them back.
#[derive(Debug)]
pub(super) struct HeldBytes {
    of: Arc<InFlight>,
    bytes: u64,
    beginning: u64,
}

/// An attempt that has been in flight for one to two of these is not likely to end within the next few milliseconds.
pub(super) const STRETCH: Duration = Duration::from_millis(250);

/// How long a claim that passed over subscriptions and found nothing is not repeated: it scans past all that is open of
/// them, and a busy subscription would make the database do that all the time.
const NOT_AGAIN_FOR: Duration = Duration::from_millis(50);

impl InFlight {
    /// `busy` shows how many slots are taken.
    pub(super) fn new(slots: u32, busy: Gauge) -> Arc<Self> {
        Arc::new(Self {
            slots: slots.max(1),
            state: Mutex::default(),
            changed: Notify::new(),
            start: Instant::now(),
            busy,
        })
    }

    fn stretch(&self, now: Instant) -> u64 {
        let stretches = now.saturating_duration_since(self.start).as_millis() / STRETCH.as_millis();
        u64::try_from(stretches).unwrap_or(u64::MAX)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for an attempt that starts now.
    pub(super) fn begin(self: &Arc<Self>, subscription: SubscriptionId, now: Instant) -> Slot {
        let beginning = self.stretch(now);
        let mut state = self.state();
        state.jobs += 1;
        *state.by_subscription.entry(subscription).or_default() += 1;
        *state.by_beginning.entry(beginning).or_default() += 1;
        drop(state);
        self.busy.inc();
        Slot { of: self.clone(), subscription, beginning }
    }

    /// Holds payload bytes that were claimed now.
    pub(super) fn hold(self: &Arc<Self>, bytes: u64, now: Instant) -> HeldBytes {
        let beginning = self.stretch(now);
        let mut state = self.state();
        state.payload_bytes += bytes;
        *state.bytes_by_beginning.entry(beginning).or_default() += bytes;
        drop(state);
        HeldBytes { of: self.clone(), bytes, beginning }
    }

    fn give_back(&self, held: &HeldBytes) {
        let mut state = self.state();
        state.payload_bytes -= held.bytes;
        if let Some(bytes) = state.bytes_by_beginning.get_mut(&held.beginning) {
            *bytes -= held.bytes;
            if *bytes == 0 {
                state.bytes_by_beginning.remove(&held.beginning);
            }
        }
        let is_news = state.payload_bytes + held.bytes > PAYLOAD_BYTES / 4 * 3;
        drop(state);
        if is_news {
            self.changed.notify_one();
        }
    }

    /// How memory stands now.
    fn memory(&self, state: &State, now: Instant) -> Memory {
        if state.jobs == 0 || state.payload_bytes <= PAYLOAD_BYTES / 4 * 3 {
            return Memory::Free;
        }
        let until = self.stretch(now).saturating_sub(1);
        let stays: u64 = state.bytes_by_beginning.range(..until).map(|(_, bytes)| bytes).sum();
        if stays > PAYLOAD_BYTES / 2 { Memory::Stuck } else { Memory::Short }
    }

    /// Whether an attempt with a body of this length has to be given back: others that stay take the memory.
    pub(super) fn has_no_room_for(&self, length: usize, now: Instant) -> bool {
        length > SMALL && self.memory(&self.state(), now) == Memory::Stuck
    }

    fn end(&self, slot: &Slot) {
        let mut state = self.state();
        state.jobs -= 1;
        if let Some(jobs) = state.by_subscription.get_mut(&slot.subscription) {
            *jobs -= 1;
            if *jobs == 0 {
                state.by_subscription.remove(&slot.subscription);
            }
        }
        if let Some(jobs) = state.by_beginning.get_mut(&slot.beginning) {
            *jobs -= 1;
            if *jobs == 0 {
                state.by_beginning.remove(&slot.beginning);
            }
        }
        drop(state);
        self.busy.dec();
        self.changed.notify_one();
    }

    /// Whether a claim now is as good as one a few milliseconds later: a quarter is free of the slots that are free or may
    /// soon become so. Those of endpoints that hang do not count.
    pub(super) fn has_enough_free(&self, now: Instant) -> bool {
        let state = self.state();
        let free = self.slots.saturating_sub(state.jobs);
        let soon: u32 =
            state.by_beginning.range(self.stretch(now).saturating_sub(1)..).map(|(_, jobs)| jobs).sum();
        free > 0 && free >= (free + soon) / 4
    }

    /// A claim that passed over these subscriptions has returned, with or without jobs of others.
    pub(super) fn passed_over(&self, skipped: &[SubscriptionId], found: bool, now: Instant) {
        self.state().found_nothing = (!found).then(|| (now, skipped.to_vec()));
    }

    /// Until when a claim that would pass over these subscriptions is not worth its scan. Where one of those that were
    /// passed over may be claimed again, it is at once: its jobs may wait.
    pub(super) fn passes_over_from(&self, skipped: &[SubscriptionId], now: Instant) -> Option<Instant> {
        let state = self.state();
        let (at, then) = state.found_nothing.as_ref()?;
        let until = *at + NOT_AGAIN_FOR;
        (until > now && then.iter().all(|id| skipped.contains(id))).then_some(until)
    }

    /// Waits until an attempt has ended since this was last called. One waiter at a time.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Slots for subscriptions that have nothing in flight.
    fn kept(&self) -> u32 {
        (self.slots / 8).max(1)
    }

    /// Slots that are free.
    #[cfg(test)]
    fn free(&self) -> u32 {
        self.slots.saturating_sub(self.state().jobs)
    }

    /// What may be claimed now, `most` jobs at most; `None` while no slot is free, or while payloads that will be written soon
    /// leave too little memory for a claim that is worth its statement.
    pub(super) fn claim_limits(&self, most: u32, now: Instant) -> Option<ClaimLimits> {
        let state = self.state();
        let free = self.slots.saturating_sub(state.jobs);
        let memory = self.memory(&state, now);
        if free == 0 || memory == Memory::Short {
            return None;
        }
        let most = if memory == Memory::Stuck { most.min(SHORT_CLAIM) } else { most };
        let payload_bytes = PAYLOAD_BYTES.saturating_sub(state.payload_bytes);
        let beyond_kept = free.saturating_sub(self.kept());
        // What a subscription with nothing in flight may take.
        let whole = two_thirds(free).min(beyond_kept).min(most).max(1);
        let mut jobs = whole;
        let mut skip = Vec::new();
        for (subscription, held) in &state.by_subscription {
            let more = two_thirds(free + held).saturating_sub(*held).min(beyond_kept);
            if more < whole.div_ceil(2) {
                skip.push(*subscription);
            } else {
                jobs = jobs.min(more);
            }
        }
        skip.sort_unstable();
        Some(ClaimLimits { jobs, payload_bytes, skip })
    }
}

fn two_thirds(slots: u32) -> u32 {
    (slots - slots / 3).max(1)
}

/// Whether payloads leave room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Free,
    /// Most of it is taken, by bodies that will be written soon.
    Short,
    /// Most of it is taken, for long.
    Stuck,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.of.give_back(self);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.of.end(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SubscriptionId = SubscriptionId(1);

    fn begin(in_flight: &Arc<InFlight>, subscription: SubscriptionId, jobs: u32) -> Vec<Slot> {
        (0..jobs).map(|_| in_flight.begin(subscription, in_flight.start)).collect()
    }

    #[test]
    fn endpoints_that_hang_one_after_the_other_leave_a_slot_for_the_next() {
        for slots in [1, 4, 16, 64, 512] {
            let in_flight = InFlight::new(slots, Gauge::default());
            let mut held = Vec::new();
            for subscription in (1..=3).map(SubscriptionId) {
                // Fill all claims with this one subscription until its limit is reached.
                while let Some(limits) = in_flight.claim_limits(1000, in_flight.start) {
                    if limits.skip.contains(&subscription) {
                        break;
                    }
                    held.extend(begin(&in_flight, subscription, limits.jobs));
                }
                let hang = u32::try_from(subscription.0).unwrap();
                let left = (slots / 3_u32.pow(hang)).max((slots / 8).saturating_sub(hang));
                assert!(in_flight.free() >= left, "{} of {slots}", in_flight.free());
            }
            assert!(
                slots < 16
                    || in_flight.claim_limits(1000, in_flight.start).is_some_and(|limits| limits.jobs >= 1)
            );
        }
    }

    /// More jobs wait than there are slots, of many that begin to hang together: each takes one of the kept slots at most.
    #[test]
    fn the_last_eighth_is_for_those_with_nothing_in_flight() {
        let in_flight = InFlight::new(64, Gauge::default());
        let mut held: Vec<_> = (0..14).map(|n| begin(&in_flight, SubscriptionId(n), 4)).collect();
        for left in (1..=8).rev() {
            let limits = in_flight.claim_limits(1000, in_flight.start).unwrap();
            assert_eq!((in_flight.free(), limits.jobs, limits.skip.len()), (left, 1, held.len()));
            held.push(begin(&in_flight, SubscriptionId(100 - i64::from(left)), 1));
        }
        assert!(in_flight.claim_limits(1000, in_flight.start).is_none());
        held.truncate(12);
        let limits = in_flight.claim_limits(1000, in_flight.start).unwrap();
        assert_eq!((limits.jobs, limits.skip.len()), (8, 0), "16 are free, and 8 of them for everybody");
    }

    #[test]
    fn nobody_waits_for_slots_of_endpoints_that_hang() {
        let in_flight = InFlight::new(16, Gauge::default());
        let start = in_flight.start;
        let mut held = begin(&in_flight, A, 13);
        assert!(!in_flight.has_enough_free(start), "three of sixteen are free, and more may soon be");
        assert!(!in_flight.has_enough_free(start + STRETCH));
        assert!(in_flight.has_enough_free(start + 2 * STRETCH), "the others hang");
        let _late = in_flight.begin(A, start + 2 * STRETCH);
        assert!(in_flight.has_enough_free(start + 2 * STRETCH), "two of three");
        held.extend(begin(&in_flight, A, 2));
        assert!(!in_flight.has_enough_free(start + 2 * STRETCH), "none is free");
        drop(held);
        assert_eq!(in_flight.state().by_beginning, BTreeMap::from([(2, 1)]), "nothing is kept");
    }

    #[test]
    fn claims_of_one_busy_subscription_stay_large() {
        let in_flight = InFlight::new(512, Gauge::default());
        let mut held = begin(&in_flight, A, 342);
        assert_eq!(in_flight.claim_limits(1000, in_flight.start).unwrap().skip, [A]);
        held.truncate(342 - 60);
        assert_eq!(
            in_flight.claim_limits(1000, in_flight.start).unwrap().skip,
            [A],
            "a claim of 60 is not worth it yet"
        );
        held.truncate(342 - 100);
        let limits = in_flight.claim_limits(1000, in_flight.start).unwrap();
        assert_eq!((limits.jobs, limits.skip), (100, vec![]));
    }

    #[test]
    fn a_claim_past_a_busy_subscription_that_found_nothing_is_not_repeated_at_once() {
        let in_flight = InFlight::new(4, Gauge::default());
        let start = in_flight.start;
        const B: SubscriptionId = SubscriptionId(2);
        assert_eq!(in_flight.passes_over_from(&[A], start), None);
        in_flight.passed_over(&[A], false, start);
        assert_eq!(in_flight.passes_over_from(&[A], start), Some(start + NOT_AGAIN_FOR));
        assert_eq!(in_flight.passes_over_from(&[A, B], start), Some(start + NOT_AGAIN_FOR));
        assert_eq!(in_flight.passes_over_from(&[A], start + NOT_AGAIN_FOR), None);
        in_flight.passed_over(&[A], true, start);
        assert_eq!(
            in_flight.passes_over_from(&[A], start),
            None,
            "where there was something there may be more"
        );
        // A hangs, and B held the rest of the slots.
        in_flight.passed_over(&[A, B], false, start);
        assert_eq!(in_flight.passes_over_from(&[A], start), None, "B's jobs do not wait because A hangs");
    }

    #[test]
    fn nothing_is_claimed_without_a_slot() {
        let in_flight = InFlight::new(4, Gauge::default());
        let start = in_flight.start;
        let limits = in_flight.claim_limits(2, start).unwrap();
        assert_eq!((limits.jobs, limits.payload_bytes), (2, PAYLOAD_BYTES));
        let slots: Vec<_> = (0..4).map(|n| in_flight.begin(SubscriptionId(n), start)).collect();
        assert!(in_flight.claim_limits(10, start).is_none());
        drop(slots);
        assert_eq!(in_flight.free(), 4);
    }

    #[test]
    fn claims_wait_for_payloads_that_will_be_written_soon() {
        let in_flight = InFlight::new(4, Gauge::default());
        let start = in_flight.start;
        let large = in_flight.hold(PAYLOAD_BYTES - 1, start);
        assert!(in_flight.claim_limits(10, start).is_some(), "nothing is in flight: something must be");
        let _one = in_flight.begin(A, start);
        assert!(in_flight.claim_limits(10, start + STRETCH).is_none(), "three slots are free, but no memory");
        assert!(!in_flight.has_no_room_for(SMALL + 1, start), "what was claimed already is sent");
        drop(large);
        assert_eq!(in_flight.claim_limits(10, start).unwrap().payload_bytes, PAYLOAD_BYTES);
    }

    /// Endpoints that read nothing keep their payloads in memory: small ones of others are sent all the same.
    #[test]
    fn payloads_that_stay_do_not_stop_small_ones() {
        let in_flight = InFlight::new(512, Gauge::default());
        let (start, later) = (in_flight.start, in_flight.start + 2 * STRETCH);
        let _slots = begin(&in_flight, A, 60);
        let mut held: Vec<_> = (0..60).map(|_| in_flight.hold(1024 * 1024, start)).collect();
        assert!(in_flight.claim_limits(1000, start + STRETCH).is_none());
        let limits = in_flight.claim_limits(1000, later).unwrap();
        assert_eq!((limits.jobs, limits.payload_bytes), (SHORT_CLAIM, PAYLOAD_BYTES - 60 * 1024 * 1024));
        assert!(in_flight.has_no_room_for(SMALL + 1, later));
        assert!(!in_flight.has_no_room_for(SMALL, later));
        // As long as most of it will be written soon, claims wait for that.
        held.truncate(30);
        held.push(in_flight.hold(30 * 1024 * 1024, later));
        assert!(in_flight.claim_limits(1000, later).is_none());
        held.clear();
        assert_eq!(in_flight.state().payload_bytes, 0);
        assert!(in_flight.state().bytes_by_beginning.is_empty(), "nothing is kept");
    }

    #[test]
    fn a_claim_never_lets_a_subscription_past_its_part() {
        let in_flight = InFlight::new(100, Gauge::default());
        let _others = begin(&in_flight, SubscriptionId(2), 20);
        let _own = begin(&in_flight, A, 40);
        let limits = in_flight.claim_limits(1000, in_flight.start).unwrap();
        assert!(!limits.skip.contains(&A) || limits.jobs <= 30);
        if !limits.skip.contains(&A) {
            assert!(40 + limits.jobs <= two_thirds(80));
        }
    }
}
