//! The routes, one file per resource.

pub(crate) mod audit;
pub(crate) mod batch;
pub(crate) mod dead_letters;
pub(crate) mod deliveries;
pub(crate) mod endpoint_care;
pub(crate) mod events;
pub(crate) mod me;
pub(crate) mod portal_sessions;
pub(crate) mod redrives;
pub(crate) mod stats;
pub(crate) mod subscriptions;

use crate::{
    audit::audit as audit_layer,
    auth::KnownKeys,
    body::BodyBudget,
    cached::{ByKey, Cached},
    dashboard::{self, Appearance, PortalLook},
    docs,
    hide_blocked_addresses::Discreet,
    observe::observe,
    open_work::OpenWorkCounts,
    openapi,
    probes::Probes,
    problem::{Kind, Problem},
    request_rates::{HostRates, KeyRates},
    state::{ApiState, SharedState},
};
use axum::{
    middleware,
    routing::{get, post},
};
use hooksaga_pipeline::{EgressPolicy, Ingest, Metrics, Requeue, SecretKey, Signals};
use hooksaga_store::{KeyReaderStore, PortalKeyStore, ReaderStore, RedriveStore, SubscriptionAdminStore};
use std::{num::NonZeroU32, sync::Arc, time::Duration};

/// How long statistics are shown before they are read again.
const STATS_FRESH: Duration = Duration::from_secs(1);

/// The same for what the dashboard's first page shows beside them.
const SITUATION_FRESH: Duration = Duration::from_millis(1500);

/// The number of tenants whose statistics are cached at a time.
const STATS_KEPT: usize = 256;

/// How long to wait for them.
const STATS_PATIENCE: Duration = Duration::from_secs(10);

/// What the API needs: one store handle per database role that its routes use, and the limits.
pub struct ApiParts {
    pub ingest: Ingest,
    pub admin: Arc<dyn SubscriptionAdminStore>,
    pub requeue: Requeue,
    pub redrives: Arc<dyn RedriveStore>,
    pub reader: Arc<dyn ReaderStore>,
    /// Looks keys up.
    pub keys: Arc<dyn KeyReaderStore>,
    /// Creates the keys of portal sessions, lists and revokes keys, and adds audit records.
    pub portal_keys: Arc<dyn PortalKeyStore>,
    /// Seals signing secrets.
    pub secret_key: Arc<SecretKey>,
    pub signals: Signals,
    pub metrics: Arc<Metrics>,
    /// Of one event's payload.
    pub max_payload_bytes: usize,
    /// Of a whole batch request.
    pub max_batch_bytes: usize,
    /// Whether callbacks may be plain http.
    pub allow_http: bool,
    /// What callbacks may reach: what it refuses without a lookup is refused when it is configured.
    pub egress: EgressPolicy,
    /// Whether an administrator may vouch for an endpoint that cannot return a challenge.
    pub allow_trusted: bool,
    /// Whether the listener speaks TLS itself.
    pub tls: bool,
    /// Where this server is reached, for links to it.
    pub public_url: String,
    /// A key with every scope.
    pub root_key: Option<String>,
    /// Requests per second of one key; more are refused with 429.
    pub requests_per_second: Option<NonZeroU32>,
    /// How the customer portal looks, and who may embed it.
    pub portal: PortalLook,
    /// The probes, which are served beside the API.
    pub probes: Probes,
}

/// Every route: the API, the probes, the OpenAPI document and its page, the dashboard and the portal.
pub fn api(parts: ApiParts) -> axum::Router {
    let largest_body = parts.max_batch_bytes.max(parts.max_payload_bytes);
    let rates = parts.requests_per_second.map(KeyRates::new);
    let reader: Arc<dyn ReaderStore> = Arc::new(Discreet(parts.reader));
    let state: SharedState = Arc::new(ApiState {
        ingest: parts.ingest,
        admin: Arc::new(Discreet(parts.admin)),
        requeue: parts.requeue,
        redrives: parts.redrives,
        open_work: OpenWorkCounts::new(parts.probes.clone(), Arc::clone(&reader)),
        reader,
        keys: KnownKeys::new(parts.keys, parts.root_key.as_deref(), rates),
        portal_keys: parts.portal_keys,
        secret_key: parts.secret_key,
        signals: parts.signals,
        bodies: BodyBudget::new(largest_body),
        sign_ins: BodyBudget::of_sign_ins(),
        stats: ByKey::new(STATS_KEPT, || Cached::new(STATS_FRESH, STATS_PATIENCE)),
        stats_in_all: ByKey::new(STATS_KEPT, || Cached::new(STATS_FRESH, STATS_PATIENCE)),
        situations: ByKey::new(STATS_KEPT, || Cached::new(SITUATION_FRESH, STATS_PATIENCE)),
        look: Appearance::new(parts.portal),
        max_payload_bytes: parts.max_payload_bytes,
        max_batch_bytes: parts.max_batch_bytes,
        allow_http: parts.allow_http,
        egress: parts.egress,
        hosts: HostRates::new(),
        allow_trusted: parts.allow_trusted,
        tls: parts.tls,
        public_url: parts.public_url.trim_end_matches('/').to_owned(),
    });
    let metrics = parts.metrics;
    for (method, path) in openapi::operations() {
        metrics.know_route(method, &path);
    }
    let routes = v1()
        .merge(dashboard::routes(&state))
        .layer(middleware::from_fn_with_state(SharedState::clone(&state), audit_layer))
        .merge(events())
        .merge(parts.probes.routes().with_state(()))
        .merge(openapi::routes().with_state(()))
        .merge(docs::routes().with_state(()))
        .fallback(dashboard::no_such_page)
        .method_not_allowed_fallback(dashboard::no_such_method)
        .with_state(state);
    layered(routes, metrics)
}

/// Outside the audit layer: posting an event leaves no audit record.
fn events() -> axum::Router<SharedState> {
    axum::Router::new()
        .route("/v1/events", post(events::create).get(events::list))
        .route("/v1/events/batch", post(batch::create_batch))
        .route("/v1/events/{id}", get(events::show))
}

fn v1() -> axum::Router<SharedState> {
    axum::Router::new()
        .route("/v1/subscriptions", post(subscriptions::create).get(subscriptions::list))
        .route(
            "/v1/subscriptions/{id}",
            get(subscriptions::show).patch(subscriptions::update).delete(endpoint_care::delete),
        )
        .route("/v1/subscriptions/{id}/verify", post(subscriptions::verify))
        .route("/v1/subscriptions/{id}/test", post(endpoint_care::test))
        .route("/v1/subscriptions/{id}/rotate-secret", post(subscriptions::rotate_secret))
        .route("/v1/deliveries", get(deliveries::list))
        .route("/v1/deliveries/{saga_id}", get(deliveries::show))
        .route("/v1/deliveries/{saga_id}/resend", post(deliveries::resend))
        .route("/v1/dead-letters", get(dead_letters::list))
        .route("/v1/dead-letters/requeue", post(dead_letters::requeue_all))
        .route("/v1/dead-letters/{id}", get(dead_letters::show))
        .route("/v1/dead-letters/{id}/requeue", post(dead_letters::requeue))
        .route("/v1/redrives", post(redrives::start).get(redrives::list))
        .route("/v1/redrives/{id}", get(redrives::show))
        .route("/v1/redrives/{id}/cancel", post(redrives::cancel))
        .route("/v1/audit", get(audit::list))
        .route("/v1/stats", get(stats::show))
        .route("/v1/me", get(me::show))
        .route("/v1/portal-sessions", post(portal_sessions::create))
}

/// What a router without pages has: problems instead of bare 404 and 405, and the layer around all routes.
pub(crate) fn finish(routes: axum::Router, metrics: Arc<Metrics>) -> axum::Router {
    let routes = routes
        .fallback(|| async { Problem::new(Kind::NotFound, "there is no such route; see /docs") })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                Kind::MethodNotAllowed,
                "this route does not support this method; see the allow header",
            )
        });
    layered(routes, metrics)
}

/// The layer around all routes of every router.
fn layered(routes: axum::Router, metrics: Arc<Metrics>) -> axum::Router {
    routes.layer(middleware::from_fn_with_state(metrics, observe))
}
