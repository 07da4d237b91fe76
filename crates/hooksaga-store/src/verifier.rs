//! `subscription_verifier`: finds subscriptions that want verification and records the outcome.

use crate::{SealedSecret, StoreResult, StoredSecret};
use async_trait::async_trait;
use hooksaga_saga::{ErrorCode, SubscriptionId, Timestamp};
use std::time::Duration;

/// A verification to carry out now.
#[derive(Clone, Debug)]
pub struct Check {
    pub subscription_id: SubscriptionId,
    pub tenant: String,
    pub callback_url: String,
    /// The request for verification that this belongs to.
    pub round: i64,
    /// Which try within the round, from 1.
    pub attempt: u32,
    /// Which challenge of this subscription, ever, from 1.
    pub number: i64,
    /// Valid signing secrets, newest first.
    pub secrets: Vec<StoredSecret>,
    /// The static request headers for this URL, sealed.
    pub headers: Option<SealedSecret>,
    /// Who vouches for the URL in this round.
    pub vouched_by: Option<String>,
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    Verified,
    /// Somebody vouched for the URL; it was not asked.
    Trusted,
    /// Try again after this delay.
    Retry(ErrorCode, Duration),
    /// That was the last try of the round. A URL that was verified before stays so.
    GivenUp(ErrorCode),
}

#[async_trait]
pub trait VerifierStore: Send + Sync {
    /// Takes up to `limit` due checks, of inactive subscriptions too, and holds them for `hold`: after
    /// that another verifier may take them (its attempt counts on). The first try of a new round is due
    /// at once.
    async fn take_checks(&self, limit: u32, hold: Duration) -> StoreResult<Vec<Check>>;

    /// Records an outcome, if the check's round, attempt and URL are still the current ones; else changes
    /// nothing and returns false.
    async fn record(&self, check: &Check, outcome: &CheckOutcome) -> StoreResult<bool>;

    /// When the next check is due, if any waits.
    async fn next_check_at(&self) -> StoreResult<Option<Timestamp>>;

    /// The key ids under which valid secrets and headers are sealed: a start-up check.
    async fn secret_key_ids(&self) -> StoreResult<Vec<String>>;
}
