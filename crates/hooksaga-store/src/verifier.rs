//! `subscription_verifier`: finds subscriptions that need verification and records the outcome.

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

/// Which due checks are taken. Tenants take turns in the order of their names, so that one with many checks hides nobody
/// else's behind them.
#[derive(Clone, Debug, Default)]
pub struct CheckTurn {
    /// The turn begins behind this tenant; `None`: with the first one.
    pub after: Option<String>,
    /// The most checks in all.
    pub limit: u32,
    /// The most checks of one tenant.
    pub per_tenant: u32,
    /// These tenants are passed over.
    pub full: Vec<String>,
}

/// The checks of one turn.
#[derive(Clone, Debug)]
pub struct TakenChecks {
    pub checks: Vec<Check>,
    /// Where the next turn begins: behind this tenant. Nothing if this turn reached the last one.
    pub resume_after: Option<String>,
}

#[async_trait]
pub trait VerifierStore: Send + Sync {
    /// Takes due checks, of inactive subscriptions too, and holds them for `hold`: after that another
    /// verifier may take them (its attempt counts on). The first try of a new round is due at once. Of one tenant those
    /// that have been due for longest are taken, new rounds before others. What is read is bounded by the turn, however
    /// much waits: see [`CheckPicker`](crate::CheckPicker).
    async fn take_checks_in_turn(&self, turn: &CheckTurn, hold: Duration) -> StoreResult<TakenChecks>;

    /// Takes up to `limit` due checks of all tenants.
    async fn take_checks(&self, limit: u32, hold: Duration) -> StoreResult<Vec<Check>> {
        let mut turn = CheckTurn { limit, per_tenant: limit, ..CheckTurn::default() };
        let mut checks = Vec::new();
        while turn.limit > 0 {
            let taken = self.take_checks_in_turn(&turn, hold).await?;
            turn.limit -= u32::try_from(taken.checks.len()).unwrap_or(turn.limit).min(turn.limit);
            checks.extend(taken.checks);
            let Some(last) = taken.resume_after else { break };
            turn.after = Some(last);
        }
        Ok(checks)
    }

    /// Records an outcome, if the check's round, attempt and URL are still the current ones; else changes
    /// nothing and returns false.
    async fn record(&self, check: &Check, outcome: &CheckOutcome) -> StoreResult<bool>;

    /// Makes up to `limit` checks due that lie further ahead than `furthest`: a clock that was ahead has put them there.
    /// Returns how many.
    async fn free_stranded(&self, limit: u32, furthest: Duration) -> StoreResult<u64>;

    /// When the next check is due, if any waits.
    async fn next_check_at(&self) -> StoreResult<Option<Timestamp>>;

    /// The key ids under which valid secrets and headers are sealed: a start-up check.
    async fn secret_key_ids(&self) -> StoreResult<Vec<String>>;
}
