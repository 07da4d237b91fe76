//! `subscription_admin`: configures subscriptions. Never what verification writes.

use crate::{SealedSecret, StoreResult, Subscription, TenantScope};
use async_trait::async_trait;
use hooksaga_saga::{CallbackUrl, SubscriptionId, Tenant, Topics};
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
}

/// A change; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionPatch {
    pub topics: Option<Topics>,
    /// `Some(None)` clears it.
    pub description: Option<Option<String>>,
    /// A URL that differs from the stored one asks for verification anew.
    pub callback_url: Option<CallbackUrl>,
    pub active: Option<bool>,
    /// `Some(None)` clears the override.
    pub max_retry_limit: Option<Option<u32>>,
}

/// What became of a create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    Created(Subscription),
    /// The tenant has a subscription with these topics and callback URL.
    Exists(SubscriptionId),
}

/// What became of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    Updated(Subscription),
    /// The new topics and callback URL are another subscription's of the tenant.
    Exists(SubscriptionId),
    NotFound,
}

#[async_trait]
pub trait SubscriptionAdminStore: Send + Sync {
    /// Creates a subscription with its topics and its first secret, and asks for its verification.
    async fn create(&self, new: &NewSubscription, secret: &SealedSecret) -> StoreResult<CreateOutcome>;

    /// Changes the configuration; topics and the routing index in one transaction. A patch that changes nothing leaves
    /// `updated_at` alone.
    async fn update(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        patch: &SubscriptionPatch,
    ) -> StoreResult<UpdateOutcome>;

    /// Asks the verifier for a new round, which is no change of the configuration: `updated_at` stays.
    /// Nothing if there is no such subscription.
    async fn request_verification(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<Subscription>>;

    /// Adds a secret. Older valid ones stay valid for `overlap` at most, and at most `max_valid` in all:
    /// the oldest beyond that expire now. False if there is no such subscription.
    async fn rotate_secret(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        secret: &SealedSecret,
        overlap: Duration,
        max_valid: u32,
    ) -> StoreResult<bool>;

    /// The key ids under which valid secrets are sealed: a start-up check.
    async fn secret_key_ids(&self) -> StoreResult<Vec<String>>;
}
