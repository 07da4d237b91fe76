//! The routes, one file per resource.

pub(crate) mod batch;
pub(crate) mod dead_letters;
pub(crate) mod deliveries;
pub(crate) mod events;
pub(crate) mod stats;
pub(crate) mod subscriptions;

use crate::{
    auth::Keys,
    body::BodyBudget,
    cached::Cached,
    docs,
    linger::linger,
    observe::observe,
    openapi,
    probes::probe_routes,
    problem::{Kind, Problem},
    state::{ApiState, SharedState},
};
use axum::{
    Router, middleware,
    routing::{get, post},
};
use hooksaga_pipeline::{DeliveryLog, Ingest, Metrics, SecretKey, Signals};
use hooksaga_store::{DeadLetterStore, KeyStore, ReaderStore, SubscriptionAdminStore};
use std::{sync::Arc, time::Duration};

/// How long statistics are shown before they are read again.
const STATS_FRESH: Duration = Duration::from_secs(1);

/// How long to wait for them.
const STATS_PATIENCE: Duration = Duration::from_secs(10);

/// What the API needs: one store handle per database role that its routes use, and the limits.
pub struct ApiParts {
    pub ingest: Ingest,
    pub admin: Arc<dyn SubscriptionAdminStore>,
    pub dead_letters: Arc<dyn DeadLetterStore>,
    pub reader: Arc<dyn ReaderStore>,
    pub keys: Arc<dyn KeyStore>,
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
    /// Attempts of a requeued delivery whose subscription has no limit of its own.
    pub default_retry_limit: u32,
    /// Which requeues leave a line in the log.
    pub log: DeliveryLog,
    /// A key with every scope.
    pub root_key: Option<String>,
}

/// Every route: the API, the probes, the OpenAPI document and its page.
pub fn api(parts: ApiParts) -> Router {
    let largest_body = parts.max_batch_bytes.max(parts.max_payload_bytes);
    let probes = probe_routes(Arc::clone(&parts.reader), Arc::clone(&parts.metrics));
    let state: SharedState = Arc::new(ApiState {
        ingest: parts.ingest,
        admin: parts.admin,
        dead_letters: parts.dead_letters,
        reader: parts.reader,
        keys: Keys::new(parts.keys, parts.root_key.as_deref()),
        secret_key: parts.secret_key,
        signals: parts.signals,
        metrics: parts.metrics,
        bodies: BodyBudget::new(largest_body),
        stats: Cached::new(STATS_FRESH, STATS_PATIENCE),
        max_payload_bytes: parts.max_payload_bytes,
        max_batch_bytes: parts.max_batch_bytes,
        allow_http: parts.allow_http,
        default_retry_limit: parts.default_retry_limit,
        log: parts.log,
    });
    let metrics = Arc::clone(&state.metrics);
    let routes = v1().with_state(state).merge(probes).merge(openapi::routes()).merge(docs::routes());
    finish(routes, metrics)
}

fn v1() -> Router<SharedState> {
    Router::new()
        .route("/v1/events", post(events::create).get(events::list))
        .route("/v1/events/batch", post(batch::create_batch))
        .route("/v1/events/{id}", get(events::show))
        .route("/v1/subscriptions", post(subscriptions::create).get(subscriptions::list))
        .route("/v1/subscriptions/{id}", get(subscriptions::show).patch(subscriptions::update))
        .route("/v1/subscriptions/{id}/verify", post(subscriptions::verify))
        .route("/v1/subscriptions/{id}/rotate-secret", post(subscriptions::rotate_secret))
        .route("/v1/deliveries", get(deliveries::list))
        .route("/v1/deliveries/{saga_id}", get(deliveries::show))
        .route("/v1/dead-letters", get(dead_letters::list))
        .route("/v1/dead-letters/requeue", post(dead_letters::requeue_all))
        .route("/v1/dead-letters/{id}", get(dead_letters::show))
        .route("/v1/dead-letters/{id}/requeue", post(dead_letters::requeue))
        .route("/v1/stats", get(stats::show))
}

/// What every router here has: problems instead of bare 404 and 405, and the layers around all routes.
pub(crate) fn finish(routes: Router, metrics: Arc<Metrics>) -> Router {
    routes
        .fallback(|| async { Problem::new(Kind::NotFound, "there is no such route; see /docs") })
        .method_not_allowed_fallback(|| async {
            Problem::new(Kind::MethodNotAllowed, "this route has other methods; see the allow header")
        })
        .layer(middleware::from_fn(linger))
        .layer(middleware::from_fn_with_state(metrics, observe))
}
