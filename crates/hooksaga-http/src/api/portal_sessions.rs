//! Portal sessions: a link for one customer, with a key that is bound to its tenant and expires.

use crate::{
    audit,
    auth::{Admin, Allowed, generate_key, hash_key},
    body::{SMALL, Unread},
    dashboard::now,
    dto::{PortalSession, PortalSessionRequest},
    errors::{FieldErrors, complete},
    json::Object,
    openapi::{BodyProblems, KeyProblems},
    problem::{Kind, Problem},
    query::NoParams,
    state::SharedState,
};
use axum::{Json, extract::State};
use hooksaga_saga::Timestamp;
use hooksaga_store::{NewPortalKey, PORTAL_SESSION, Scope, Scopes};
use http::StatusCode;
use std::time::Duration;

/// Open a portal session
///
/// Returns a link to the customer's view of one tenant. The token in it is a key with the scopes read, admin and operator
/// that is bound to the tenant, expires, at the latest with the key that opens the session, and cannot open further ones.
#[utoipa::path(
    post, path = "/v1/portal-sessions", tag = "keys", operation_id = "create_portal_session",
    security(("key" = ["admin"])),
    request_body = PortalSessionRequest,
    responses(
        (status = 201, description = "The session", body = PortalSession),
        BodyProblems, KeyProblems
    )
)]
pub(crate) async fn create(
    Allowed { caller, .. }: Allowed<Admin>,
    State(state): State<SharedState>,
    _: NoParams,
    body: Unread,
) -> Result<(StatusCode, Json<PortalSession>), Problem> {
    if caller.tenant.is_some() && caller.expires_at.is_some() {
        // It could outlive itself.
        return Err(Problem::new(
            Kind::NotForThisKey,
            "a key that is bound to a tenant and expires, such as a portal session's, cannot open further sessions",
        ));
    }
    let scopes: Scopes = [Scope::Read, Scope::Admin, Scope::Operator].into_iter().collect();
    if let (Some(_), Some(missing)) =
        (&caller.tenant, scopes.iter().find(|scope| !caller.scopes.contains(*scope)))
    {
        return Err(Problem::new(
            Kind::NotForThisKey,
            format!("a key that is bound to a tenant needs the scopes of the session, and lacks {missing}"),
        ));
    }
    let body = body.json(SMALL, &state.bodies).await?;
    let mut errors = FieldErrors::default();
    let request =
        PortalSessionRequest::read(Object::from_body(&body.bytes)?, caller.tenant.is_some(), &mut errors);
    let request = complete(errors, request)?;
    let tenant = caller.owner(request.tenant)?;
    let ttl = within(request.ttl, caller.expires_at, now()).ok_or_else(|| {
        Problem::new(
            Kind::NotForThisKey,
            "this key expires now, and no session outlives the key that opened it",
        )
    })?;
    let token = generate_key();
    let key = NewPortalKey {
        name: PORTAL_SESSION.to_owned(),
        scopes,
        sha256: hash_key(&token),
        tenant: tenant.clone(),
        expires_in: ttl,
    };
    let key = state.portal_keys.create(&key).await?;
    audit::about(format!("keys/{}", key.id), tenant.as_str());
    tracing::info!(key_id = key.id.0, tenant = tenant.as_str(), "portal session opened");
    let session = PortalSession {
        url: format!("{}/portal#token={token}", state.public_url),
        token,
        expires_at: key.expires_at.map(Into::into),
    };
    Ok((StatusCode::CREATED, Json(session)))
}

/// How long a session of this length is valid that ends with its opener's key at the latest; `None` if that has ended.
fn within(ttl: Duration, key_expires_at: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    let Some(end) = key_expires_at else { return Some(ttl) };
    Some(ttl.min(end.since(now))).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_session_outlives_the_key_that_opened_it() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
        assert_eq!(within(hour, None, at(100)), Some(hour));
        assert_eq!(within(hour, Some(at(10_000)), at(100)), Some(hour));
        assert_eq!(within(hour, Some(at(160)), at(100)), Some(minute));
        assert_eq!(within(hour, Some(at(100)), at(100)), None);
        assert_eq!(within(hour, Some(at(50)), at(100)), None);
    }
}
