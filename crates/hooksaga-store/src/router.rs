//! `router_worker`: makes one saga per event and matching subscription.

use crate::StoreResult;
use async_trait::async_trait;
use hooksaga_saga::{EventId, SagaId, SubscriptionId};

/// A saga that this pass created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutedSaga {
    pub saga_id: SagaId,
    pub subscription_id: SubscriptionId,
}

/// An event that left the queue in this pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedEvent {
    pub event_id: EventId,
    pub correlation_id: String,
    /// The sagas that are new; one that was there already is not listed.
    pub sagas: Vec<RoutedSaga>,
}

/// One pass of routing, in the order of event ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteBatch {
    pub events: Vec<RoutedEvent>,
}

#[async_trait]
pub trait RouterStore: Send + Sync {
    /// Locks up to `limit` queued events (those that nobody else has locked), THEN resolves their active
    /// and verified subscriptions by exact event type, inserts generation 0 sagas that are not there yet
    /// (`max_retry_limit`: the subscription's, else `default_limit`), and takes the events off the queue.
    async fn route(&self, limit: u32, default_limit: u32) -> StoreResult<RouteBatch>;
}
