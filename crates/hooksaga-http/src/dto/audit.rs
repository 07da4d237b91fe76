//! Audit records.

use crate::{
    errors::FieldErrors,
    query::Params,
    time::{self, ApiTime},
};
use hooksaga_saga::{AuditAction, Timestamp};
use hooksaga_store::{AuditFilter, AuditRecord};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

/// Who did what.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditItem {
    id: i64,
    at: ApiTime,
    /// The key that was used; null for the root key and for the command line.
    #[schema(required)]
    key_id: Option<i64>,
    key_name: String,
    #[schema(example = "subscription.create")]
    action: String,
    #[schema(example = "subscriptions/17")]
    target: String,
    /// Whose it is, if it is one tenant's and that is known.
    #[schema(required)]
    tenant: Option<String>,
}

impl From<AuditRecord> for AuditItem {
    fn from(record: AuditRecord) -> Self {
        Self {
            id: record.id,
            at: record.at.into(),
            key_id: record.key_id.map(|id| id.0),
            key_name: record.key_name,
            action: record.action,
            target: record.target,
            tenant: record.tenant,
        }
    }
}

/// Which audit records; all of what is given must hold.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    #[param(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^[!-~]+$")]
    action: Option<AuditAction>,
    /// At this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    created_after: Option<Timestamp>,
    /// Before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    created_before: Option<Timestamp>,
}

impl AuditQuery {
    pub(crate) fn read(params: &mut Params, errors: &mut FieldErrors) -> Self {
        Self {
            action: params.parsed("action", errors),
            created_after: params.take("created_after", errors, |text| time::parse(&text)),
            created_before: params.take("created_before", errors, |text| time::parse(&text)),
        }
    }
}

impl From<AuditQuery> for AuditFilter {
    fn from(query: AuditQuery) -> Self {
        Self {
            action: query.action,
            target: None,
            created_after: query.created_after,
            created_before: query.created_before,
        }
    }
}
