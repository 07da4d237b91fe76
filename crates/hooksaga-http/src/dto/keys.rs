//! Keys and portal sessions.

use crate::{
    auth::Caller,
    errors::FieldErrors,
    json::{self, Object},
    time::ApiTime,
    validate,
};
use hooksaga_saga::Tenant;
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// The key that a request carries.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MeView {
    name: String,
    #[schema(example = json!(["ingest", "read"]))]
    scopes: Vec<&'static str>,
    /// The only tenant that the key may see and change; null if it is bound to none.
    #[schema(required)]
    tenant: Option<String>,
    #[schema(required)]
    expires_at: Option<ApiTime>,
}

impl From<&Caller> for MeView {
    fn from(caller: &Caller) -> Self {
        Self {
            name: caller.name.clone(),
            scopes: caller.scopes.iter().map(|scope| scope.as_str()).collect(),
            tenant: caller.tenant.as_ref().map(ToString::to_string),
            expires_at: caller.expires_at.map(ApiTime::from),
        }
    }
}

/// A portal session to open.
#[derive(Debug, ToSchema)]
pub(crate) struct PortalSessionRequest {
    /// A key that is bound to a tenant may leave it out: it is the key's own.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$")]
    pub(crate) tenant: Option<Tenant>,
    /// How long it is valid: `1m` to `24h`.
    #[schema(value_type = Option<String>, default = "1h", pattern = "^(([1-9][0-9]{0,2}|1[0-3][0-9]{2}|14[0-3][0-9]|1440)m|([1-9]|1[0-9]|2[0-4])h|1d)$")]
    pub(crate) ttl: Duration,
}

impl PortalSessionRequest {
    const DEFAULT_TTL: Duration = Duration::from_secs(3600);

    pub(crate) fn read(mut object: Object<'_>, bound: bool, errors: &mut FieldErrors) -> Option<Self> {
        let tenant = if bound {
            object.optional("tenant", errors, validate::writable_tenant)
        } else {
            object.required("tenant", errors, validate::writable_tenant)
        };
        let ttl = object.optional("ttl", errors, |value| {
            json::string(value).and_then(|text| validate::session_ttl(&text))
        });
        object.finish(errors);
        Some(Self { tenant, ttl: ttl.unwrap_or(Self::DEFAULT_TTL) })
    }
}

/// An open portal session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PortalSession {
    /// Give it to the customer: the page takes the token from the fragment, which is not sent to any server.
    #[schema(example = "https://hooks.example.com/portal#token=hsk_…")]
    pub(crate) url: String,
    pub(crate) token: String,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) expires_at: Option<ApiTime>,
}
