//! Signing secrets, encrypted: the store never sees one in the clear.

use hooksaga_saga::SecretId;

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
