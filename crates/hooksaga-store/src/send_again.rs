//! Sending a delivery again: the saga that has ended, and the new one that is made for it.

use crate::{Requeued, RequeuedSaga, Trace};
use hooksaga_saga::{EventId, Saga, SagaId, SubscriptionId, Timestamp, send_again};
use std::collections::HashMap;

/// A saga that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its subscription can be delivered to.
    pub deliverable: bool,
    /// What it was sent again as already.
    pub successor: Option<SagaId>,
    /// What it is sent again as, as the state machine says.
    pub next: NextSaga,
}

/// A saga to insert.
#[derive(Clone, Debug)]
pub struct NextSaga {
    pub event_id: EventId,
    pub subscription_id: SubscriptionId,
    pub trace: Trace,
    pub generation: u32,
    pub saga: Saga,
}

/// A saga as a back end has read it, with what decides about sending it again.
#[derive(Clone, Debug)]
pub struct FoundSaga {
    /// The database's clock.
    pub now: Timestamp,
    pub event_id: EventId,
    pub subscription_id: SubscriptionId,
    pub trace: Trace,
    pub generation: u32,
    pub saga: Saga,
    /// Its subscription's limit of retries, if that has one of its own.
    pub max_retry_limit: Option<u32>,
    pub deliverable: bool,
    pub successor: Option<SagaId>,
}

impl FoundSaga {
    /// Nothing if the saga is open.
    pub fn ended(self, default_limit: u32) -> Option<Ended> {
        let limit = self.max_retry_limit.unwrap_or(default_limit);
        let (generation, saga) = send_again(&self.saga, self.generation, limit, self.now)?;
        let Self { event_id, subscription_id, trace, deliverable, successor, .. } = self;
        let next = NextSaga { event_id, subscription_id, trace, generation, saga };
        Some(Ended { deliverable, successor, next })
    }
}

impl Ended {
    /// What it was sent again as already.
    pub fn sent_again(&self) -> Option<Requeued> {
        self.successor.map(|saga_id| Requeued { saga_id, generation: self.next.generation })
    }
}

impl NextSaga {
    /// In the order of these, sagas are inserted.
    pub fn key(&self) -> (i64, i64, u32) {
        (self.event_id.0, self.subscription_id.0, self.generation)
    }

    /// What was made of these, given the rows that were inserted: each with its id, event and subscription.
    pub fn all_made(
        sagas: &[&Self],
        inserted: impl IntoIterator<Item = (SagaId, EventId, SubscriptionId)>,
    ) -> Vec<RequeuedSaga> {
        let by_key: HashMap<_, &Self> =
            sagas.iter().map(|next| ((next.event_id, next.subscription_id), *next)).collect();
        let made = |(id, event, subscription)| Some(by_key.get(&(event, subscription))?.made(id));
        inserted.into_iter().filter_map(made).collect()
    }

    /// What was made of it.
    pub fn made(&self, saga_id: SagaId) -> RequeuedSaga {
        let requeued = Requeued { saga_id, generation: self.generation };
        RequeuedSaga { requeued, subscription_id: self.subscription_id, trace: self.trace.clone() }
    }
}
