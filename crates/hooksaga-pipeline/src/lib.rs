//! The delivery pipeline: each component a small loop that claims a batch, decides, and writes a batch.
//!
//! ```text
//! Ingest → Router → Orchestrator (schedule) → Worker → Orchestrator (apply) → DeadLetters
//!                          ▲                                   │
//!                          └────────── due again ──────────────┘
//! ```
//!
//! Beside them: Cleaner, ListIndexer, Verifier, Caretaker, Requeue, Redriver, Janitor.
//!
//! Every component has `run_once`, one pass that can be repeated after any failure, and `run`, the same
//! under a [`Driver`], which sleeps until there is work. A component holds the store trait of its own database
//! role and nothing else; what it leaves for the next one it announces through [`Signals`].

mod backoff;
mod batch_pauses;
mod batch_size;
mod caretaker;
mod cleaner;
mod dead_letters;
mod delivery;
mod delivery_log;
mod driver;
mod forward;
mod ingest;
mod janitor;
mod list_indexer;
mod log_throttle;
mod metrics;
mod orchestrator;
mod outage;
mod progress;
mod redriver;
mod requeue;
mod router;
mod secrets;
mod shutdown;
mod step_size;
mod verifier;
mod wake_ups;
mod worker;

pub use caretaker::Caretaker;
pub use cleaner::Cleaner;
pub use dead_letters::DeadLetters;
pub use delivery::{
    CallbackRequest, ClientSetupError, DeliveryClient, EgressPolicy, InvalidProxy, NameResolver, NotSent,
    PostOutcome, ProxyAddress, Resolve, one_spelling,
};
pub use delivery_log::{DeliveryLog, TARGET as DELIVERY_LOG_TARGET};
pub use driver::{Driver, Rhythm};
pub use forward::forward_wakeups;
pub use ingest::{Ingest, IngestError, IngestLimits, IngestTask};
pub use janitor::{Archive, Janitor};
pub use list_indexer::ListIndexer;
pub use log_throttle::LogThrottle;
pub use metrics::{FromDatabase, IngestResult, Metrics, VerificationResult};
pub use orchestrator::Orchestrator;
pub use progress::Progress;
pub use redriver::Redriver;
pub use requeue::{Requeue, RequeueTally};
pub use router::Router;
pub use secrets::{
    InvalidSecret, InvalidSecretKey, NewSecrets, SealError, SecretKey, SigningSecret, random_hex, random_i64,
};
pub use shutdown::Shutdown;
pub use verifier::Verifier;
pub use wake_ups::Signals;
pub use worker::{LEASE_MARGIN, Worker, WorkerOptions};
