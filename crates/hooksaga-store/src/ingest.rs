//! `event_ingest_writer`: appends events.

use crate::StoreResult;
use async_trait::async_trait;
use hooksaga_saga::{CorrelationId, EventId, EventType, ExternalId, Tenant, Timestamp};
use std::sync::Arc;

/// An event to append. The caller has validated the form of its payload; the rest cannot be invalid.
#[derive(Clone, Debug)]
pub struct NewEvent {
    pub tenant: Tenant,
    pub event_type: EventType,
    /// JSON text, stored and delivered byte for byte.
    pub payload: Arc<str>,
    /// Unique within the tenant.
    pub external_id: Option<ExternalId>,
    pub correlation_id: CorrelationId,
}

/// An event without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventHead {
    pub id: EventId,
    pub tenant: String,
    pub event_type: String,
    pub external_id: Option<String>,
    pub correlation_id: String,
    pub created_at: Timestamp,
}

/// What became of one event of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    Created(EventHead),
    /// The tenant's event with this `external_id` has the same type and payload bytes: the original.
    Duplicate(EventHead),
    /// The tenant's event with this `external_id` has another type or payload.
    Conflict {
        existing: EventId,
    },
}

#[async_trait]
pub trait IngestStore: Send + Sync {
    /// Appends a batch and queues the new events for routing, in one durable transaction. Returns one
    /// result per event, in the order of `events`. An `external_id` that occurs twice for a tenant is created once.
    /// A conflict or duplicate never affects its neighbours. An `external_id` that a transaction which has not ended is
    /// storing makes the whole batch fail as [`Contended`](crate::StoreError::Contended) within a moment: the caller can
    /// store the others without it.
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<Appended>>;

    /// Notes the largest payload that this server takes, for whoever appends events without it (`hooksaga_append`). The
    /// last one to say so counts. Changes nothing if it is noted already.
    async fn store_payload_limit(&self, bytes: u64) -> StoreResult<()>;
}
