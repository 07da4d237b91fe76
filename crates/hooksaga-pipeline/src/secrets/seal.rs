//! Encryption of signing secrets at rest: ChaCha20-Poly1305 under the configured key. Sealed text is bound to its purpose
//! and its subscription: if it is moved to another subscription, it cannot be opened there.

use super::{SigningSecret, random};
use base64::{Engine, engine::general_purpose::STANDARD};
use hooksaga_saga::{RequestHeaders, SubscriptionId};
use hooksaga_store::{SealedHeaders, SealedSecret};
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    digest,
};
use std::{fmt, str::FromStr, sync::Arc};

/// Bound into every sealed secret, with the subscription's id, so that nothing else encrypted under the key passes for one.
const CONTEXT: &[u8] = b"hooksaga signing secret v2";
/// Bound into every sealed set of request headers.
const HEADERS_CONTEXT: &[u8] = b"hooksaga request headers v2";
/// Hashed before the key for its fingerprint, so that the fingerprint is of no other use.
const KEY_ID_CONTEXT: &[u8] = b"hooksaga secret key id v1\0";
const KEY_LEN: usize = 32;
/// What is stored sealed: all of it is moved when the key changes.
const STORED: &[&[u8]] = &[CONTEXT, HEADERS_CONTEXT];

/// The key that seals signing secrets: 32 bytes, as text their base64.
///
/// A nonce is 96 random bits: safe for far more secrets than any installation has (2^32 under one key).
pub struct SecretKey {
    bytes: [u8; KEY_LEN],
    cipher: LessSafeKey,
    key_id: String,
    /// A former key: it opens, and does not seal any more.
    old: Option<Arc<SecretKey>>,
}

/// A text that is no secret key. Says what one looks like, never what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret key must be 32 bytes in standard base64 (44 characters); `openssl rand -base64 32` makes one"
)]
pub struct InvalidSecretKey;

/// A sealed secret that this key does not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("the secret was sealed with key {sealed_with}, but the configured key is {configured}")]
    OtherKey { sealed_with: String, configured: String },
    #[error("the stored secret was changed after it was sealed, or is another subscription's")]
    Changed,
}

impl SecretKey {
    /// A new random key.
    pub fn generate() -> Self {
        let mut bytes = [0; KEY_LEN];
        random::fill(&mut bytes);
        Self::new(bytes)
    }

    fn new(bytes: [u8; KEY_LEN]) -> Self {
        let unbound = UnboundKey::new(&CHACHA20_POLY1305, &bytes).expect("the key has the cipher's length");
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(KEY_ID_CONTEXT);
        hash.update(&bytes);
        let key_id = random::to_hex(&hash.finish().as_ref()[..8]);
        Self { bytes, cipher: LessSafeKey::new(unbound), key_id, old: None }
    }

    /// The same key, which also opens what `old` has sealed.
    #[must_use]
    pub fn with_old(&self, old: Arc<Self>) -> Self {
        Self { old: Some(old), ..Self::new(self.bytes) }
    }

    /// Whether what was sealed with the key of this id can be opened.
    pub fn opens(&self, key_id: &str) -> bool {
        self.key_id == key_id || self.old.as_ref().is_some_and(|old| old.opens(key_id))
    }

    /// Seals with this key what the old one has sealed for this subscription, whatever it is.
    pub fn reseal(&self, id: SubscriptionId, sealed: &SealedSecret) -> Result<SealedSecret, SealError> {
        let key = self.key_of(&sealed.key_id)?;
        let opened = STORED.iter().find_map(|context| {
            let context = bound(context, id);
            key.open_own(&context, &sealed.sealed).map(|bytes| self.seal_own(&context, &bytes))
        });
        let sealed = opened.ok_or(SealError::Changed)?;
        Ok(SealedSecret { key_id: self.key_id.clone(), sealed })
    }

    /// This key or the old one.
    fn key_of(&self, key_id: &str) -> Result<&Self, SealError> {
        if self.key_id == key_id {
            return Ok(self);
        }
        let other =
            || SealError::OtherKey { sealed_with: key_id.to_owned(), configured: self.key_id.clone() };
        self.old.as_deref().filter(|old| old.key_id == key_id).ok_or_else(other)
    }

    /// The key in the clear, to be written into its file.
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.bytes)
    }

    /// The key's fingerprint: 16 hexadecimal digits.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Encrypts a secret of this subscription: nonce, ciphertext and tag. Twice the same secret looks different.
    pub fn seal(&self, id: SubscriptionId, secret: &SigningSecret) -> SealedSecret {
        let sealed = self.seal_own(&bound(CONTEXT, id), secret.as_bytes());
        SealedSecret { key_id: self.key_id.clone(), sealed }
    }

    /// Encrypts a subscription's request headers; `None` if there are none.
    pub fn seal_headers(&self, id: SubscriptionId, headers: &RequestHeaders) -> Option<SealedHeaders> {
        let sealed = || self.seal_own(&bound(HEADERS_CONTEXT, id), headers.reveal().as_bytes());
        (!headers.is_empty()).then(|| SealedHeaders {
            names: headers.names(),
            secret: SealedSecret { key_id: self.key_id.clone(), sealed: sealed() },
        })
    }

    /// Decrypts request headers that this key or the old one sealed for this subscription.
    pub fn open_headers(
        &self,
        id: SubscriptionId,
        sealed: &SealedSecret,
    ) -> Result<RequestHeaders, SealError> {
        let key = self.key_of(&sealed.key_id)?;
        let bytes = key.open_own(&bound(HEADERS_CONTEXT, id), &sealed.sealed).ok_or(SealError::Changed)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| SealError::Changed)?;
        RequestHeaders::from_revealed(text).ok_or(SealError::Changed)
    }

    /// Encrypts something else that is small. `context` says what it is, and only the same context opens it.
    pub fn seal_as(&self, context: &'static [u8], bytes: &[u8]) -> Vec<u8> {
        self.seal_own(context, bytes)
    }

    fn seal_own(&self, context: &[u8], bytes: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        random::fill(&mut nonce);
        let mut text = bytes.to_vec();
        self.cipher
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(context), &mut text)
            .expect("what is sealed is far shorter than the cipher's limit");
        [&nonce[..], &text].concat()
    }

    /// Decrypts what this key or the old one sealed in this context; `None` if neither did.
    pub fn open_as(&self, context: &'static [u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let old = || self.old.as_ref().and_then(|old| old.open_own(context, sealed));
        self.open_own(context, sealed).or_else(old)
    }

    fn open_own(&self, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut text = text.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let bytes = self.cipher.open_in_place(nonce, Aad::from(context), &mut text).ok()?;
        Some(bytes.to_vec())
    }

    /// Decrypts a secret that this key or the old one sealed for this subscription.
    pub fn open(&self, id: SubscriptionId, sealed: &SealedSecret) -> Result<SigningSecret, SealError> {
        let key = self.key_of(&sealed.key_id)?;
        let bytes = key.open_own(&bound(CONTEXT, id), &sealed.sealed).ok_or(SealError::Changed)?;
        SigningSecret::from_bytes(&bytes).map_err(|_| SealError::Changed)
    }
}

/// What is bound into text that is sealed for a subscription.
fn bound(context: &[u8], id: SubscriptionId) -> Vec<u8> {
    [context, b"\0", &id.0.to_be_bytes()].concat()
}

impl FromStr for SecretKey {
    type Err = InvalidSecretKey;

    /// Blanks and line ends around the key are ignored: it usually comes from a file.
    fn from_str(text: &str) -> Result<Self, InvalidSecretKey> {
        let bytes = STANDARD.decode(text.trim()).map_err(|_| InvalidSecretKey)?;
        bytes.try_into().map(Self::new).map_err(|_| InvalidSecretKey)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(masked, id {})", self.key_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SubscriptionId = SubscriptionId(17);
    const OTHER: SubscriptionId = SubscriptionId(18);

    fn open_err(key: &SecretKey, sealed: &SealedSecret) -> SealError {
        key.open(ID, sealed).expect_err("it must not open")
    }

    #[test]
    fn a_sealed_secret_opens_with_its_key_read_back_from_text() {
        let key = SecretKey::generate();
        let secret = SigningSecret::generate();
        let sealed = key.seal(ID, &secret);
        assert_eq!(sealed.sealed.len(), NONCE_LEN + 32 + CHACHA20_POLY1305.tag_len());
        let again: SecretKey = format!(" {}\n", key.to_base64()).parse().expect("its own text");
        assert_eq!(again.key_id(), key.key_id());
        assert_eq!(again.open(ID, &sealed).expect("the same key").as_bytes(), secret.as_bytes());
    }

    #[test]
    fn sealing_twice_gives_two_texts() {
        let key = SecretKey::generate();
        let secret = SigningSecret::generate();
        assert_ne!(key.seal(ID, &secret).sealed, key.seal(ID, &secret).sealed);
    }

    #[test]
    fn another_key_is_named_in_the_error() {
        let (key, other) = (SecretKey::generate(), SecretKey::generate());
        let sealed = key.seal(ID, &SigningSecret::generate());
        let error = open_err(&other, &sealed);
        assert!(error.to_string().contains(key.key_id()) && error.to_string().contains(other.key_id()));
        // A forged key id does not help.
        let forged = SealedSecret { key_id: other.key_id().to_owned(), ..sealed };
        assert_eq!(open_err(&other, &forged), SealError::Changed);
    }

    #[test]
    fn a_former_key_opens_and_does_not_seal() {
        let old = Arc::new(SecretKey::generate());
        let key = SecretKey::generate().with_old(Arc::clone(&old));
        let secret = SigningSecret::generate();
        let before = old.seal(ID, &secret);
        assert_eq!(key.open(ID, &before).expect("the old key").as_bytes(), secret.as_bytes());
        assert!(key.opens(old.key_id()) && key.opens(key.key_id()) && !old.opens(key.key_id()));
        let after = key.reseal(ID, &before).expect("it opens");
        assert_eq!(after.key_id, key.key_id());
        assert_eq!(key.open(ID, &after).expect("the new key").as_bytes(), secret.as_bytes());
        assert!(old.open(ID, &after).is_err());
        let alone: SecretKey = key.to_base64().parse().expect("its own text");
        assert_eq!(alone.open(ID, &after).expect("without the old one").as_bytes(), secret.as_bytes());
        let token = old.seal_as(b"a purpose", b"something");
        assert_eq!(key.open_as(b"a purpose", &token).as_deref(), Some(&b"something"[..]));
        let stranger = SecretKey::generate().seal(ID, &secret);
        assert!(matches!(key.reseal(ID, &stranger), Err(SealError::OtherKey { .. })));
        let forged = SealedSecret { key_id: old.key_id().to_owned(), ..stranger };
        assert_eq!(key.reseal(ID, &forged), Err(SealError::Changed));
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let key = SecretKey::generate();
        let sealed = key.seal(ID, &SigningSecret::generate());
        for index in 0..sealed.sealed.len() {
            let mut changed = sealed.clone();
            changed.sealed[index] ^= 1;
            assert_eq!(open_err(&key, &changed), SealError::Changed);
            changed.sealed.truncate(index);
            assert_eq!(open_err(&key, &changed), SealError::Changed);
        }
    }

    #[test]
    fn what_is_sealed_for_one_purpose_does_not_open_for_another() {
        let key = SecretKey::generate();
        let sealed = key.seal_as(b"a purpose", b"something");
        assert_eq!(key.open_as(b"a purpose", &sealed).as_deref(), Some(&b"something"[..]));
        assert_eq!(key.open_as(b"another purpose", &sealed), None);
        assert_eq!(SecretKey::generate().open_as(b"a purpose", &sealed), None);
        assert_eq!(key.open_as(b"a purpose", b"short"), None);
    }

    #[test]
    fn headers_are_sealed_and_opened_as_such_only() {
        let key = SecretKey::generate();
        let pair = ("x-key".parse().expect("a name"), "Bearer abc: def".parse().expect("a value"));
        let headers = RequestHeaders::new([pair]).expect("one");
        let sealed = key.seal_headers(ID, &headers).expect("there is one");
        assert_eq!(sealed.names, "x-key");
        assert_eq!(key.open_headers(ID, &sealed.secret), Ok(headers));
        assert_eq!(open_err(&key, &sealed.secret), SealError::Changed, "it is no signing secret");
        let other = SecretKey::generate().open_headers(ID, &sealed.secret);
        assert!(matches!(other, Err(SealError::OtherKey { .. })));
        assert_eq!(key.open_headers(ID, &key.seal(ID, &SigningSecret::generate())), Err(SealError::Changed));
        assert_eq!(key.seal_headers(ID, &RequestHeaders::default()), None);
    }

    #[test]
    fn what_is_sealed_for_one_subscription_does_not_open_for_another() {
        let old = Arc::new(SecretKey::generate());
        let key = SecretKey::generate().with_old(Arc::clone(&old));
        let pair = ("x-key".parse().expect("a name"), "abc".parse().expect("a value"));
        let headers = RequestHeaders::new([pair]).expect("one");
        for sealing in [&key, &*old] {
            let secret = sealing.seal(ID, &SigningSecret::generate());
            assert_eq!(key.open(OTHER, &secret).err(), Some(SealError::Changed));
            assert_eq!(key.reseal(OTHER, &secret), Err(SealError::Changed));
            let headers = sealing.seal_headers(ID, &headers).expect("there is one").secret;
            assert_eq!(key.open_headers(OTHER, &headers), Err(SealError::Changed));
            let moved = key.reseal(ID, &headers).expect("its own");
            assert!(key.open_headers(ID, &moved).is_ok() && key.open_headers(OTHER, &moved).is_err());
        }
    }

    #[test]
    fn the_fingerprint_is_16_hex_digits_of_the_key_alone() {
        // sha256(b"hooksaga secret key id v1\0" + bytes(range(32)))[:8], computed with Python's hashlib.
        let key: SecretKey =
            STANDARD.encode((0..32).collect::<Vec<u8>>()).parse().expect("32 bytes are a key");
        assert_eq!(key.key_id(), "945503594a66ca72");
    }

    #[test]
    fn texts_of_another_length_are_no_keys() {
        for text in ["", "AAAA", "not base64", &STANDARD.encode([1; 31]), &STANDARD.encode([1; 33])] {
            assert!(text.parse::<SecretKey>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn debug_and_errors_do_not_show_the_key() {
        let key = SecretKey::generate();
        assert!(!format!("{key:?}").contains(&key.to_base64()));
        assert!(format!("{key:?}").contains(key.key_id()));
        assert!(!InvalidSecretKey.to_string().contains("AAAA"));
    }
}
