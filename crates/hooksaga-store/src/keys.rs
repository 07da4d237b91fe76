//! `key_admin` creates and revokes API keys, and records who did what; `portal_key_writer` does so for the API, and creates
//! only the keys of portal sessions, which have a tenant and an end; `key_reader` looks them up. Only their SHA-256 is
//! stored.

use crate::{NewAuditRecord, Page, PageRequest, StoreResult};
use async_trait::async_trait;
use hooksaga_saga::{KeyId, Tenant, Timestamp};
use std::{fmt, str::FromStr, time::Duration};

/// What a key may be used for. None implies another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    Ingest,
    Admin,
    Operator,
    Read,
}

impl Scope {
    pub const ALL: &'static [Self] = &[Self::Ingest, Self::Admin, Self::Operator, Self::Read];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Read => "read",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of scopes; as text, comma-separated: `ingest,read`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope.
    pub fn all() -> Self {
        Scope::ALL.iter().copied().collect()
    }

    pub fn contains(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.iter().copied().filter(move |scope| self.contains(*scope))
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | 1 << scope as u8))
    }
}

impl FromStr for Scopes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(str::trim)
            .map(|name| {
                Scope::ALL.iter().copied().find(|scope| scope.as_str() == name).ok_or_else(|| {
                    format!("there is no scope {name:?}; the scopes are ingest, admin, operator and read")
                })
            })
            .collect()
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, scope) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(scope.as_str())?;
        }
        Ok(())
    }
}

/// A key to store.
#[derive(Clone, Debug)]
pub struct NewApiKey {
    pub name: String,
    pub scopes: Scopes,
    pub sha256: [u8; 32],
    /// Bound to this tenant: the key sees and changes nothing else.
    pub tenant: Option<Tenant>,
    /// How long it is valid from now on; `None` means forever.
    pub expires_in: Option<Duration>,
}

/// The key of a portal session to store: always bound to a tenant, and never without an end.
#[derive(Clone, Debug)]
pub struct NewPortalKey {
    pub name: String,
    pub scopes: Scopes,
    pub sha256: [u8; 32],
    pub tenant: Tenant,
    pub expires_in: Duration,
}

impl From<NewPortalKey> for NewApiKey {
    fn from(key: NewPortalKey) -> Self {
        let NewPortalKey { name, scopes, sha256, tenant, expires_in } = key;
        Self { name, scopes, sha256, tenant: Some(tenant), expires_in: Some(expires_in) }
    }
}

/// A stored key, without anything that could be used as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    pub id: KeyId,
    pub name: String,
    pub scopes: Scopes,
    pub tenant: Option<Tenant>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// To the minute.
    pub last_used_at: Option<Timestamp>,
}

/// The name of every portal session's key.
pub const PORTAL_SESSION: &str = "portal session";

/// Which keys a list shows. A portal session's is one with the name [`PORTAL_SESSION`], a tenant and an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyView {
    /// Valid ones, without those of portal sessions, of which there can be very many.
    Issued,
    /// Valid ones of portal sessions.
    PortalSessions,
    /// Those that were revoked or have expired, of any kind.
    Ended,
}

impl KeyView {
    /// Whether it shows the keys that are valid by the database's clock, or the others.
    pub const fn valid(self) -> bool {
        !matches!(self, Self::Ended)
    }

    /// Whether it shows the keys of portal sessions, or the others; `None` if both.
    pub const fn of_portal(self) -> Option<bool> {
        match self {
            Self::Issued => Some(false),
            Self::PortalSessions => Some(true),
            Self::Ended => None,
        }
    }
}

/// What the command line and the API both do with keys.
#[async_trait]
pub trait KeyCareStore: Send + Sync {
    /// Revokes a key; again is a no-op. `None` if there is no such key.
    async fn revoke(&self, id: KeyId) -> StoreResult<Option<ApiKey>>;

    /// Adds an audit record.
    async fn record(&self, record: &NewAuditRecord) -> StoreResult<()>;
}

/// What the command line does with keys.
#[async_trait]
pub trait KeyStore: KeyCareStore {
    async fn create(&self, key: &NewApiKey) -> StoreResult<ApiKey>;

    /// Every key, revoked ones too, oldest first.
    async fn list(&self) -> StoreResult<Vec<ApiKey>>;
}

/// What the API does with keys.
///
/// Keys are the server's own data, not a tenant's, also those that are bound to one: no method takes a
/// [`TenantScope`](crate::TenantScope). So a caller asks for these only for a key that is bound to no tenant, and bound
/// keys get 403 (the test `keys_are_seen_and_revoked_by_those_who_administer_the_whole_server`). A session of the portal
/// gets a new key of its tenant, which `create` is told.
#[async_trait]
pub trait PortalKeyStore: KeyCareStore {
    async fn create(&self, key: &NewPortalKey) -> StoreResult<ApiKey>;

    /// A page of these keys, newest first.
    async fn newest(&self, view: KeyView, page: PageRequest) -> StoreResult<Page<ApiKey>>;
}

#[async_trait]
pub trait KeyReaderStore: Send + Sync {
    /// The key with this hash, unless it is revoked or, by the database's clock, expired.
    async fn find(&self, sha256: &[u8; 32]) -> StoreResult<Option<ApiKey>>;

    /// Notes that these keys were used just now. The caller does so once a minute per key at most.
    async fn note_use(&self, ids: &[KeyId]) -> StoreResult<()>;
}
