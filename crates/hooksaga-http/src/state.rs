//! What the handlers share.

use crate::{
    auth::KnownKeys,
    body::BodyBudget,
    cached::{ByKey, Cached},
    dashboard::{Appearance, Situation},
    open_work::OpenWorkCounts,
    request_rates::HostRates,
};
use hooksaga_pipeline::{EgressPolicy, Ingest, Requeue, SecretKey, Signals};
use hooksaga_store::{PortalKeyStore, ReaderStore, RedriveStore, Stats, SubscriptionAdminStore, TenantScope};
use std::sync::Arc;

/// The state of the API, shared by every request.
pub(crate) struct ApiState {
    pub(crate) ingest: Ingest,
    pub(crate) admin: Arc<dyn SubscriptionAdminStore>,
    pub(crate) requeue: Requeue,
    pub(crate) redrives: Arc<dyn RedriveStore>,
    pub(crate) reader: Arc<dyn ReaderStore>,
    pub(crate) keys: KnownKeys,
    /// Creates the keys of portal sessions, lists and revokes keys, and adds audit records.
    pub(crate) portal_keys: Arc<dyn PortalKeyStore>,
    pub(crate) secret_key: Arc<SecretKey>,
    pub(crate) signals: Signals,
    pub(crate) bodies: BodyBudget,
    /// For those who have shown no key yet.
    pub(crate) sign_ins: BodyBudget,
    pub(crate) open_work: OpenWorkCounts,
    pub(crate) stats: ByKey<TenantScope, Cached<Stats>>,
    /// Without what each subscription did, for the dashboard's first page.
    pub(crate) stats_in_all: ByKey<TenantScope, Cached<Stats>>,
    /// What the dashboard's first page needs beside them.
    pub(crate) situations: ByKey<TenantScope, Cached<Situation>>,
    /// How the customer portal looks.
    pub(crate) look: Appearance,
    pub(crate) max_payload_bytes: usize,
    pub(crate) max_batch_bytes: usize,
    pub(crate) allow_http: bool,
    /// What callbacks may reach.
    pub(crate) egress: EgressPolicy,
    /// How often somebody may have a request sent to one host.
    pub(crate) hosts: HostRates,
    /// Whether an administrator may vouch for an endpoint.
    pub(crate) allow_trusted: bool,
    /// Whether its listener speaks TLS itself.
    pub(crate) tls: bool,
    /// Where this server is reached, without a slash at the end.
    pub(crate) public_url: String,
}

pub(crate) type SharedState = Arc<ApiState>;
