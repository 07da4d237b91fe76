//! Liveness, readiness and metrics: for machines, without a key.
//!
//! What asks the database is cached, so that nobody without a key can make it work, and bounded in time, so that
//! `/metrics` works while the database is away.

use crate::{
    api::finish,
    cached::Cached,
    problem::{Kind, Problem},
    refreshed::{Known, Patience, Refreshed},
};
use axum::{
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use hooksaga_pipeline::{FromDatabase, Metrics};
use hooksaga_store::{Inventory, QueueGauges, ReaderStore, StoreError, TenantScope};
use http::{HeaderMap, header};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How long the inventory is used, which costs more to count and changes less.
const INVENTORY_FRESH: Duration = Duration::from_secs(60);

/// How long a reading for readiness is used.
const READY_FRESH: Duration = Duration::from_millis(500);

/// Not ready for this long after a refused write. Components retry every second, so this lasts as long as the fault; where
/// no component runs, the next request finds out.
const UNWRITABLE_FOR: Duration = Duration::from_secs(10);

/// Whoever asked for readiness twice within this time will ask again.
const WATCHED_FOR: Duration = Duration::from_secs(60);

/// Questions that come sooner after another are one: somebody waits for the start.
const ASKED_APART: Duration = Duration::from_millis(500);

/// A database that takes longer counts as away.
const PATIENCE: Duration = Duration::from_secs(3);

/// The same for the queues' gauges, of which there may be previous ones. Where there are none, a count that succeeds is worth
/// waiting for, since the next scrape may come when it is too old; Prometheus gives up after 10 s.
const GAUGES_PATIENCE: Patience = Patience { for_newer: PATIENCE, for_any: Duration::from_secs(7) };

/// How long the age of the oldest due work is used.
const OLDEST_DUE_FRESH: Duration = Duration::from_secs(1);

const UNWRITABLE: &str = "the database takes no writes: its disk is full, or it is read-only";

const OPENMETRICS: &str = "application/openmetrics-text";
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) struct ProbeState {
    reader: Arc<dyn ReaderStore>,
    metrics: Arc<Metrics>,
    gauges: Refreshed<QueueGauges>,
    oldest_due: Cached<Duration>,
    inventory: Cached<Inventory>,
    ready: Cached<i64>,
    stopping: AtomicBool,
    questions: Mutex<Questions>,
}

impl ProbeState {
    async fn queue_gauges(&self, patience: Patience) -> Known<QueueGauges> {
        let reader = Arc::clone(&self.reader);
        self.gauges.get(patience, async move { reader.gauges().await }).await
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        // Nothing panics while it is held.
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When readiness was asked for: last, and before that.
#[derive(Default)]
struct Questions {
    last: Option<Instant>,
    before: Option<Instant>,
}

impl Questions {
    fn add(&mut self, now: Instant) {
        if self.last.is_none_or(|last| now.duration_since(last) >= ASKED_APART) {
            self.before = self.last.replace(now);
        }
    }

    /// Whether somebody asks regularly.
    fn go_on(&self, now: Instant) -> bool {
        self.before.is_some_and(|before| now.duration_since(before) < WATCHED_FOR)
    }
}

/// The probes of one process, for each of its listeners. Clones share them.
#[derive(Clone)]
pub struct Probes {
    state: Arc<ProbeState>,
    metrics_apart: bool,
}

impl Probes {
    pub fn new(reader: Arc<dyn ReaderStore>, metrics: Arc<Metrics>) -> Self {
        let state = ProbeState {
            reader,
            metrics,
            gauges: Refreshed::new(),
            oldest_due: Cached::new(OLDEST_DUE_FRESH, PATIENCE),
            inventory: Cached::new(INVENTORY_FRESH, PATIENCE),
            ready: Cached::new(READY_FRESH, PATIENCE),
            stopping: AtomicBool::new(false),
            questions: Mutex::default(),
        };
        Self { state: Arc::new(state), metrics_apart: false }
    }

    /// The same without `/metrics`, which has a listener of its own.
    #[must_use]
    pub fn without_metrics(&self) -> Self {
        Self { metrics_apart: true, ..self.clone() }
    }

    /// From now on this process is not ready: it is about to end.
    pub fn stop(&self) {
        self.state.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether a balancer, or somebody else, asks for readiness regularly, and so will notice when it goes.
    pub fn are_watched(&self) -> bool {
        self.state.questions().go_on(Instant::now())
    }

    /// How much waits where, as far as somebody with this patience gets to know it.
    pub(crate) async fn queue_gauges(&self, patience: Patience) -> Known<QueueGauges> {
        self.state.queue_gauges(patience).await
    }

    /// `/healthz`, `/readyz` and `/metrics` alone: for processes that run no API, and for a listener of their own.
    pub fn router(&self) -> axum::Router {
        finish(self.routes(), Arc::clone(&self.state.metrics))
    }

    pub(crate) fn routes(&self) -> axum::Router {
        let routes = axum::Router::new().route("/healthz", get(health)).route("/readyz", get(ready));
        let routes = if self.metrics_apart { routes } else { routes.route("/metrics", get(metrics_text)) };
        routes.with_state(Arc::clone(&self.state))
    }
}

/// Liveness
///
/// The process runs.
#[utoipa::path(
    get, path = "/healthz", tag = "probes", operation_id = "healthz",
    responses((status = 200, description = "Alive", body = String, content_type = "text/plain"))
)]
pub(crate) async fn health() -> &'static str {
    "ok\n"
}

/// Readiness
///
/// The database is reachable and takes writes, its schema is one that this version works with, and the process is not about
/// to stop.
#[utoipa::path(
    get, path = "/readyz", tag = "probes", operation_id = "readyz",
    responses(
        (status = 200, description = "Ready", body = String, content_type = "text/plain"),
        (status = 503, description = "Not ready, and why", body = crate::problem::ProblemBody,
            content_type = "application/problem+json")
    )
)]
pub(crate) async fn ready(State(state): State<Arc<ProbeState>>) -> Result<&'static str, Problem> {
    state.questions().add(Instant::now());
    if state.stopping.load(Ordering::Relaxed) {
        return Err(Problem::new(Kind::NotReady, "this server is about to stop"));
    }
    if state.metrics.since_unwritable().is_some_and(|since| since < UNWRITABLE_FOR) {
        return Err(Problem::new(Kind::NotReady, UNWRITABLE));
    }
    let reader = Arc::clone(&state.reader);
    state.ready.get(async move { reader.ready().await }).await.map(|_| "ready\n").map_err(|error| {
        tracing::debug!(%error, "not ready");
        // The error's own text may name hosts, and this route needs no key.
        let reason = match *error {
            StoreError::Unavailable(_) => "the database is not reachable",
            StoreError::TimedOut(_) | StoreError::TooSlow(_) => "the database takes too long",
            StoreError::Unwritable(_) => UNWRITABLE,
            StoreError::Schema(_) => "the database's schema is not this version's: run hooksaga migrate",
            _ => "the database refuses this server; its log has the reason",
        };
        Problem::new(Kind::NotReady, reason)
    })
}

/// Metrics
///
/// As OpenMetrics for those who accept it, as Prometheus does, and in Prometheus' older text format for all others.
#[utoipa::path(
    get, path = "/metrics", tag = "probes", operation_id = "metrics",
    responses((status = 200, description = "The metrics", content(
        (String = "text/plain; version=0.0.4; charset=utf-8"),
        (String = "application/openmetrics-text; version=1.0.0; charset=utf-8"))))
)]
pub(crate) async fn metrics_text(State(state): State<Arc<ProbeState>>, headers: HeaderMap) -> Response {
    let (reader, same_reader) = (Arc::clone(&state.reader), Arc::clone(&state.reader));
    let (gauges, oldest_due, inventory) = tokio::join!(
        state.queue_gauges(GAUGES_PATIENCE),
        state.oldest_due.get(async move {
            let stats = same_reader.stats_in_all(&TenantScope::All).await?;
            Ok(Duration::from_micros(stats.oldest_due_age_micros))
        }),
        state.inventory.get(async move { reader.inventory().await }),
    );
    let (gauges, inventory) = (gauges.figures().ok().map(|figures| figures.value), inventory.ok());
    let read = FromDatabase {
        queues: gauges.as_ref(),
        oldest_due: oldest_due.ok().map(|age| *age),
        inventory: inventory.as_deref(),
    };
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (kind, text) = if accepted.into_iter().any(|value| value.contains(OPENMETRICS)) {
        (METRICS_TYPE, state.metrics.encode(&read))
    } else {
        (PLAIN_TYPE, state.metrics.encode_plain(&read))
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balancer_asks_regularly_and_somebody_who_waits_for_the_start_does_not() {
        let began = Instant::now();
        let go_on_after = |questions: &[u64], milliseconds: u64| {
            let mut asked = Questions::default();
            questions.iter().for_each(|at| asked.add(began + Duration::from_millis(*at)));
            asked.go_on(began + Duration::from_millis(milliseconds))
        };
        assert!(!go_on_after(&[], 10));
        assert!(!go_on_after(&[0], 10));
        assert!(!go_on_after(&[0, 20, 40, 60], 70), "the start");
        assert!(go_on_after(&[0, 2_000], 2_500));
        assert!(go_on_after(&[0, 30_000], 59_000));
        assert!(go_on_after(&(0..100).map(|n| n * 20).collect::<Vec<_>>(), 2_000), "often");
        assert!(!go_on_after(&[0, 2_000], 100_000), "it is gone");
    }
}
