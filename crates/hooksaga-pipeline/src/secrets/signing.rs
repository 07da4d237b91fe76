//! The secret that signs a subscription's callbacks.

use super::random;
use base64::{Engine, engine::general_purpose::STANDARD};
use ring::hmac;
use std::{fmt, str::FromStr};

const PREFIX: &str = "whsec_";

/// A signing secret of 24 to 64 bytes; as text, `whsec_` and their base64.
#[derive(Clone)]
pub struct SigningSecret {
    bytes: Box<[u8]>,
    /// Prepared once, since one secret signs many callbacks.
    key: hmac::Key,
}

/// A text that is no signing secret. Says what one looks like, never what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    #[error("a signing secret starts with whsec_")]
    Prefix,
    #[error("after whsec_, a signing secret is standard base64 with padding")]
    Base64,
    #[error("a signing secret has 24 to 64 bytes; this one has {0}")]
    Length(usize),
}

impl SigningSecret {
    /// The fewest bytes of a secret.
    pub const MIN_LEN: usize = 24;
    /// The most bytes of a secret.
    pub const MAX_LEN: usize = 64;

    /// A new random secret of 32 bytes.
    pub fn generate() -> Self {
        let mut bytes = [0; 32];
        random::fill(&mut bytes);
        Self::new(&bytes)
    }

    /// The secret of these bytes, if they are neither too few nor too many.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidSecret> {
        if (Self::MIN_LEN..=Self::MAX_LEN).contains(&bytes.len()) {
            Ok(Self::new(bytes))
        } else {
            Err(InvalidSecret::Length(bytes.len()))
        }
    }

    fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.into(), key: hmac::Key::new(hmac::HMAC_SHA256, bytes) }
    }

    /// The secret in the clear, to be shown once.
    pub fn reveal(&self) -> String {
        let mut text = String::from(PREFIX);
        STANDARD.encode_string(&self.bytes, &mut text);
        text
    }

    /// The bytes in the clear.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The key that signs with them.
    pub(crate) fn key(&self) -> &hmac::Key {
        &self.key
    }
}

impl FromStr for SigningSecret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        let encoded = text.strip_prefix(PREFIX).ok_or(InvalidSecret::Prefix)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| InvalidSecret::Base64)?;
        Self::from_bytes(&bytes)
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(masked)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_revealed_is_read_back() {
        let secret = SigningSecret::generate();
        assert_eq!(secret.as_bytes().len(), 32);
        let again: SigningSecret = secret.reveal().parse().expect("a revealed secret is a valid one");
        assert_eq!(again.as_bytes(), secret.as_bytes());
        assert_ne!(SigningSecret::generate().as_bytes(), secret.as_bytes());
    }

    #[test]
    fn the_length_is_24_to_64_bytes() {
        for (length, valid) in [(0, false), (23, false), (24, true), (64, true), (65, false)] {
            let text = format!("whsec_{}", STANDARD.encode(vec![7; length]));
            assert_eq!(text.parse::<SigningSecret>().is_ok(), valid, "{length} bytes");
        }
        assert_eq!(SigningSecret::from_bytes(&[7; 23]).err(), Some(InvalidSecret::Length(23)));
    }

    #[test]
    fn other_texts_are_refused_without_being_repeated() {
        let encoded = STANDARD.encode([9; 32]);
        assert_eq!(encoded.parse::<SigningSecret>().err(), Some(InvalidSecret::Prefix));
        let unpadded = format!("whsec_{}", encoded.trim_end_matches('='));
        assert_eq!(unpadded.parse::<SigningSecret>().err(), Some(InvalidSecret::Base64));
        for text in ["whsec_not base64!", "whsec_", "WHSEC_AAAA"] {
            let error = text.parse::<SigningSecret>().expect_err("no secret");
            assert!(!error.to_string().contains("not base64!"));
        }
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        let secret = SigningSecret::generate();
        assert_eq!(format!("{secret:?}"), "SigningSecret(masked)");
    }
}
