//! `event_ingest_writer`: appends events.

use crate::StoreResult;
use async_trait::async_trait;
use hooksaga_saga::{EventId, Timestamp};
use std::sync::Arc;

/// An event to append. The caller has validated its form.
#[derive(Clone, Debug)]
pub struct NewEvent {
    pub event_type: String,
    /// JSON text, stored and delivered byte for byte.
    pub payload: Arc<str>,
    pub external_id: Option<String>,
    pub correlation_id: String,
}

/// An event without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventHead {
    pub id: EventId,
    pub event_type: String,
    pub external_id: Option<String>,
    pub correlation_id: String,
    pub created_at: Timestamp,
}

/// What became of one event of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    Created(EventHead),
    /// The same `external_id`, type and payload bytes are there already: the original.
    Duplicate(EventHead),
    /// The `external_id` is taken by an event with another type or payload.
    Conflict {
        existing: EventId,
    },
}

#[async_trait]
pub trait IngestStore: Send + Sync {
    /// Appends a batch and queues the new events for routing, in one durable transaction. The answers
    /// come in the order of `events`. An `external_id` that occurs twice in the batch is created once.
    /// A conflict or duplicate never affects its neighbours.
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<Appended>>;
}
