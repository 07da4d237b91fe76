//! `dead_letter_operator`: stores dead letters, and requeues them as new sagas.

use crate::StoreResult;
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId, Timestamp};

/// A dead letter that this pass took off the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buried {
    /// Nothing if the letter was there already.
    pub dead_letter_id: Option<DeadLetterId>,
    pub saga_id: SagaId,
    pub event_id: EventId,
    pub subscription_id: SubscriptionId,
    pub correlation_id: String,
    pub final_error_code: ErrorCode,
}

/// The saga that a requeue leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requeued {
    pub saga_id: SagaId,
    pub generation: u32,
}

/// What became of one requeue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequeueOutcome {
    Created(Requeued),
    /// It had been requeued before: that saga.
    Already(Requeued),
    /// The subscription is not active and verified.
    NotDeliverable(SubscriptionId),
    NotFound,
}

/// Which dead letters; all of what is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    pub subscription_id: Option<SubscriptionId>,
    pub event_type: Option<String>,
    pub final_error_code: Option<String>,
    pub requeued: Option<bool>,
    /// Created at or after.
    pub created_after: Option<Timestamp>,
    /// Created before.
    pub created_before: Option<Timestamp>,
}

/// A requeue of many.
#[derive(Clone, Debug)]
pub struct RequeueRequest {
    /// `requeued` is ignored: what was requeued already never matches.
    pub filter: DeadLetterFilter,
    /// At most so many are requeued, oldest first; skipped ones do not count.
    pub limit: u32,
    /// Counts, and changes nothing.
    pub dry_run: bool,
    /// For sagas whose subscription has no limit of its own.
    pub default_limit: u32,
}

/// What a requeue of many did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequeueTally {
    /// Letters that fit the filter, are not requeued and were considered: `requeued` + `skipped`, where
    /// in a dry run `requeued` is what would have been.
    pub matched: u64,
    pub requeued: u64,
    /// Of subscriptions that are not active and verified.
    pub skipped: u64,
    /// The new sagas with their correlation ids; empty in a dry run.
    pub sagas: Vec<(Requeued, String)>,
}

#[async_trait]
pub trait DeadLetterStore: Send + Sync {
    /// Locks up to `limit` queued dead sagas, stores a letter with the event's payload for each that has
    /// none, and takes them off the queue.
    async fn bury(&self, limit: u32) -> StoreResult<Vec<Buried>>;

    /// A new saga for the letter's event and subscription, of the next generation; once, however often.
    async fn requeue(&self, id: DeadLetterId, default_limit: u32) -> StoreResult<RequeueOutcome>;

    /// The same for every letter that fits.
    async fn requeue_matching(&self, request: &RequeueRequest) -> StoreResult<RequeueTally>;
}
