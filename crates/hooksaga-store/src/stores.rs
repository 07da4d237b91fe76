//! Every role's handle on one database. Only wiring code and tests see them all together.

use crate::{
    CaretakerStore, CleanerStore, DeadLetterStore, IngestStore, JanitorStore, KeyReaderStore, KeyStore,
    ListIndexStore, OrchestratorStore, PortalKeyStore, ReaderStore, RedriveStore, RouterStore,
    SubscriptionAdminStore, VerifierStore, Wakeups, WorkerStore,
};
use std::sync::Arc;

/// One handle per role, each with connections that run as that role.
#[derive(Clone)]
pub struct Stores {
    pub ingest: Arc<dyn IngestStore>,
    pub admin: Arc<dyn SubscriptionAdminStore>,
    pub verifier: Arc<dyn VerifierStore>,
    pub router: Arc<dyn RouterStore>,
    pub orchestrator: Arc<dyn OrchestratorStore>,
    pub worker: Arc<dyn WorkerStore>,
    pub cleaner: Arc<dyn CleanerStore>,
    pub dead_letters: Arc<dyn DeadLetterStore>,
    pub caretaker: Arc<dyn CaretakerStore>,
    pub janitor: Arc<dyn JanitorStore>,
    pub redrives: Arc<dyn RedriveStore>,
    pub list_index: Arc<dyn ListIndexStore>,
    pub reader: Arc<dyn ReaderStore>,
    pub keys: Arc<dyn KeyStore>,
    pub portal_keys: Arc<dyn PortalKeyStore>,
    pub key_reader: Arc<dyn KeyReaderStore>,
    pub wakeups: Arc<dyn Wakeups>,
}
