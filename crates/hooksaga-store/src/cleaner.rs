//! `lease_cleaner`: frees jobs whose worker is gone.

use crate::{StoreResult, Trace};
use async_trait::async_trait;
use hooksaga_saga::{JobId, SagaId};
use std::time::Duration;

/// A job whose lease had run out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetLease {
    pub job_id: JobId,
    pub saga_id: SagaId,
    pub trace: Trace,
    /// How often this has happened to the job, this time included.
    pub lease_resets: u32,
}

#[async_trait]
pub trait CleanerStore: Send + Sync {
    /// Up to `limit` Leased jobs whose `lease_until` has passed become Pending, due at once, with one more
    /// `lease_resets`.
    async fn reset_expired(&self, limit: u32) -> StoreResult<Vec<ResetLease>>;

    /// For jobs that a clock which was ahead has stranded. Up to `limit` Leased jobs whose `lease_until` lies more than
    /// `lease` from now, further than any claim could have put it, become Pending as if it had passed; up to `limit`
    /// Pending ones with a not-before more than `hand_back` from now can be claimed at once. Parked jobs stay parked.
    /// Returns how many changed.
    async fn free_stranded(&self, limit: u32, lease: Duration, hand_back: Duration) -> StoreResult<u64>;
}
