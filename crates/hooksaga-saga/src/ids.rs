//! One type per id, so that a saga's id can never be passed where a job's is meant.

use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

ids! {
    /// A row of `events`.
    EventId,
    /// A row of `subscriptions`.
    SubscriptionId,
    /// A row of `webhook_delivery_sagas`.
    SagaId,
    /// A row of `webhook_delivery_jobs`.
    JobId,
    /// A row of `dead_letters`.
    DeadLetterId,
    /// A row of `subscription_secrets`.
    SecretId,
    /// A row of `api_keys`.
    KeyId,
    /// A row of `redrives`.
    RedriveId,
}
