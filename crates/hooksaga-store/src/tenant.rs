//! Whose rows a call may see and change.

use hooksaga_saga::{ErrorCode, Tenant};

/// What a tenant sees in the place of [`ErrorCode::BLOCKED_ADDRESS`].
static SHOWN_FOR_BLOCKED: ErrorCode = ErrorCode::DNS_FAILED;

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

    /// The error code that a stored one is shown as. To one tenant, a blocked address looks like a name that does not
    /// resolve: told apart, they would say which names exist inside the server's network.
    pub fn shown_code<'a>(&self, stored: &'a ErrorCode) -> &'a ErrorCode {
        match self {
            Self::One(_) if *stored == ErrorCode::BLOCKED_ADDRESS => &SHOWN_FOR_BLOCKED,
            Self::One(_) | Self::All => stored,
        }
    }

    /// Whether a stored error code matches a filter. It compares the code that is shown, so that filters reveal no more
    /// than lists.
    pub fn matches_code(&self, wanted: Option<&ErrorCode>, stored: &ErrorCode) -> bool {
        wanted.is_none_or(|wanted| self.shown_code(stored) == wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_cannot_filter_by_what_it_is_not_shown() {
        let one = TenantScope::One(Tenant::default());
        let (blocked, unknown, late) =
            (&ErrorCode::BLOCKED_ADDRESS, &ErrorCode::DNS_FAILED, &ErrorCode::TIMEOUT);
        for (scope, wanted, matching) in [
            (&one, Some(blocked), vec![]),
            (&one, Some(unknown), vec![blocked, unknown]),
            (&one, Some(late), vec![late]),
            (&one, None, vec![blocked, unknown, late]),
            (&TenantScope::All, Some(blocked), vec![blocked]),
            (&TenantScope::All, Some(unknown), vec![unknown]),
        ] {
            let mut stored = vec![blocked, unknown, late];
            stored.retain(|stored| scope.matches_code(wanted, stored));
            assert_eq!(stored, matching, "{scope:?} {wanted:?}");
        }
    }
}
