//! Audit records: every request that changes something leaves one, on any route.
//!
//! A layer around the routes of the API and of the dashboard writes it, after the action and before the response: so no
//! handler can forget it. Failed requests leave none. A route that is not in [`ACTIONS`] is recorded under its method
//! and path. The request runs as a task of its own: one that has begun is finished and recorded, whether or not its
//! client waits for it.
//!
//! An action that is done cannot be undone because its record fails. Then the whole record goes to the log, as an error:
//! nothing is lost silently. Posting an event leaves no record, since the event itself is stored: its routes are outside
//! the layer.

use crate::{
    auth::Caller,
    problem::{Kind, Problem},
    state::SharedState,
};
use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use hooksaga_saga::Tenant;
use hooksaga_store::{NewAuditRecord, TenantScope};
use http::{Method, header};
use std::{cell::RefCell, sync::Arc};

/// The routes that change something, and what that is called. The portal's are those of the dashboard.
const ACTIONS: &[(Method, &str, &str)] = &[
    (Method::POST, "/v1/subscriptions", "subscription.create"),
    (Method::PATCH, "/v1/subscriptions/{id}", "subscription.change"),
    (Method::DELETE, "/v1/subscriptions/{id}", "subscription.delete"),
    (Method::POST, "/v1/subscriptions/{id}/verify", "subscription.verify"),
    (Method::POST, "/v1/subscriptions/{id}/test", "subscription.test"),
    (Method::POST, "/v1/subscriptions/{id}/rotate-secret", "subscription.rotate_secret"),
    (Method::POST, "/v1/deliveries/{saga_id}/resend", "delivery.resend"),
    (Method::POST, "/v1/dead-letters/requeue", "dead_letters.requeue"),
    (Method::POST, "/v1/dead-letters/{id}/requeue", "dead_letter.requeue"),
    (Method::POST, "/v1/redrives", "redrive.start"),
    (Method::POST, "/v1/redrives/{id}/cancel", "redrive.cancel"),
    (Method::POST, "/v1/portal-sessions", "portal_session.create"),
    (Method::POST, "/sign-in", "sign_in"),
    (Method::POST, "/subscriptions/new", "subscription.create"),
    (Method::POST, "/subscriptions/{id}/edit", "subscription.change"),
    (Method::POST, "/subscriptions/{id}/active", "subscription.change"),
    (Method::POST, "/subscriptions/{id}/verify", "subscription.verify"),
    (Method::POST, "/subscriptions/{id}/rotate-secret", "subscription.rotate_secret"),
    (Method::POST, "/subscriptions/{id}/test", "subscription.test"),
    (Method::POST, "/subscriptions/{id}/delete", "subscription.delete"),
    (Method::POST, "/keys/{id}/revoke", "key.revoke"),
    (Method::POST, "/deliveries/{saga_id}/resend", "delivery.resend"),
    (Method::POST, "/dead-letters/requeue", "dead_letters.requeue"),
    (Method::POST, "/redrives", "redrive.start"),
    (Method::POST, "/redrives/{id}/cancel", "redrive.cancel"),
];

/// Ends a session, which is no action.
const NO_ACTION: &str = "/sign-out";

/// The longest that the database stores.
const MAX_ACTION: usize = 100;
const MAX_TARGET: usize = 200;

tokio::task_local! {
    /// What is known of the action that this task is about.
    static UNDER_WAY: RefCell<Noted>;
}

#[derive(Default)]
struct Noted {
    by: Option<Arc<Caller>>,
    target: Option<String>,
    tenant: Option<Tenant>,
    changed_nothing: bool,
    /// What was done so far, each with a record of its own.
    done: Vec<String>,
}

/// Notes who acts.
pub(crate) fn by(caller: &Arc<Caller>) {
    note(|noted| noted.by = Some(Arc::clone(caller)));
}

/// Notes what the action is about, where the path does not say it, and whose it is.
pub(crate) fn about(target: String, tenant: &str) {
    note(|noted| {
        noted.target = Some(target);
        noted.tenant = tenant.parse().ok();
    });
}

/// Notes whose rows the action is about.
pub(crate) fn whose(scope: &TenantScope) {
    note(|noted| noted.tenant = scope.tenant().and_then(|tenant| tenant.parse().ok()));
}

/// Notes what the action is about, where the path does not say it.
pub(crate) fn named(target: String) {
    note(|noted| noted.target = Some(target));
}

/// Notes one of several things that a request does, each to this target. It is recorded even if what follows fails.
pub(crate) fn done(target: String) {
    note(|noted| noted.done.push(target));
}

/// Notes that the request, although it succeeds, changes nothing.
pub(crate) fn changed_nothing() {
    note(|noted| noted.changed_nothing = true);
}

fn note(change: impl FnOnce(&mut Noted)) {
    // Requests that change nothing have nothing to note.
    let _ = UNDER_WAY.try_with(|noted| change(&mut noted.borrow_mut()));
}

/// The layer.
pub(crate) async fn audit(State(state): State<SharedState>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let Some(action) = route.and_then(|route| action(request.method(), &route)) else {
        return next.run(request).await;
    };
    let path = request.uri().path().to_owned();
    let work = UNDER_WAY.scope(RefCell::default(), async move {
        let response = next.run(request).await;
        let noted = UNDER_WAY.with(RefCell::take);
        let succeeded = response.status().is_success() || response.status().is_redirection();
        if let Some(caller) =
            noted.by.filter(|_| !noted.done.is_empty() || succeeded && !noted.changed_nothing)
        {
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let made = location.filter(|_| response.status() == http::StatusCode::CREATED);
            let whole = || match target(&path) {
                // What was made, where the path does not name what it was done to.
                kind if !kind.contains('/') => made.map_or(kind, target),
                known => known,
            };
            let targets = match noted.done.is_empty() {
                true => vec![noted.target.unwrap_or_else(whole)],
                false => noted.done,
            };
            for target in targets {
                write(&state, &caller, action.clone(), target, noted.tenant.clone()).await;
            }
        }
        response
    });
    tokio::spawn(work).await.unwrap_or_else(|_| {
        Problem::new(Kind::Internal, "the server could not do this; its log has the reason").into_response()
    })
}

async fn write(state: &SharedState, caller: &Caller, action: String, target: String, tenant: Option<Tenant>) {
    let record = NewAuditRecord {
        key_id: caller.key_id,
        key_name: caller.name.chars().take(MAX_ACTION).collect(),
        action,
        target: target.chars().take(MAX_TARGET).collect(),
        tenant: caller.tenant.clone().or(tenant),
    };
    if let Err(error) = state.portal_keys.record(&record).await {
        let NewAuditRecord { key_id, key_name, action, target, tenant } = record;
        tracing::error!(
            %error, key_id = key_id.map(|id| id.0), key_name, action, target,
            tenant = tenant.as_ref().map(Tenant::as_str),
            "an action was done, but its audit record could not be stored"
        );
    }
}

/// What a request to this route does; `None` if it changes nothing.
fn action(method: &Method, route: &str) -> Option<String> {
    let own = route.strip_prefix("/portal").filter(|rest| rest.starts_with('/')).unwrap_or(route);
    if method.is_safe() || own == NO_ACTION {
        return None;
    }
    let named = ACTIONS.iter().find(|(known, path, _)| known == method && *path == own);
    let name = named.map(|(_, _, name)| (*name).to_owned());
    Some(name.unwrap_or_else(|| format!("{method} {route}").chars().take(MAX_ACTION).collect()))
}

/// What a path is about: `subscriptions/17` of `/v1/subscriptions/17/verify`.
fn target(path: &str) -> String {
    let segments = path.trim_start_matches("/v1").trim_start_matches("/portal").split('/');
    let mut segments = segments.filter(|segment| !segment.is_empty());
    let kind = segments.next().unwrap_or_default();
    match segments.next().filter(|id| id.bytes().all(|byte| byte.is_ascii_digit())) {
        Some(id) => format!("{kind}/{id}"),
        None => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_something_has_an_action_and_a_target() {
        let named = |method: Method, route: &str| action(&method, route);
        assert_eq!(named(Method::GET, "/v1/subscriptions"), None);
        assert_eq!(named(Method::POST, "/portal/sign-out"), None);
        assert_eq!(named(Method::POST, "/v1/subscriptions").as_deref(), Some("subscription.create"));
        assert_eq!(named(Method::POST, "/portal/subscriptions/new").as_deref(), Some("subscription.create"));
        assert_eq!(named(Method::PUT, "/v1/new/{id}").as_deref(), Some("PUT /v1/new/{id}"));
        for (path, expected) in [
            ("/v1/subscriptions/17/verify", "subscriptions/17"),
            ("/v1/dead-letters/requeue", "dead-letters"),
            ("/portal/subscriptions/3/edit", "subscriptions/3"),
            ("/sign-in", "sign-in"),
            ("/", ""),
        ] {
            assert_eq!(target(path), expected, "{path}");
        }
    }
}
