//! `subscription_admin`: configures subscriptions. It never writes the columns that verification writes.

use crate::{SealedHeaders, SealedSecret, Seals, StoreResult, Subscription, TenantScope};
use async_trait::async_trait;
use hooksaga_saga::{CallbackUrl, SubscriptionId, Tenant, Timestamp, Topics};
use std::time::Duration;

/// A subscription to create.
#[derive(Clone, Debug)]
pub struct NewSubscription {
    pub tenant: Tenant,
    pub topics: Topics,
    pub callback_url: CallbackUrl,
    /// For people: at most 500 characters.
    pub description: Option<String>,
    pub active: bool,
    pub max_retry_limit: Option<u32>,
    /// Attempts started per second, 1 to 10,000; without one it is not limited.
    pub rate_limit: Option<u32>,
    /// The names of the headers that are sent with every delivery and challenge, joined with commas.
    pub headers: Option<String>,
}

/// A change; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionPatch {
    pub topics: Option<Topics>,
    /// `Some(None)` clears it.
    pub description: Option<Option<String>>,
    /// A URL that differs from the stored one asks for verification again.
    pub callback_url: Option<CallbackUrl>,
    /// True also clears what it was disabled for; false keeps that.
    pub active: Option<bool>,
    /// `Some(None)` clears the override.
    pub max_retry_limit: Option<Option<u32>>,
    /// `Some(None)` removes the limit.
    pub rate_limit: Option<Option<u32>>,
    /// Replaces all of them; `Some(None)` removes them. A URL of another origin removes them too, unless they are given
    /// again: credentials do not follow to a stranger.
    pub headers: Option<Option<SealedHeaders>>,
}

impl SubscriptionPatch {
    /// What becomes of the headers of a subscription with this URL: nothing changes, they go, or these take their place.
    pub fn headers_for(&self, current_url: &str) -> Option<Option<&SealedHeaders>> {
        match (&self.headers, &self.callback_url) {
            (Some(headers), _) => Some(headers.as_ref()),
            (None, Some(url)) if !CallbackUrl::same_origin(current_url, url.as_str()) => Some(None),
            (None, _) => None,
        }
    }
}

/// What became of a create.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, and mostly the large one: a box would only cost"
)]
pub enum CreateOutcome {
    Created(Subscription),
    /// The tenant has a subscription with these topics and callback URL.
    Exists(SubscriptionId),
}

/// What became of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, and mostly the large one: a box would only cost"
)]
pub enum UpdateOutcome {
    Updated(Subscription),
    /// The new topics and callback URL are another subscription's of the tenant.
    Exists(SubscriptionId),
    NotFound,
}

/// The tables with a `subscription_id` whose rows go when the subscription is deleted.
pub const GONE_WITH_A_SUBSCRIPTION: [&str; 5] = [
    "subscription_topics",
    "subscription_secrets",
    "subscription_headers",
    "endpoint_failures",
    "rate_limits",
];

/// A new secret of a subscription, and how long its older ones stay valid.
#[derive(Clone, Debug)]
pub struct SecretRotation {
    pub subscription_id: SubscriptionId,
    pub secret: SealedSecret,
    /// The older ones stay valid for so long at most.
    pub overlap: Duration,
    /// So many are valid at a time, the new one included: the oldest beyond that expire now.
    pub max_valid: u32,
}

impl SecretRotation {
    /// When an older secret that is valid expires. `newer`: how many of the older ones are newer.
    pub fn end_of(&self, newer: usize, expires_at: Option<Timestamp>, now: Timestamp) -> Timestamp {
        if newer + 1 >= self.max_valid as usize {
            return now;
        }
        let overlapped = now.after(self.overlap);
        expires_at.map_or(overlapped, |expires_at| expires_at.min(overlapped))
    }
}

#[async_trait]
pub trait SubscriptionAdminStore: Send + Sync {
    /// Creates a subscription with its topics, its headers and its first secret, and asks for its verification. `secrets`
    /// are sealed for the id that it gets.
    async fn create(&self, new: &NewSubscription, secrets: &dyn Seals) -> StoreResult<CreateOutcome>;

    /// Changes the configuration; topics and the routing index in one transaction. A patch that changes nothing leaves
    /// `updated_at` alone.
    async fn update(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        patch: &SubscriptionPatch,
    ) -> StoreResult<UpdateOutcome>;

    /// Asks the verifier for a new round, which is no change of the configuration: `updated_at` stays. `vouched_by`: who
    /// asks that the present URL be trusted in this round, without a challenge.
    /// `None` if there is no such subscription.
    async fn request_verification(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        vouched_by: Option<&str>,
    ) -> StoreResult<Option<Subscription>>;

    /// Deletes a subscription: its topics, secrets and headers go, its row stays for the history that names it, and
    /// nothing but the way of its open deliveries to their end finds it again. False if there is no such subscription.
    async fn delete(&self, scope: &TenantScope, id: SubscriptionId) -> StoreResult<bool>;

    /// Adds a secret, and limits how long the older ones stay valid. False if there is no such subscription.
    async fn rotate_secret(&self, scope: &TenantScope, rotation: &SecretRotation) -> StoreResult<bool>;

    /// The key ids under which valid secrets and headers are sealed: a start-up check.
    async fn secret_key_ids(&self) -> StoreResult<Vec<String>>;
}
