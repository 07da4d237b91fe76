//! Whose rows a call may see and change.

use hooksaga_saga::Tenant;

/// The confinement of a call to one tenant's rows. Every method that reads or changes a tenant's data takes one, so
/// that the compiler asks for it: a caller cannot forget whom it acts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TenantScope {
    /// Every tenant's rows.
    All,
    /// This tenant's rows only. Rows of others do not exist: they are not found, listed, counted or changed.
    One(Tenant),
}

impl TenantScope {
    /// The tenant, where there is just one.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::One(tenant) => Some(tenant.as_str()),
        }
    }

    /// Whether rows of this tenant are visible.
    pub fn includes(&self, tenant: &str) -> bool {
        self.tenant().is_none_or(|one| one == tenant)
    }
}
