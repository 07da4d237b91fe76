//! How much a worker may claim, given what each subscription has in flight: the one decision about a worker's slots.
//!
//! **Part.** A subscription may hold two thirds of the slots that the others leave. Otherwise an endpoint that was quick, has a
//! thousand jobs open and begins to hang would take all slots for a whole timeout.
//!
//! **Kept slots.** The last eighth is for subscriptions with nothing in flight, one job each: however many jobs are open of
//! endpoints that begin to hang together, each that answers finds a slot, until as many endpoints hang as there are slots.
//!
//! **Answering now.** Endpoints that hang may hold all the other slots for long. Then one job at a time would be too little for
//! an endpoint that answers, so it may take more: one job more than half of the responses that it gave a moment ago, and never
//! the last third of the kept slots, rounded down. Attempts that began a moment ago do not count as held for long, so endpoints that are
//! busy and begin to hang together do not take the kept slots from each other.

use crate::SubscriptionId;

/// What one subscription has in flight in a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    pub in_flight: u32,
    /// How many responses its endpoint gave within the last moment, about 150 ms.
    pub responses: u32,
}

/// A worker's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSlots {
    pub all: u32,
    pub free: u32,
    /// Those that have been taken for so long that they are not likely to become free within a moment.
    pub held_for_long: u32,
}

/// What a worker may claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimable {
    /// So many jobs, even if all of them are of one subscription.
    pub jobs: u32,
    /// The subscriptions to pass over, in order.
    pub skip: Vec<SubscriptionId>,
}

impl WorkerSlots {
    /// What may be claimed now, `most` jobs at most. There is a free slot. `attempts` names each subscription that has something
    /// in flight.
    pub fn claimable(
        self,
        most: u32,
        attempts: impl IntoIterator<Item = (SubscriptionId, Attempts)>,
    ) -> Claimable {
        // What a subscription with nothing in flight may take.
        let whole = two_thirds(self.free).min(self.beyond_kept()).min(most).max(1);
        let mut jobs = whole;
        let mut skip = Vec::new();
        for (subscription, its) in attempts {
            let more = self.more_for(its);
            if more < whole.div_ceil(2) {
                skip.push(subscription);
            } else {
                jobs = jobs.min(more);
            }
        }
        skip.sort_unstable();
        Claimable { jobs, skip }
    }

    /// How many more jobs a subscription may take that has these in flight.
    fn more_for(self, its: Attempts) -> u32 {
        let part = two_thirds(self.free + its.in_flight).saturating_sub(its.in_flight);
        match self.beyond_kept() {
            0 if self.may_take_kept(its) => part.min(1),
            beyond_kept => part.min(beyond_kept),
        }
    }

    fn may_take_kept(self, its: Attempts) -> bool {
        let answers_now = its.in_flight <= its.responses / 2;
        answers_now && self.held_for_long >= self.kept() && self.free > self.kept() / 3
    }

    fn kept(self) -> u32 {
        (self.all / 8).max(1)
    }

    fn beyond_kept(self) -> u32 {
        self.free.saturating_sub(self.kept())
    }
}

fn two_thirds(slots: u32) -> u32 {
    (slots - slots / 3).max(1)
}
