//! Signing secrets, encrypted: the store never sees one in the clear.

use hooksaga_saga::{SecretId, SubscriptionId};
use std::sync::Arc;

/// A signing secret as it is stored: sealed with a key that only the process knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSecret {
    /// Which key sealed it (a fingerprint, not the key).
    pub key_id: String,
    /// Nonce and ciphertext.
    pub sealed: Vec<u8>,
}

/// A subscription's static request headers as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedHeaders {
    /// Their names, sorted, joined with commas.
    pub names: String,
    /// Names and values together, sealed.
    pub secret: SealedSecret,
}

/// A stored secret that is valid now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSecret {
    pub id: SecretId,
    pub secret: SealedSecret,
}

/// What is secret of a new subscription, sealed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedParts {
    pub secret: SealedSecret,
    /// Names and values of its static request headers; stored if it has any.
    pub headers: Option<SealedSecret>,
}

/// Seals for the subscription with this id. It is owned, since a store may call it in another thread.
pub type Sealer = Arc<dyn Fn(SubscriptionId) -> SealedParts + Send + Sync>;

/// What is secret of a subscription that does not exist yet. Sealed text opens for its own subscription only, so it is
/// sealed once the store has given that an id.
pub trait Seals: Send + Sync {
    fn sealer(&self) -> Sealer;
}

/// Sealed already, whatever for: stores do not open it.
impl Seals for SealedParts {
    fn sealer(&self) -> Sealer {
        let own = self.clone();
        Arc::new(move |_| own.clone())
    }
}

/// The same text for everything.
impl Seals for SealedSecret {
    fn sealer(&self) -> Sealer {
        SealedParts { secret: self.clone(), headers: Some(self.clone()) }.sealer()
    }
}
