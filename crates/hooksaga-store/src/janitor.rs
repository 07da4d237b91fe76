//! `history_janitor`: removes finished history, whole events at a time.
//!
//! Only this role may remove, and the schema lets it remove only what is listed in `removals`, which takes nothing that is
//! open or has been final for less than a minute. What may go by the configured times is decided by
//! [`may_go`](hooksaga_saga::may_go), once when an event is found and again, under its lock, when it is removed: as of the
//! time at which it was found, so that whatever changed since then is too young to go.

use crate::{Attempt, ScanStep, StoreResult};
use async_trait::async_trait;
use hooksaga_saga::{
    DeadLetterId, ErrorCode, EventId, EventRemains, Expiry, Retention, SagaId, SagaStatus, SubscriptionId,
    Timestamp,
};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// A place among the events, in the order of their creation.
pub type EventPlace = (Timestamp, EventId);

/// An event that may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldEvent {
    pub id: EventId,
    /// Rows that go with it, itself included, about.
    pub rows: u32,
    /// The size of its payload.
    pub payload_bytes: u64,
}

/// Some of the events that are old enough to be examined, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldEvents {
    pub may_go: Vec<OldEvent>,
    /// Looked at, and still needed.
    pub kept: u32,
    /// The database's clock when it looked. It means nothing where it found no events.
    pub as_of: Timestamp,
    /// The last that was examined; the scan resumes behind it.
    pub last: Option<EventPlace>,
    /// There were no more.
    pub is_end: bool,
}

/// An event that is old enough to be examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundEvent {
    pub id: EventId,
    /// What decides about it.
    pub remains: EventRemains,
    /// Rows that belong to it, without itself, about.
    pub rows: u32,
    pub payload_bytes: u64,
}

impl OldEvents {
    /// Decides about an event that was examined.
    pub fn add(&mut self, found: &FoundEvent, expiry: Expiry) {
        if expiry.may_go(&found.remains) {
            let (rows, payload_bytes) = (found.rows.saturating_add(1), found.payload_bytes);
            self.may_go.push(OldEvent { id: found.id, rows, payload_bytes });
        } else {
            self.kept += 1;
        }
    }
}

/// How many rows were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub events: u64,
    pub sagas: u64,
    pub jobs: u64,
    pub dead_letters: u64,
}

/// A place among the deliveries of an event: behind the one of this subscription and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryPlace {
    pub subscription_id: SubscriptionId,
    pub generation: u32,
}

/// Up to `limit` deliveries of one event behind a place, in the order of subscriptions and generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPart {
    pub event: EventId,
    pub after: Option<DeliveryPlace>,
    pub limit: u32,
}

impl EventPart {
    /// The place behind which it begins, as the key has it; without one, before all.
    pub fn behind(&self) -> (i64, u32) {
        self.after.map_or((0, 0), |place| (place.subscription_id.0, place.generation))
    }
}

/// The result of one step of removing a large event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedPart {
    pub removed: Removed,
    /// The next step begins behind this delivery. `None` means that the event is gone, or it has to be looked at again.
    pub resume_after: Option<DeliveryPlace>,
}

/// How many records were removed that belong to no event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedRecords {
    pub redrives: u64,
    pub audit_records: u64,
    pub hours: u64,
    pub keys: u64,
}

/// How long a key that has expired can still be seen; then its row goes, whether history is kept or not. Every portal
/// session has a key of its own.
pub const EXPIRED_KEYS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// An event as it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedEvent {
    pub id: EventId,
    pub tenant: String,
    pub event_type: String,
    pub external_id: Option<String>,
    pub correlation_id: String,
    pub created_at: Timestamp,
    pub payload: Arc<str>,
}

/// A delivery that has ended, with its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedDelivery {
    pub saga_id: SagaId,
    pub event_id: EventId,
    pub subscription_id: SubscriptionId,
    /// Of its subscription, at present.
    pub callback_url: String,
    pub generation: u32,
    pub status: SagaStatus,
    pub attempt_count: u32,
    pub max_retry_limit: u32,
    pub final_error_code: Option<ErrorCode>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Oldest first.
    pub attempts: Vec<Attempt>,
    pub dead_letter: Option<ArchivedLetter>,
}

impl ArchivedDelivery {
    /// Gives these deliveries their attempts.
    pub fn take_attempts(deliveries: &mut [Self], attempts: impl IntoIterator<Item = (SagaId, Attempt)>) {
        let mut of_saga: HashMap<SagaId, Vec<Attempt>> = HashMap::with_capacity(deliveries.len());
        for (saga, attempt) in attempts {
            of_saga.entry(saga).or_default().push(attempt);
        }
        for delivery in deliveries {
            delivery.attempts = of_saga.remove(&delivery.saga_id).unwrap_or_default();
            delivery.attempts.sort_unstable_by_key(|attempt| attempt.attempt_at);
        }
    }

    /// Its place among the deliveries of its event.
    pub fn place(&self) -> DeliveryPlace {
        DeliveryPlace { subscription_id: self.subscription_id, generation: self.generation }
    }
}

/// The dead letter of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedLetter {
    pub id: DeadLetterId,
    pub final_error_code: ErrorCode,
    pub created_at: Timestamp,
    /// The saga that a requeue made of it.
    pub requeued_saga_id: Option<SagaId>,
}

#[async_trait]
pub trait JanitorStore: Send + Sync {
    /// Looks at events that are old enough, in the order of their creation.
    async fn old_events(&self, retention: &Retention, step: ScanStep<EventPlace>) -> StoreResult<OldEvents>;

    /// These events, in the order of their ids. Those that are gone are left out.
    async fn archived_events(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedEvent>>;

    /// All deliveries of these events. The caller chooses events with few ([`OldEvent::rows`]).
    async fn archived_deliveries(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedDelivery>>;

    /// Some deliveries of one event. A page costs what it holds, however many deliveries there are.
    async fn archived_page(&self, part: EventPart) -> StoreResult<Vec<ArchivedDelivery>>;

    /// Removes the given events that may be removed, in one transaction, with all that belongs to them. Events that
    /// somebody else has locked are left alone.
    ///
    /// What may go is decided as of the moment that `expiry` names, or of now if that is earlier. As of
    /// [`OldEvents::as_of`], an event stays of which anything changed since it was found, even if all of it is old and
    /// final by now: what was read of it since then, for an archive, is all that goes.
    async fn remove(&self, events: &[EventId], expiry: Expiry) -> StoreResult<Removed>;

    /// Removes some sagas of one event, if it may go as [`JanitorStore::remove`] says. The event itself goes with its last
    /// saga. From the first step on it is not sent again: nobody makes a saga of it.
    async fn remove_part(&self, part: EventPart, expiry: Expiry) -> StoreResult<RemovedPart>;

    /// Removes up to `limit` each of ended redrives, audit records and counts per hour that are older than `kept_for`
    /// (`None` means that these stay; hours stay at least [`MINUTES_KEPT`](crate::MINUTES_KEPT)), and of keys that
    /// expired [`EXPIRED_KEYS_KEPT`] ago.
    async fn remove_records(&self, kept_for: Option<Duration>, limit: u32) -> StoreResult<RemovedRecords>;

    /// One step of summing up counts: a minute into its totals, up to `limit` subscriptions into their hour, or up to
    /// `limit` counts and totals that are no longer needed go ([`MINUTES_KEPT`](crate::MINUTES_KEPT)). Returns whether
    /// there is more to do.
    async fn roll_up_counts(&self, limit: u32) -> StoreResult<bool>;
}
