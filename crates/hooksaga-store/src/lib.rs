//! The storage boundary: one trait per database role.
//!
//! A component receives the trait of its own role and so can only call what that role may do; the
//! database's GRANTs (SQLite: an authorizer) say the same a second time. Every method is one whole transaction, named
//! by intent; those on the path of a delivery work on a batch of rows. Every method can be called again after any
//! failure, including a lost acknowledgement, and converges.
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
//! | `endpoint_caretaker` | [`CaretakerStore`] | the caretaker |
//! | `history_janitor` | [`JanitorStore`] | the janitor |
//! | `dead_letter_operator` | [`DeadLetterStore`] | the dead letter component, the API's requeue routes |
//! | `dead_letter_operator` | [`RedriveStore`] | redrives, and catching up after a verification |
//! | `list_indexer` | [`ListIndexStore`] | the index of lists |
//! | `api_reader` | [`ReaderStore`] | the API's read routes, metrics |
//! | `key_admin` | [`KeyStore`] | API keys: create, list, revoke |
//! | `portal_key_writer` | [`PortalKeyStore`] | the keys of portal sessions: create; all keys: list, revoke |
//! | `key_reader` | [`KeyReaderStore`] | the API's authentication |

mod admin;
mod audit;
mod block_pager;
mod call_guard;
mod caretaker;
mod check_picker;
mod cleaner;
mod clock_reading;
mod columns;
mod conditions;
mod counts;
pub mod database_tls;
mod dead_letters;
mod endpoint;
mod error;
mod examination;
mod held_endpoints;
mod ingest;
mod janitor;
mod keys;
mod lease;
mod list_index;
mod listing;
pub mod migration;
mod missed_events;
mod orchestrator;
mod query_queue;
mod reader;
mod redrives;
mod rewrap;
mod role;
mod router;
mod scan_step;
mod secret;
mod send_again;
mod server_options;
mod statistics;
mod stores;
mod tenant;
mod trace;
mod triggers;
mod verifier;
mod wake;
mod worker;

pub use admin::{
    CreateOutcome, GONE_WITH_A_SUBSCRIPTION, NewSubscription, SecretRotation, SubscriptionAdminStore,
    SubscriptionPatch, UpdateOutcome,
};
pub use audit::{AuditFilter, AuditRecord, NewAuditRecord};
pub use block_pager::{BlockPager, PagerStep, RANGES_AT_ONCE};
pub use call_guard::CallGuard;
pub use caretaker::{
    Announcement, AnnouncementKind, CaretakerStore, Cause, Disable, Happening, Troubled, TroubledPage,
    TroubledPlace,
};
pub use check_picker::{CheckPicker, OpenCheck};
pub use cleaner::{CleanerStore, ResetLease};
pub use clock_reading::ClockReading;
pub use conditions::Conditions;
pub use counts::{
    CountProgress, CountedDay, CountedMinutes, HOUR, MINUTE, MINUTES_KEPT, MINUTES_SETTLED,
    SUBSCRIPTIONS_LOOKED_AT, TOTALS_KEPT, each, floor,
};
pub use dead_letters::{
    Buried, DeadLetterFilter, DeadLetterStore, EndedDelivery, LetterWindow, RequeueOutcome, RequeueStep,
    Requeued, RequeuedBatch, RequeuedSaga, ResendOutcome, SendAgain, SendTest, TestOutcome,
};
pub use endpoint::{EndpointNews, endpoint_news};
pub use error::{QUERY_LIMIT, StoreError, StoreResult, split_advice};
pub use examination::{Examination, Fault, RoleFault, RolesFound, SchemaVersion};
pub use held_endpoints::HeldEndpoints;
pub use ingest::{Appended, EventHead, IngestStore, NewEvent};
pub use janitor::{
    ArchivedDelivery, ArchivedEvent, ArchivedLetter, DeliveryPlace, EXPIRED_KEYS_KEPT, EventPart, EventPlace,
    FoundEvent, JanitorStore, OldEvent, OldEvents, Removed, RemovedPart, RemovedRecords,
};
pub use keys::{
    ApiKey, KeyCareStore, KeyReaderStore, KeyStore, KeyView, NewApiKey, NewPortalKey, PORTAL_SESSION,
    PortalKeyStore, Scope, Scopes,
};
pub use lease::{Lease, LeaseRef, LeaseRequest, LeaseToken};
pub use list_index::{
    BLOCK, BLOCKS_AT_ONCE, BlockFilter, Facet, IndexBatch, IndexStep, IndexedList, ListIndexStore, SETTLED,
    Trimmed,
};
pub use listing::{ListQuery, Page, PageRequest};
pub use missed_events::{EventSpan, MissedEvents, PastEvent, Recipient};
pub use orchestrator::{
    Allotted, AppliedResult, ApplyBatch, Decide, FinishedJob, JobsCreated, Limited, Move, OrchestratorStore,
    QueuedResult, Scheduled, ScheduledSaga, StrandedStep, WaitingPage, WorkerLoad,
};
pub use query_queue::QueryQueue;
pub use reader::{
    Attempt, DeadLetterDetail, DeadLetterSummary, Delivery, DeliveryDetail, DeliveryFilter, Disabled,
    EventDetail, EventFilter, FailingEndpoint, FailingEndpoints, Health, LastFailure, ReaderStore,
    Subscription, SubscriptionDetail, SubscriptionFilter, Trusted, Verification, VerificationStatus,
};
pub use redrives::{
    CancelOutcome, CatchUp, CatchUpTurn, NOT_DELIVERABLE, NewRedrive, Redrive, RedriveColumns, RedriveStatus,
    RedriveStep, RedriveStore, RedriveWork, RunningLimits, StartOutcome, Starter, StepLimits, StepOf,
    TooMany, UnknownRedriveStatus,
};
pub use rewrap::{REWRAP_BATCH, Reseal, Rewrap, SEALED_TABLES};
pub use role::{Role, UnknownRole};
pub use router::{
    Examined, Gap, LargeEvent, ListedLimits, MissedEarly, RouteBatch, RouteLimits, RoutedEvent, RoutedSaga,
    RouterStore, SmallLimits, Unmatched,
};
pub use scan_step::ScanStep;
pub use secret::{SealedHeaders, SealedParts, SealedSecret, Sealer, Seals, StoredSecret};
pub use send_again::{Ended, FoundSaga, NextSaga};
pub use server_options::{RoleMode, ServerOptions};
pub use statistics::{
    Inventory, LivingWorker, MinuteCount, PoolUse, QueueGauges, Stats, SubscriptionCount, TenantGauges,
};
pub use stores::Stores;
pub use tenant::TenantScope;
pub use trace::Trace;
pub use triggers::{REPAIR_LETTER_HEADS, Trigger, missing_triggers, triggers};
pub use verifier::{Check, CheckOutcome, CheckTurn, TakenChecks, VerifierStore};
pub use wake::{NoWakeups, Stage, WakeListener, Wakeups};
pub use worker::{
    ClaimLimits, ClaimedBatch, DeliveryJob, HeldBuckets, JobReport, Starting, Starts, Target,
    WORKER_GONE_AFTER, WORKER_LEASES_END_AFTER, WorkerBeat, WorkerStore,
};
