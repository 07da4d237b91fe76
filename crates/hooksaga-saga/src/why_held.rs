//! Why the open deliveries of a subscription wait.

use crate::DisabledReason;

/// What keeps open deliveries from being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The server switched the subscription off.
    Disabled(DisabledReason),
    /// Somebody did.
    Paused,
    /// Its callback URL has not proved itself.
    Unverified,
    /// It is no more. Its open deliveries do not wait: they end without being sent.
    Deleted,
}

impl Held {
    /// Of a subscription that exists; `None` if its deliveries go on. What has to be repaired first is named first.
    pub const fn of(active: bool, verified: bool, disabled: Option<DisabledReason>) -> Option<Self> {
        match (active, verified, disabled) {
            (false, _, Some(reason)) => Some(Self::Disabled(reason)),
            (false, _, None) => Some(Self::Paused),
            (true, false, _) => Some(Self::Unverified),
            (true, true, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_go_on_where_it_is_active_and_verified_and_nowhere_else() {
        let gone = Some(DisabledReason::Gone);
        assert_eq!(Held::of(true, true, None), None);
        assert_eq!(Held::of(true, false, None), Some(Held::Unverified));
        for verified in [false, true] {
            assert_eq!(Held::of(false, verified, None), Some(Held::Paused));
            assert_eq!(Held::of(false, verified, gone), Some(Held::Disabled(DisabledReason::Gone)));
        }
    }
}
