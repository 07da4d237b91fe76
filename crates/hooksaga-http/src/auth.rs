//! Bearer keys: their scopes, and the tenant that they are bound to.
//!
//! Only the SHA-256 of a key is stored. Lookups are cached for [`FRESH`], so that ingestion
//! does not ask the database per request, and a revoked key stops working well within the promised 5 seconds.
//! Unknown keys are cached too; the cache is bounded, however many are tried.

use crate::{
    audit,
    problem::{Kind, Problem},
    request_rates::KeyRates,
    state::SharedState,
};
use axum::extract::FromRequestParts;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use hooksaga_saga::{KeyId, Tenant, Timestamp};
use hooksaga_store::{KeyReaderStore, Scope, Scopes, StoreResult, TenantScope};
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

/// How long a key lookup is cached.
const FRESH: Duration = Duration::from_secs(2);

/// The use of a key is noted to the minute.
const NOTE_USE_EVERY: Duration = Duration::from_secs(60);

/// How many keys are remembered, known and unknown ones together.
const MAX_REMEMBERED: usize = 4096;

/// A longer credential is none of ours.
pub(crate) const MAX_KEY_LENGTH: usize = 512;

pub(crate) type KeyHash = [u8; 32];

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

/// Who sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Nothing for the root key, which is configured, not stored.
    pub(crate) key_id: Option<KeyId>,
    pub(crate) name: String,
    pub(crate) scopes: Scopes,
    /// The only tenant that it may see and change.
    pub(crate) tenant: Option<Tenant>,
    pub(crate) expires_at: Option<Timestamp>,
}

impl Caller {
    fn root() -> Self {
        Self { key_id: None, name: "root".to_owned(), scopes: Scopes::all(), tenant: None, expires_at: None }
    }

    /// Whose rows this request is about: the caller's own tenant, the one it asks for, or everybody's.
    pub(crate) fn scope(&self, asked: Option<Tenant>) -> Result<TenantScope, Problem> {
        match (&self.tenant, asked) {
            (Some(own), Some(asked)) if *own != asked => Err(other_tenant(own)),
            (Some(own), _) => Ok(TenantScope::One(own.clone())),
            (None, Some(asked)) => Ok(TenantScope::One(asked)),
            (None, None) => Ok(TenantScope::All),
        }
    }

    /// The tenant that something new belongs to: the caller's own, or the one it asks for, or the default.
    pub(crate) fn owner(&self, asked: Option<Tenant>) -> Result<Tenant, Problem> {
        match self.scope(asked)? {
            TenantScope::One(tenant) => Ok(tenant),
            TenantScope::All => Ok(Tenant::default()),
        }
    }

    /// Refuses what only a key without a tenant may do.
    pub(crate) fn must_be_unbound(&self) -> Result<(), Problem> {
        match &self.tenant {
            None => Ok(()),
            Some(own) => Err(Problem::new(
                Kind::NotForThisKey,
                format!("this key is bound to the tenant {own}; this needs a key that is bound to none"),
            )),
        }
    }
}

fn other_tenant(own: &Tenant) -> Problem {
    Problem::new(Kind::NotForThisKey, format!("this key is bound to the tenant {own} and may name no other"))
}

/// Looks keys up.
pub(crate) struct KnownKeys {
    store: Arc<dyn KeyReaderStore>,
    root: Option<KeyHash>,
    remembered: Mutex<HashMap<KeyHash, Remembered>>,
    /// Where a key's requests per second are limited.
    rates: Option<KeyRates>,
}

#[derive(Clone)]
struct Remembered {
    /// When the key store was asked.
    asked: Instant,
    /// `None`: it knows no such key.
    caller: Option<Arc<Caller>>,
    /// When the key's use was last noted.
    noted: Option<Instant>,
}

impl KnownKeys {
    pub(crate) fn new(
        store: Arc<dyn KeyReaderStore>,
        root_key: Option<&str>,
        rates: Option<KeyRates>,
    ) -> Self {
        Self { store, root: root_key.map(hash_key), remembered: Mutex::default(), rates }
    }

    /// Counts a request of a key that is known.
    pub(crate) fn count(&self, hash: KeyHash) -> Result<(), Problem> {
        self.rates.as_ref().map_or(Ok(()), |rates| rates.count(hash))
    }

    /// Whose key has this hash; `None` if there is no such key.
    pub(crate) async fn caller(&self, hash: KeyHash) -> StoreResult<Option<Arc<Caller>>> {
        if self.root.is_some_and(|root| equal_in_constant_time(&root, &hash)) {
            let root = Arc::new(Caller::root());
            audit::by(&root);
            return Ok(Some(root));
        }
        let remembered = self.lock().get(&hash).cloned();
        if let Some(fresh) = remembered.as_ref().filter(|key| key.asked.elapsed() < FRESH) {
            fresh.caller.iter().for_each(audit::by);
            return Ok(fresh.caller.clone());
        }
        // The moment before the question counts: a key that is revoked in the meantime is not believed longer.
        let asked = Instant::now();
        let caller = self.store.find(&hash).await?.map(|key| {
            Arc::new(Caller {
                key_id: Some(key.id),
                name: key.name,
                scopes: key.scopes,
                tenant: key.tenant,
                expires_at: key.expires_at,
            })
        });
        let mut noted = remembered.and_then(|key| key.noted);
        if let Some(id) = caller.as_ref().and_then(|caller| caller.key_id)
            && noted.is_none_or(|at| at.elapsed() >= NOTE_USE_EVERY)
        {
            noted = Some(asked);
            self.note_use(id);
        }
        let mut remembered = self.lock();
        if remembered.len() >= MAX_REMEMBERED {
            make_room(&mut remembered);
        }
        remembered.insert(hash, Remembered { asked, caller: caller.clone(), noted });
        caller.iter().for_each(audit::by);
        Ok(caller)
    }

    /// Notes that a key is in use, beside the request: nobody waits for it, and if it fails only a time is missing.
    fn note_use(&self, id: KeyId) {
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            if let Err(error) = store.note_use(&[id]).await {
                tracing::debug!(%error, key_id = id.0, "could not record when the key was last used");
            }
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<KeyHash, Remembered>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets what is stale; if that is not enough, unknown keys; if that is not enough, everything.
fn make_room(remembered: &mut HashMap<KeyHash, Remembered>) {
    remembered.retain(|_, key| key.asked.elapsed() < FRESH);
    if remembered.len() >= MAX_REMEMBERED / 2 {
        remembered.retain(|_, key| key.caller.is_some());
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

/// Proof that the request carries a key with the scope; says whose it is.
pub(crate) struct Allowed<S> {
    pub(crate) caller: Arc<Caller>,
    scope: PhantomData<S>,
}

impl<S: RequiredScope> FromRequestParts<SharedState> for Allowed<S> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &SharedState) -> Result<Self, Problem> {
        let AnyKey(caller) = AnyKey::from_request_parts(parts, state).await?;
        if caller.scopes.contains(S::SCOPE) {
            Ok(Self { caller, scope: PhantomData })
        } else {
            Err(scope_missing(S::SCOPE))
        }
    }
}

/// Proof that the request carries a valid key, whatever its scopes.
pub(crate) struct AnyKey(pub(crate) Arc<Caller>);

impl FromRequestParts<SharedState> for AnyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &SharedState) -> Result<Self, Problem> {
        let key = hash_key(bearer(&parts.headers)?);
        let caller = state.keys.caller(key).await?.ok_or_else(unknown_key)?;
        state.keys.count(key)?;
        Ok(Self(caller))
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
    Problem::new(Kind::NoKey, "this is not a valid API key, or it has expired or been revoked").with_header(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static("Bearer realm=\"hooksaga\", error=\"invalid_token\""),
    )
}

pub(crate) fn scope_missing(scope: Scope) -> Problem {
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
    fn a_bound_key_acts_for_its_tenant_and_names_no_other() {
        let tenant = |name: &str| name.parse::<Tenant>().unwrap();
        let bound = Caller { tenant: Some(tenant("acme")), ..Caller::root() };
        assert_eq!(bound.scope(None).unwrap(), TenantScope::One(tenant("acme")));
        assert_eq!(bound.scope(Some(tenant("acme"))).unwrap(), TenantScope::One(tenant("acme")));
        assert!(bound.scope(Some(tenant("other"))).is_err());
        assert_eq!(bound.owner(None).unwrap(), tenant("acme"));
        assert!(bound.must_be_unbound().is_err());
        let free = Caller::root();
        assert_eq!(free.scope(None).unwrap(), TenantScope::All);
        assert_eq!(free.scope(Some(tenant("acme"))).unwrap(), TenantScope::One(tenant("acme")));
        assert_eq!(free.owner(None).unwrap(), Tenant::default());
        assert!(free.must_be_unbound().is_ok());
    }

    #[test]
    fn the_memory_is_bounded_and_prefers_known_keys() {
        let mut remembered = HashMap::new();
        let asked = Instant::now();
        for number in 0..MAX_REMEMBERED {
            let caller = (number == 0).then(|| Arc::new(Caller::root()));
            remembered.insert(hash_key(&number.to_string()), Remembered { asked, caller, noted: None });
        }
        make_room(&mut remembered);
        assert_eq!(remembered.len(), 1);
        assert!(remembered.contains_key(&hash_key("0")));
    }
}
