//! The storage boundary: one trait per database role.
//!
//! A component receives the trait of its own role and so can only call what that role may do; the
//! database's GRANTs (SQLite: an authorizer) say the same a second time. Every method is one whole
//! transaction, named by intent, over a batch of rows; a single row is a batch of one. Every method can be
//! called again after any failure, including a lost acknowledgement, and converges.
//!
//! | role | trait | used by |
//! |---|---|---|
//! | `event_ingest_writer` | [`IngestStore`] | ingestion |
//! | `subscription_admin` | [`SubscriptionAdminStore`] | the API's subscription routes |
//! | `subscription_verifier` | [`VerifierStore`] | the verifier |
//! | `router_worker` | [`RouterStore`] | the router |
//! | `saga_orchestrator` | [`OrchestratorStore`] | the orchestrator |
//! | `job_worker` | [`WorkerStore`] | the workers |
//! | `lease_cleaner` | [`CleanerStore`] | the lease reset cleaner |
//! | `dead_letter_operator` | [`DeadLetterStore`] | the dead letter component, the API's requeue routes |
//! | `api_reader` | [`ReaderStore`] | the API's read routes, metrics |
//! | `key_admin` | [`KeyStore`] | API keys: create, list, revoke |
//! | `key_reader` | [`KeyReaderStore`] | the API's authentication |

mod admin;
mod cleaner;
mod dead_letters;
mod error;
mod ingest;
mod keys;
mod lease;
pub mod migration;
mod orchestrator;
mod reader;
mod role;
mod router;
mod secret;
mod stores;
mod tenant;
mod verifier;
mod wake;
mod worker;

pub use admin::{CreateOutcome, NewSubscription, SubscriptionAdminStore, SubscriptionPatch, UpdateOutcome};
pub use cleaner::{CleanerStore, ResetLease};
pub use dead_letters::{
    Buried, DeadLetterFilter, DeadLetterStore, RequeueOutcome, RequeueStep, Requeued, RequeuedBatch,
    RequeuedSaga, ResendOutcome,
};
pub use error::{StoreError, StoreResult};
pub use ingest::{Appended, EventHead, IngestStore, NewEvent};
pub use keys::{ApiKey, KeyReaderStore, KeyStore, NewApiKey, Scope, Scopes};
pub use lease::{Lease, LeaseRef, LeaseToken};
pub use orchestrator::{
    Allotted, AppliedResult, ApplyBatch, Decide, FinishedJob, JobsCreated, Load, OrchestratorStore,
    QueuedResult, Scheduled, ScheduledSaga, WaitingPage,
};
pub use reader::{
    Attempt, DeadLetterDetail, DeadLetterSummary, Delivery, DeliveryDetail, DeliveryFilter, EventDetail,
    EventFilter, Gauges, LivingWorker, MinuteCount, Page, PageRequest, QueueGauges, ReaderStore, Stats,
    Subscription, SubscriptionCount, SubscriptionFilter, TenantGauges, Verification, VerificationStatus,
};
pub use role::{Role, UnknownRole};
pub use router::{RouteBatch, RouteLimits, RoutedEvent, RoutedSaga, RouterStore};
pub use secret::{SealedSecret, StoredSecret};
pub use stores::Stores;
pub use tenant::TenantScope;
pub use verifier::{Check, CheckOutcome, VerifierStore};
pub use wake::{NoWakeups, Stage, WakeListener, Wakeups};
pub use worker::{
    ClaimLimits, ClaimedBatch, DeliveryJob, JobReport, Target, WORKER_GONE_AFTER, WorkerBeat, WorkerStore,
};
