//! Why a subscription was disabled automatically.

/// Stored and shown by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisabledReason {
    /// The endpoint said that it is gone for good (410).
    Gone,
    /// Every attempt has failed for too long.
    Failing,
}

impl DisabledReason {
    pub const ALL: [Self; 2] = [Self::Gone, Self::Failing];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "GONE",
            Self::Failing => "FAILING",
        }
    }

    /// Nothing for a name that no reason has.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_found_by_its_name() {
        for reason in DisabledReason::ALL {
            assert_eq!(DisabledReason::from_name(reason.as_str()), Some(reason));
        }
        assert_eq!(DisabledReason::from_name("gone"), None);
    }
}
