//! Audit records: who did what, and when. They are only ever added.

use hooksaga_saga::{AuditAction, KeyId, Tenant, Timestamp};

/// What somebody has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAuditRecord {
    /// The key that was used; `None` for the root key and for the command line.
    pub key_id: Option<KeyId>,
    /// Its name, at most 100 characters.
    pub key_name: String,
    /// Such as `subscription.create`: at most 100 visible ASCII characters and blanks.
    pub action: String,
    /// What it was done to, such as `subscriptions/17`: at most 200 of them.
    pub target: String,
    /// Whose it is, if it is one tenant's and that is known.
    pub tenant: Option<Tenant>,
}

/// A stored record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    pub id: i64,
    /// By the database's clock.
    pub at: Timestamp,
    pub key_id: Option<KeyId>,
    pub key_name: String,
    pub action: String,
    pub target: String,
    pub tenant: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub action: Option<AuditAction>,
    /// Exactly this, which only the program itself asks for.
    pub target: Option<String>,
    /// At or after.
    pub created_after: Option<Timestamp>,
    /// Before.
    pub created_before: Option<Timestamp>,
}
