//! Bearer keys and their scopes.
//!
//! Keys are known by their SHA-256 only. What the key store says is remembered for [`FRESH`], so that ingestion
//! does not ask the database per request, and a revoked key stops working well within the promised 5 seconds.
//! Unknown keys are remembered too; the memory is bounded, whatever is tried.

use crate::{
    problem::{Kind, Problem},
    state::SharedState,
};
use axum::extract::FromRequestParts;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use hooksaga_store::{KeyStore, Scope, Scopes, StoreResult};
use http::{HeaderMap, HeaderValue, header, request::Parts};
use ring::{
    digest,
    rand::{SecureRandom, SystemRandom},
};
use std::{
    collections::HashMap,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How long an answer of the key store is believed.
const FRESH: Duration = Duration::from_secs(2);

/// How many keys are remembered, known and unknown ones together.
const MAX_REMEMBERED: usize = 4096;

/// A longer credential is none of ours.
const MAX_KEY_LENGTH: usize = 512;

type KeyHash = [u8; 32];

/// The SHA-256 of a key: all that is stored of it.
pub fn hash_key(key: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, key.as_bytes()).as_ref());
    hash
}

/// A new random key: `hsk_` and 32 bytes in base64url.
pub fn generate_key() -> String {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).expect("the operating system gives random bytes");
    format!("hsk_{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// Looks keys up.
pub(crate) struct Keys {
    store: Arc<dyn KeyStore>,
    root: Option<KeyHash>,
    remembered: Mutex<HashMap<KeyHash, Remembered>>,
}

#[derive(Clone, Copy)]
struct Remembered {
    /// When the key store was asked.
    asked: Instant,
    /// Nothing: it knows no such key.
    scopes: Option<Scopes>,
}

impl Keys {
    pub(crate) fn new(store: Arc<dyn KeyStore>, root_key: Option<&str>) -> Self {
        Self { store, root: root_key.map(hash_key), remembered: Mutex::default() }
    }

    /// The scopes of a key; nothing if there is no such key.
    async fn scopes(&self, key: &str) -> StoreResult<Option<Scopes>> {
        let hash = hash_key(key);
        if self.root.is_some_and(|root| equal_in_constant_time(&root, &hash)) {
            return Ok(Some(Scopes::all()));
        }
        let remembered = self.lock().get(&hash).copied().filter(|key| key.asked.elapsed() < FRESH);
        if let Some(remembered) = remembered {
            return Ok(remembered.scopes);
        }
        // The moment before the question counts: a key revoked while it is answered is not believed longer.
        let asked = Instant::now();
        let scopes = self.store.find(&hash).await?.map(|key| key.scopes);
        let mut remembered = self.lock();
        if remembered.len() >= MAX_REMEMBERED {
            make_room(&mut remembered);
        }
        remembered.insert(hash, Remembered { asked, scopes });
        Ok(scopes)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<KeyHash, Remembered>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets what is stale; if that is not enough, unknown keys; if that is not enough, everything.
fn make_room(remembered: &mut HashMap<KeyHash, Remembered>) {
    remembered.retain(|_, key| key.asked.elapsed() < FRESH);
    if remembered.len() >= MAX_REMEMBERED / 2 {
        remembered.retain(|_, key| key.scopes.is_some());
    }
    if remembered.len() >= MAX_REMEMBERED {
        remembered.clear();
    }
}

/// Takes the same time wherever two hashes differ.
fn equal_in_constant_time(a: &KeyHash, b: &KeyHash) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b))) == 0
}

/// A scope as a type, so that a handler's signature says what it needs.
pub(crate) trait RequiredScope {
    const SCOPE: Scope;
}

macro_rules! required_scopes {
    ($($name:ident),+) => {$(
        pub(crate) struct $name;

        impl RequiredScope for $name {
            const SCOPE: Scope = Scope::$name;
        }
    )+};
}

required_scopes!(Ingest, Admin, Operator, Read);

/// Proof that the request carries a key with the scope.
pub(crate) struct Allowed<S>(PhantomData<S>);

impl<S: RequiredScope> FromRequestParts<SharedState> for Allowed<S> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &SharedState) -> Result<Self, Problem> {
        let key = bearer(&parts.headers)?;
        let scopes = state.keys.scopes(key).await?.ok_or_else(unknown_key)?;
        if scopes.contains(S::SCOPE) { Ok(Self(PhantomData)) } else { Err(scope_missing(S::SCOPE)) }
    }
}

fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Problem::new(Kind::NoKey, "send your API key in one header: authorization: Bearer KEY")
            .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"hooksaga\"")));
    };
    value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim_matches(' '))
        .filter(|key| (1..=MAX_KEY_LENGTH).contains(&key.len()))
        .ok_or_else(unknown_key)
}

fn unknown_key() -> Problem {
    Problem::new(Kind::NoKey, "this is not a valid API key, or it has been revoked").with_header(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static("Bearer realm=\"hooksaga\", error=\"invalid_token\""),
    )
}

fn scope_missing(scope: Scope) -> Problem {
    let challenge = match scope {
        Scope::Ingest => "Bearer realm=\"hooksaga\", error=\"insufficient_scope\", scope=\"ingest\"",
        Scope::Admin => "Bearer realm=\"hooksaga\", error=\"insufficient_scope\", scope=\"admin\"",
        Scope::Operator => "Bearer realm=\"hooksaga\", error=\"insufficient_scope\", scope=\"operator\"",
        Scope::Read => "Bearer realm=\"hooksaga\", error=\"insufficient_scope\", scope=\"read\"",
    };
    Problem::new(Kind::ScopeMissing, format!("this needs a key with the scope {scope}"))
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_keys_have_their_form_and_differ() {
        let (first, second) = (generate_key(), generate_key());
        assert_ne!(first, second);
        assert_eq!(first.len(), 4 + 43);
        assert!(first.starts_with("hsk_"));
    }

    #[test]
    fn hashes_are_sha_256() {
        let hex: String = hash_key("abc").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(equal_in_constant_time(&hash_key("a"), &hash_key("a")));
        assert!(!equal_in_constant_time(&hash_key("a"), &hash_key("b")));
    }

    #[test]
    fn the_memory_is_bounded_and_prefers_known_keys() {
        let mut remembered = HashMap::new();
        let asked = Instant::now();
        for number in 0..MAX_REMEMBERED {
            let scopes = (number == 0).then(Scopes::all);
            remembered.insert(hash_key(&number.to_string()), Remembered { asked, scopes });
        }
        make_room(&mut remembered);
        assert_eq!(remembered.len(), 1);
        assert!(remembered.contains_key(&hash_key("0")));
    }
}
