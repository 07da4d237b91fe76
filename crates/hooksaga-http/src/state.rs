//! What the handlers share.

use crate::{auth::Keys, body::BodyBudget, cached::Cached};
use hooksaga_pipeline::{DeliveryLog, Ingest, Metrics, SecretKey, Signals};
use hooksaga_store::{DeadLetterStore, ReaderStore, Stats, SubscriptionAdminStore};
use std::sync::Arc;

/// The state of the API, shared by every request.
pub(crate) struct ApiState {
    pub(crate) ingest: Ingest,
    pub(crate) admin: Arc<dyn SubscriptionAdminStore>,
    pub(crate) dead_letters: Arc<dyn DeadLetterStore>,
    pub(crate) reader: Arc<dyn ReaderStore>,
    pub(crate) keys: Keys,
    pub(crate) secret_key: Arc<SecretKey>,
    pub(crate) signals: Signals,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) bodies: BodyBudget,
    pub(crate) stats: Cached<Stats>,
    pub(crate) max_payload_bytes: usize,
    pub(crate) max_batch_bytes: usize,
    pub(crate) allow_http: bool,
    pub(crate) default_retry_limit: u32,
    pub(crate) log: DeliveryLog,
}

pub(crate) type SharedState = Arc<ApiState>;
