//! What this worker has in flight, and how much more it may claim.
//!
//! One endpoint that starts to hang must not take all slots for a whole timeout: [`WorkerSlots`] decides how many each
//! subscription may have, and `allot` relies on it.
//!
//! Payload bytes are limited, too. They count until the body is written to the socket. A body that stays in memory
//! belongs to an endpoint that accepts no connection or does not read. Once such bodies take half of the limit, large
//! payloads are handed back, unless their endpoint has just responded to another attempt; small ones are still sent.

use hooksaga_saga::{Attempts, Claimable, SubscriptionId, WorkerSlots};
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
    responses: Responses,
    /// A claim that had to pass over these subscriptions found nothing beside them, and is not repeated until then.
    found_nothing: Option<(Instant, Vec<SubscriptionId>)>,
}

/// The responses to each subscription's attempts in one stretch of time and in the one before.
#[derive(Debug, Default)]
struct Responses {
    stretch: u64,
    now: HashMap<SubscriptionId, u32>,
    before: HashMap<SubscriptionId, u32>,
}

impl Responses {
    /// What counts is 100 to 200 ms old at most.
    const STRETCH: Duration = Duration::from_millis(100);

    fn go_on_to(&mut self, stretch: u64) {
        let since = stretch.saturating_sub(self.stretch);
        if since > 0 {
            self.before.clear();
            if since == 1 {
                std::mem::swap(&mut self.now, &mut self.before);
            }
            self.now.clear();
            self.stretch = stretch;
        }
    }

    fn of(&self, subscription: SubscriptionId) -> u32 {
        let count = |counts: &HashMap<_, u32>| counts.get(&subscription).copied().unwrap_or(0);
        count(&self.now) + count(&self.before)
    }
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

/// A claim that passed over subscriptions scans past all that is open of them, and a busy subscription would make the database
/// do that all the time. Claims that find nothing take at most one part in this many of the time.
const SCAN_COST: u32 = 10;
/// The longest that such a claim is not repeated, however long it took.
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
        self.stretches(STRETCH, now)
    }

    /// How many stretches of this length have passed.
    fn stretches(&self, length: Duration, now: Instant) -> u64 {
        let stretches = now.saturating_duration_since(self.start).as_millis() / length.as_millis();
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

    /// Whether an attempt with a body of this length has to be given back: others that stay take the memory. An endpoint that
    /// has responded lately is likely to take it at once.
    pub(super) fn has_no_room_for(&self, subscription: SubscriptionId, length: usize, now: Instant) -> bool {
        if length <= SMALL {
            return false;
        }
        let mut state = self.state();
        state.responses.go_on_to(self.stretches(Responses::STRETCH, now));
        self.memory(&state, now) == Memory::Stuck && state.responses.of(subscription) == 0
    }

    /// An endpoint gave a response to one of its attempts.
    fn answered(&self, subscription: SubscriptionId, now: Instant) {
        let stretch = self.stretches(Responses::STRETCH, now);
        let mut state = self.state();
        state.responses.go_on_to(stretch);
        *state.responses.now.entry(subscription).or_default() += 1;
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
        free > 0 && free >= (free + self.began_lately(&state, now)) / 4
    }

    /// A claim that passed over these subscriptions has returned after this time, with or without jobs of others.
    pub(super) fn passed_over(&self, skipped: &[SubscriptionId], found: bool, took: Duration, now: Instant) {
        let until = now + (took * SCAN_COST).min(NOT_AGAIN_FOR);
        self.state().found_nothing = (!found).then(|| (until, skipped.to_vec()));
    }

    /// Until when a claim that would pass over these subscriptions is not worth its scan, unless others are known to have new
    /// jobs. Where one of those that were passed over may be claimed again, it is at once: its jobs may wait.
    pub(super) fn passes_over_from(&self, skipped: &[SubscriptionId], now: Instant) -> Option<Instant> {
        let state = self.state();
        let (until, then) = state.found_nothing.as_ref()?;
        (*until > now && are_all_in(then, skipped)).then_some(*until)
    }

    /// Waits until an attempt has ended since this was last called. One waiter at a time.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Slots that are free.
    #[cfg(test)]
    fn free(&self) -> u32 {
        self.slots.saturating_sub(self.state().jobs)
    }

    /// What may be claimed now, `most` jobs at most; `None` while no slot is free, or while payloads that will be written soon
    /// leave too little memory for a claim that is worth its statement.
    pub(super) fn claim_limits(&self, most: u32, now: Instant) -> Option<ClaimLimits> {
        let mut state = self.state();
        let free = self.slots.saturating_sub(state.jobs);
        let memory = self.memory(&state, now);
        if free == 0 || memory == Memory::Short {
            return None;
        }
        let most = if memory == Memory::Stuck { most.min(SHORT_CLAIM) } else { most };
        let payload_bytes = PAYLOAD_BYTES.saturating_sub(state.payload_bytes);
        state.responses.go_on_to(self.stretches(Responses::STRETCH, now));
        let held_for_long = state.jobs - self.began_lately(&state, now);
        let responses = &state.responses;
        let attempts = state
            .by_subscription
            .iter()
            .map(|(id, jobs)| (*id, Attempts { in_flight: *jobs, responses: responses.of(*id) }));
        let slots = WorkerSlots { all: self.slots, free, held_for_long };
        let Claimable { jobs, skip } = slots.claimable(most, attempts);
        Some(ClaimLimits { jobs, payload_bytes, skip })
    }

    /// How many of those in flight began a moment ago, and may soon end.
    fn began_lately(&self, state: &State, now: Instant) -> u32 {
        state.by_beginning.range(self.stretch(now).saturating_sub(1)..).map(|(_, jobs)| jobs).sum()
    }
}

/// Whether each of these is one of the others, which are in order.
pub(super) fn are_all_in(these: &[SubscriptionId], others: &[SubscriptionId]) -> bool {
    these.iter().all(|id| others.binary_search(id).is_ok())
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

impl Slot {
    /// Its attempt has had a response.
    pub(super) fn answered(&self, now: Instant) {
        self.of.answered(self.subscription, now);
    }
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
#[path = "in_flight_tests.rs"]
mod tests;
