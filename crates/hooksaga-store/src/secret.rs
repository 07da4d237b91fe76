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

/// A stored secret that is valid now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSecret {
    pub id: SecretId,
    pub secret: SealedSecret,
}
