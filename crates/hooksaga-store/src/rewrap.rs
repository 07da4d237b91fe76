//! Re-encrypts all sealed values with a new key, while servers run that can open both.

use crate::{SealedSecret, StoreResult};
use hooksaga_saga::SubscriptionId;

/// The tables with sealed text, their primary keys, and whether their rows have `expires_at`: each has `subscription_id`,
/// `key_id` and `sealed`. A row that has expired is never opened again, so it stays as it is: its key may be lost.
pub const SEALED_TABLES: &[(&str, &str, bool)] =
    &[("subscription_secrets", "id", true), ("subscription_headers", "subscription_id", false)];

/// How many rows one transaction moves: a writer never waits long for it.
pub const REWRAP_BATCH: u32 = 100;

/// Seals again what is given, for the subscription that it belongs to.
pub type Reseal<'a> = &'a (dyn Fn(SubscriptionId, &SealedSecret) -> StoreResult<SealedSecret> + Send + Sync);

/// Which key everything is to be sealed with, and how.
#[derive(Clone, Copy)]
pub struct Rewrap<'a> {
    pub key_id: &'a str,
    pub reseal: Reseal<'a>,
}
