//! The statuses of sagas and jobs, and their names in the database and the API.

use std::{fmt, str::FromStr};

/// A status text that no version of this program has written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} status {text:?}")]
pub struct UnknownStatus {
    kind: &'static str,
    text: String,
}

macro_rules! status {
    ($(#[$doc:meta])* $name:ident, $kind:literal { $($(#[$vdoc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every status, in the order of a delivery's life.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name that the database stores and the API shows.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownStatus;

            fn from_str(text: &str) -> Result<Self, UnknownStatus> {
                match text {
                    $(stringify!($variant) => Ok(Self::$variant),)+
                    _ => Err(UnknownStatus { kind: $kind, text: text.to_owned() }),
                }
            }
        }
    };
}

status! {
    /// Where a delivery stands. Only the orchestrator changes it, and only as [`crate::step`] allows.
    SagaStatus, "saga" {
        /// Routed; its first job is not created yet.
        Pending,
        /// Has exactly one active job.
        InProgress,
        /// The last job failed; waits for `next_attempt_at`.
        PendingRetry,
        /// Delivered. Final.
        Completed,
        /// Given up at the attempt limit. Final.
        DeadLettered,
    }
}

impl SagaStatus {
    /// Final statuses: no column of such a saga ever changes again.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::DeadLettered)
    }
}

status! {
    /// Where one delivery attempt stands.
    JobStatus, "job" {
        /// Waits for a worker, not before its `lease_until`.
        Pending,
        /// A worker holds it until `lease_until`.
        Leased,
        /// The callback returned 2xx. Final.
        Completed,
        /// Anything else happened. Final.
        Failed,
    }
}

impl JobStatus {
    /// Active jobs: a saga has at most one.
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Pending | Self::Leased)
    }
}
