//! The database roles, one per component.

use std::{fmt, str::FromStr};

macro_rules! roles {
    ($($variant:ident = $name:literal),+ $(,)?) => {
        /// A database role: what one component may do, and nothing else.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Role { $($variant),+ }

        impl Role {
            /// Every role.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its name in the database and in `database.role_urls`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl FromStr for Role {
            type Err = UnknownRole;

            fn from_str(text: &str) -> Result<Self, UnknownRole> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(UnknownRole(text.to_owned())),
                }
            }
        }
    };
}

roles! {
    EventIngestWriter = "event_ingest_writer",
    SubscriptionAdmin = "subscription_admin",
    SubscriptionVerifier = "subscription_verifier",
    RouterWorker = "router_worker",
    SagaOrchestrator = "saga_orchestrator",
    JobWorker = "job_worker",
    LeaseCleaner = "lease_cleaner",
    DeadLetterOperator = "dead_letter_operator",
    EndpointCaretaker = "endpoint_caretaker",
    HistoryJanitor = "history_janitor",
    ListIndexer = "list_indexer",
    ApiReader = "api_reader",
    KeyAdmin = "key_admin",
    PortalKeyWriter = "portal_key_writer",
    KeyReader = "key_reader",
}

/// A role name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no database role {0:?}")]
pub struct UnknownRole(pub String);

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
