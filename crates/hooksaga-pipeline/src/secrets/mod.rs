//! Signing secrets, the key that seals them at rest, and randomness.
//!
//! A secret leaves this module in the clear in exactly three ways: `reveal` and `to_base64`, which are
//! called where a person is to see it once, and the signature of a callback. Debug, Display and every
//! error are without it.

mod new;
mod random;
mod seal;
mod signing;

pub use new::NewSecrets;
pub use random::{random_hex, random_i64};
pub use seal::{InvalidSecretKey, SealError, SecretKey};
pub use signing::{InvalidSecret, SigningSecret};
