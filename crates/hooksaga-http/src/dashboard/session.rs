//! Sessions: a cookie that stands for an API key.
//!
//! The cookie holds the key's hash and when the session began, sealed with the server's secret key: every copy of the
//! server can read it, nobody else can, and nothing is kept. Each request looks the key up as if it had been sent, so that a
//! session ends with its key, within the same 5 seconds. A session ends by itself after [`LONGEST`].

use super::{PageError, Site, page_layer, words::Audience};
use crate::{
    auth::{Caller, KeyHash, scope_missing},
    problem::Problem,
    state::{ApiState, SharedState},
};
use axum::{extract::FromRequestParts, response::Response};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use hooksaga_saga::{Tenant, Timestamp};
use hooksaga_store::{Scope, TenantScope};
use http::{HeaderMap, HeaderValue, header, request::Parts};
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Clocks of several copies differ a little.
const AHEAD: Duration = Duration::from_secs(300);

/// A longer one is none of ours.
const MAX_COOKIE: usize = 200;

/// The header with which the script asks for the part of a page that changes.
const PART: &str = "x-hooksaga-part";

impl Site {
    /// Bound into the sealed value: a cookie of one site is none of the other.
    const fn context(self) -> &'static [u8] {
        match self {
            Self::Dashboard => b"hooksaga dashboard session v1",
            Self::Portal => b"hooksaga portal session v1",
        }
    }

    /// The cookie's name. Where there is TLS, browsers let no other host of the domain set it.
    const fn cookie(self, secure: bool) -> &'static str {
        match (self, secure) {
            (Self::Dashboard, false) => "hooksaga_session",
            (Self::Dashboard, true) => "__Host-hooksaga_session",
            (Self::Portal, false) => "hooksaga_portal",
            (Self::Portal, true) => "__Host-hooksaga_portal",
        }
    }
}

/// The time of this server's clock.
pub(crate) fn now() -> Timestamp {
    #[expect(
        clippy::disallowed_methods,
        reason = "only the end of a session and the look of times depend on it"
    )]
    let now = SystemTime::now();
    let micros = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

/// Whether browsers reach this server by TLS: its own, or that of a proxy in front of it.
fn is_secure(state: &ApiState) -> bool {
    state.tls || state.public_url.starts_with("https://")
}

/// The cookie that begins a session.
pub(super) fn begin(state: &ApiState, site: Site, key: KeyHash) -> HeaderValue {
    let value = [&now().as_micros().to_be_bytes()[..], &key].concat();
    let sealed = BASE64_URL_SAFE_NO_PAD.encode(state.secret_key.seal_as(site.context(), &value));
    set_cookie(state, site, &sealed, "")
}

/// The cookie that ends one.
pub(super) fn end(state: &ApiState, site: Site) -> HeaderValue {
    set_cookie(state, site, "", "; Max-Age=0")
}

fn set_cookie(state: &ApiState, site: Site, value: &str, more: &str) -> HeaderValue {
    let secure = is_secure(state);
    // In a frame of another site a strict cookie would never be sent. There it is kept apart per embedding site, and posts
    // are guarded by their origin.
    let embedded = site == Site::Portal && secure && state.look.may_be_embedded();
    let rules = match (embedded, secure) {
        (true, _) => "SameSite=None; Secure; Partitioned",
        (false, true) => "SameSite=Strict; Secure",
        (false, false) => "SameSite=Strict",
    };
    let text = format!("{}={value}; Path=/; HttpOnly; {rules}{more}", site.cookie(secure));
    HeaderValue::try_from(text).expect("base64 and names are visible ASCII")
}

/// The sealed value of a site's cookie.
fn cookie<'a>(state: &ApiState, site: Site, headers: &'a HeaderMap) -> Option<&'a str> {
    let name = site.cookie(is_secure(state));
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, value)| *known == name && value.len() <= MAX_COOKIE).map(|(_, value)| value)
}

/// The key of a session that has not ended by its age.
fn key_of(state: &ApiState, site: Site, headers: &HeaderMap) -> Option<KeyHash> {
    let sealed = BASE64_URL_SAFE_NO_PAD.decode(cookie(state, site, headers)?).ok()?;
    let opened = state.secret_key.open_as(site.context(), &sealed)?;
    let (began, key) = opened.split_first_chunk::<8>()?;
    let (began, now) = (Timestamp::from_micros(i64::from_be_bytes(*began)), now());
    let valid = now <= began.after(LONGEST) && began <= now.after(AHEAD);
    valid.then(|| key.try_into().ok()).flatten()
}

/// Whose session this is; `None` if there is none or its key is no longer valid.
pub(super) async fn caller(
    state: &ApiState,
    site: Site,
    headers: &HeaderMap,
) -> Result<Option<Arc<Caller>>, Problem> {
    let Some(key) = key_of(state, site, headers) else { return Ok(None) };
    let Some(caller) = state.keys.caller(key).await? else { return Ok(None) };
    state.keys.count(key)?;
    Ok(may_enter(site, &caller).is_ok().then_some(caller))
}

/// Who asked for a page that could not be shown. The request was counted before.
pub(super) async fn visitor(state: &ApiState, site: Site, headers: &HeaderMap) -> Option<Visitor> {
    let caller = state.keys.caller(key_of(state, site, headers)?).await.ok()??;
    may_enter(site, &caller).ok()?;
    Some(Visitor { site, caller, now: now(), part_only: false })
}

/// Whether the browser has a cookie of this site, though it may stand for nobody any more.
pub(super) fn is_remembered(state: &ApiState, site: Site, headers: &HeaderMap) -> bool {
    cookie(state, site, headers).is_some()
}

/// Whether a key's owner may use the site, or why not.
pub(super) fn may_enter(site: Site, caller: &Caller) -> Result<(), &'static str> {
    if !caller.scopes.contains(Scope::Read) {
        return Err("This key is valid but lacks the scope read, which every page needs.");
    }
    if site == Site::Portal && caller.tenant.is_none() {
        return Err(
            "This key is bound to no tenant. The portal shows one tenant: use the dashboard at / instead.",
        );
    }
    Ok(())
}

/// Who looks at a page.
pub(super) struct Visitor {
    pub(super) site: Site,
    pub(super) caller: Arc<Caller>,
    /// When the request came, for times that are shown relative to it.
    pub(super) now: Timestamp,
    /// Only the part of the page that changes is wanted.
    pub(super) part_only: bool,
}

impl Visitor {
    pub(super) fn path(&self, path: &str) -> String {
        self.site.path(path)
    }

    /// Whose rows it may see.
    pub(super) fn scope(&self) -> TenantScope {
        self.caller.tenant.clone().map_or(TenantScope::All, TenantScope::One)
    }

    pub(super) fn tenant(&self) -> Option<&Tenant> {
        self.caller.tenant.as_ref()
    }

    pub(super) fn audience(&self) -> Audience {
        if self.tenant().is_some() { Audience::Customers } else { Audience::Operators }
    }

    pub(super) fn may(&self, scope: Scope) -> bool {
        self.caller.scopes.contains(scope)
    }

    /// Refuses what the key has no scope for.
    pub(super) fn needs(&self, scope: Scope) -> Result<(), Problem> {
        if self.may(scope) { Ok(()) } else { Err(scope_missing(scope)) }
    }
}

/// Why a page is not shown: nobody is signed in, or something failed.
pub(super) enum Turned {
    ToSignIn(Response),
    Failed(PageError),
}

impl axum::response::IntoResponse for Turned {
    fn into_response(self) -> Response {
        match self {
            Self::ToSignIn(response) => response,
            Self::Failed(failure) => failure.into_response(),
        }
    }
}

impl FromRequestParts<SharedState> for Visitor {
    type Rejection = Turned;

    async fn from_request_parts(parts: &mut Parts, state: &SharedState) -> Result<Self, Turned> {
        let site = Site::of(parts.uri.path());
        let failed = |problem: Problem| Turned::Failed(problem.into());
        match caller(state, site, &parts.headers).await.map_err(failed)? {
            Some(caller) => {
                let part_only = parts.headers.contains_key(PART);
                Ok(Self { site, caller, now: now(), part_only })
            }
            None => Err(Turned::ToSignIn(page_layer::to_sign_in(site, parts))),
        }
    }
}
