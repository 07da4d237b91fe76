//! Portal sessions: a link for one customer, with a key that is bound to its tenant and expires.

use crate::{
    audit,
    auth::{Admin, Allowed, generate_key, hash_key},
    body::{SMALL, Unread},
    dto::{PortalSession, PortalSessionRequest},
    errors::{FieldErrors, complete},
    json::Object,
    openapi::{BodyProblems, KeyProblems},
    problem::{Kind, Problem},
    query::NoParams,
    state::SharedState,
};
use axum::{Json, extract::State};
use hooksaga_store::{NewApiKey, Scope, Scopes};
use http::StatusCode;

/// The name of a session's key.
const KEY_NAME: &str = "portal session";

/// Open a portal session
///
/// Returns a link to the customer's view of one tenant. The token in it is a key with the scopes read, admin and operator
/// that is bound to the tenant, expires, and cannot open further sessions.
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
    let request = PortalSessionRequest::read(Object::from_body(&body.bytes)?, &mut errors);
    let request = complete(errors, request)?;
    let tenant = caller.owner(Some(request.tenant))?;
    let token = generate_key();
    let key = NewApiKey {
        name: KEY_NAME.to_owned(),
        scopes,
        sha256: hash_key(&token),
        tenant: Some(tenant.clone()),
        expires_in: Some(request.ttl),
    };
    let key = state.key_admin.create(&key).await?;
    audit::about(format!("keys/{}", key.id), tenant.as_str());
    tracing::info!(key_id = key.id.0, tenant = tenant.as_str(), "portal session opened");
    let session = PortalSession {
        url: format!("{}/portal#token={token}", state.public_url),
        token,
        expires_at: key.expires_at.map(Into::into),
    };
    Ok((StatusCode::CREATED, Json(session)))
}
