//! Sealing everything that is sealed with another key, while servers run that open both.

use crate::{SealedSecret, StoreResult};

/// The tables with sealed text, and their primary keys: each has `key_id` and `sealed`.
pub const SEALED_TABLES: &[(&str, &str)] =
    &[("subscription_secrets", "id"), ("subscription_headers", "subscription_id")];

/// How many rows one transaction moves: a writer never waits long for it.
pub const REWRAP_BATCH: u32 = 100;

/// Seals again what is given.
pub type Reseal<'a> = &'a (dyn Fn(&SealedSecret) -> StoreResult<SealedSecret> + Send + Sync);

/// Which key everything is to be sealed with, and how.
#[derive(Clone, Copy)]
pub struct Rewrap<'a> {
    pub key_id: &'a str,
    pub reseal: Reseal<'a>,
}
