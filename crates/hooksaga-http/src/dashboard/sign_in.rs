//! Sign-in and sign-out: an API key, or a portal session's token, is exchanged for a cookie.

use super::{PageResult, Site, form::SignInForm, layout, parts, session};
use crate::{
    auth::{MAX_KEY_LENGTH, hash_key},
    state::{ApiState, SharedState},
};
use axum::{
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use hooksaga_pipeline::LogThrottle;
use http::{HeaderMap, StatusCode, Uri, header};
use maud::html;
use std::time::{Duration, Instant};

/// Sign-ins with a key that is not valid or may not enter. The metrics count them by their status.
static REFUSED: LogThrottle = LogThrottle::new(Duration::from_secs(5));

/// Shows the form, or leads on whoever is signed in already.
pub(super) async fn show(State(state): State<SharedState>, uri: Uri, headers: HeaderMap) -> PageResult {
    let site = Site::of(uri.path());
    let next = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .find(|(name, _)| name == "next")
        .map(|(_, next)| next.into_owned())
        .unwrap_or_default();
    let next = site.local(&next);
    if session::caller(&state, site, &headers).await?.is_some() {
        return Ok(Redirect::to(next).into_response());
    }
    let ended = session::is_remembered(&state, site, &headers).then(|| has_ended(site));
    Ok(page(&state, site, next, ended))
}

pub(super) async fn sign_in(
    State(state): State<SharedState>,
    uri: Uri,
    SignInForm(form): SignInForm,
) -> PageResult {
    let site = Site::of(uri.path());
    let next = site.local(form.get("next"));
    let key = form.get("key");
    let refused = |status: StatusCode, why: &str| {
        if let Some(unlogged) = REFUSED.is_due(Instant::now()) {
            tracing::warn!(?site, status = status.as_u16(), unlogged, "a sign-in was refused");
        }
        Ok((status, page(&state, site, next, Some(why))).into_response())
    };
    if key.is_empty() || key.len() > MAX_KEY_LENGTH {
        return refused(StatusCode::UNAUTHORIZED, unknown(site));
    }
    let hash = hash_key(key);
    let Some(caller) = state.keys.caller(hash).await? else {
        return refused(StatusCode::UNAUTHORIZED, unknown(site));
    };
    state.keys.count(hash)?;
    if let Err(why) = session::may_enter(site, &caller) {
        return refused(StatusCode::FORBIDDEN, why);
    }
    tracing::info!(key_id = caller.key_id.map(|id| id.0), key = caller.name, ?site, "signed in");
    let cookie = [(header::SET_COOKIE, session::begin(&state, site, hash))];
    Ok((cookie, Redirect::to(next)).into_response())
}

pub(super) async fn sign_out(State(state): State<SharedState>, uri: Uri) -> Response {
    let site = Site::of(uri.path());
    let cookie = [(header::SET_COOKIE, session::end(&state, site))];
    (cookie, Redirect::to(&site.path("/sign-in"))).into_response()
}

const fn unknown(site: Site) -> &'static str {
    match site {
        Site::Dashboard => "This is not a valid API key, or it has expired or been revoked.",
        Site::Portal => "This link is not valid, or it has expired. Ask for a new one.",
    }
}

const fn has_ended(site: Site) -> &'static str {
    match site {
        Site::Dashboard => {
            "Your session has ended: its key has expired or been revoked, or you signed in a week ago."
        }
        Site::Portal => "Your session has ended. Ask for a new link.",
    }
}

fn page(state: &ApiState, site: Site, next: &str, refused: Option<&str>) -> Response {
    let (title, label, hint) = match site {
        Site::Dashboard => ("Sign in", "API key", "hsk_…"),
        Site::Portal => ("Open your webhooks", "Token", "The part of your link after #token="),
    };
    let body = html! {
        div.card.sign-in {
            h1 { (title) }
            @if let Some(why) = refused { (parts::alert(why)) }
            form method="post" action=(site.path("/sign-in")) {
                input type="hidden" name="next" value=(next);
                label { span { (label) }
                    input type="password" name="key" required maxlength=(MAX_KEY_LENGTH) placeholder=(hint) autocomplete="current-password" autofocus spellcheck="false";
                }
                button { "Sign in" }
            }
            @match site {
                Site::Dashboard => {
                    p.quiet { "A key with the scope " code { "read" } " sees, " code { "admin" } " configures, " code { "operator" } " sends again. This makes one:" }
                    (parts::copy_line("hooksaga keys create --name me --scopes read,admin,operator"))
                    p.quiet { "With the embedded database, the first start writes a key with every scope to " code { "root.key" } ", beside the database file." }
                    p.quiet { "The browser does not keep the key: it gets a cookie, which ends with the key." }
                }
                Site::Portal => p.quiet { "Open the link that you were given: it signs you in by itself." },
            }
        }
    };
    layout::bare(state, site, title, &body)
}
