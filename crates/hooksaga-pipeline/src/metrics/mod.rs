//! The counters, histograms and gauges of every stage, in the text format that Prometheus scrapes.
//!
//! | name | labels | what |
//! |---|---|---|
//! | `hooksaga_events_ingested_total` | `result`: created, duplicate, conflict, overloaded, failed | events handed to ingestion |
//! | `hooksaga_ingest_commit_seconds` | | one group commit |
//! | `hooksaga_ingest_batch_events` | | events per group commit |
//! | `hooksaga_events_routed_total` | | events taken off the router's queue |
//! | `hooksaga_sagas_routed_total` | | deliveries that routing created |
//! | `hooksaga_sagas_requeued_total` | | deliveries that requeues created |
//! | `hooksaga_sagas_redriven_total` | | deliveries that redrives and catching up created |
//! | `hooksaga_redrives_running` | | redrives that run |
//! | `hooksaga_jobs_scheduled_total` | | jobs created |
//! | `hooksaga_attempts_total` | `outcome`: delivered, failed; `error_code`: none, the code, `HTTP_4XX`, `HTTP_5XX`, OTHER | finished attempts |
//! | `hooksaga_post_seconds` | | one POST, from its start to its outcome |
//! | `hooksaga_jobs_handed_back_total` | | leased jobs given back unsent |
//! | `hooksaga_reports_lost_total` | | results that came after the lease was over |
//! | `hooksaga_results_applied_total` | `status` of the saga afterwards | results applied to sagas |
//! | `hooksaga_delivery_latency_seconds` | | from an event's acceptance to an endpoint's successful response, by the database's clock; a delivery that is sent again counts from the acceptance, too |
//! | `hooksaga_leases_reset_total` | | leases that ran out |
//! | `hooksaga_dead_letters_total` | | dead letters stored |
//! | `hooksaga_verifications_total` | `outcome`: verified, retry, failed | verification challenges sent |
//! | `hooksaga_subscriptions_disabled_total` | `reason`: GONE, FAILING | subscriptions that the caretaker disabled |
//! | `hooksaga_retention_removed_total` | `kind`: events, deliveries, attempts, dead_letters, redrives, audit_records, hours, keys | rows of history that the janitor removed |
//! | `hooksaga_history_overdue_seconds` | | how long the oldest history that may go has been overdue; it grows until the janitor looks again, at least twice a minute |
//! | `hooksaga_pass_seconds` | `stage` | passes of a stage that did work, their database time |
//! | `hooksaga_store_errors_total` | `stage` (`api`: requests), `kind`: transient, other | passes and requests that failed in the database |
//! | `hooksaga_http_requests_total` | `method`, `route`, `status` | requests to the API; 500 and 503 of each of its routes are there from the start |
//! | `hooksaga_http_request_seconds` | `method`, `route` | their duration |
//! | `hooksaga_worker_slots` | | requests that this process may have in flight; 0 where no worker runs |
//! | `hooksaga_worker_slots_busy` | | requests that it has in flight |
//! | `hooksaga_log_records_dropped_total` | | log records that were lost: nobody read the log quickly enough, or it could not be written |
//! | `hooksaga_database_connections` | `role` | connections to the database server that may be open; none with an embedded database |
//! | `hooksaga_database_connections_busy` | `role` | connections to the database server in use |
//! | `hooksaga_build_info` | `version`, `database` | always 1 |
//! | `process_cpu_seconds_total` | | user and system CPU time |
//! | `process_resident_memory_bytes` | | |
//! | `process_virtual_memory_bytes` | | |
//! | `process_open_fds` | | file descriptors |
//! | `process_max_fds` | | |
//! | `process_start_time_seconds` | | since the Unix epoch |
//! | `hooksaga_queue_depth` | `queue` | rows that wait in a hand-over queue, or jobs in a status |
//! | `hooksaga_sagas_open` | `status` | open deliveries |
//! | `hooksaga_sagas_held` | | open deliveries whose subscription is paused or unverified |
//! | `hooksaga_oldest_due_seconds` | | how long the oldest delivery that could run has been due |
//! | `hooksaga_subscriptions` | `state`: active, unverified, paused, disabled | subscriptions; at most 100,000 are looked at |
//! | `hooksaga_dead_letters_open` | | dead letters that were not sent again, counted up to 10,000 |
//!
//! Promises: every label has a bounded set of values, whatever callbacks return (`route` is the pattern
//! that matched, which the caller has to see to). Series whose labels are known beforehand are there from the start, so
//! that the first failure is an increase from 0. The last six are read from the database when asked, and absent when it does
//! not respond.

mod external_counters;
mod gauges;
mod labels;
mod overdue;
mod pools;
mod process;
mod prometheus_text;
mod series;
#[cfg(test)]
mod tests;

use external_counters::Counted;
use hooksaga_saga::{DisabledReason, Outcome, SagaStatus};
use hooksaga_store::{Inventory, PoolUse, QueueGauges, Removed, RemovedRecords, StoreError};
use labels::{
    API, AttemptLabels, DELIVERED, ErrorLabels, KindLabel, OTHER, OutcomeLabel, ReasonLabel, RequestLabels,
    ResultLabel, RouteLabels, StageLabel, StatusLabel, TRANSIENT, error_label, failed, method_label,
    outcome_label, result_label,
};
use overdue::HistoryOverdue;
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use std::{
    iter,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What became of events handed to ingestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IngestResult {
    Created,
    Duplicate,
    Conflict,
    Overloaded,
    Failed,
}

/// How one verification challenge ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerificationResult {
    Verified,
    /// It will be tried again.
    Retry,
    /// That was the last try.
    Failed,
}

/// What a scrape could read of the database. What could not be read is missing from the text.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromDatabase<'a> {
    pub queues: Option<&'a QueueGauges>,
    pub oldest_due: Option<Duration>,
    pub inventory: Option<&'a Inventory>,
}

/// The metrics of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    events_ingested: Family<ResultLabel, Counter>,
    ingest_commit: Histogram,
    ingest_batch: Histogram,
    events_routed: Counter,
    sagas_routed: Counter,
    sagas_requeued: Counter,
    sagas_redriven: Counter,
    redrives_running: Gauge,
    jobs_scheduled: Counter,
    attempts: Family<AttemptLabels, Counter>,
    post: Histogram,
    jobs_handed_back: Counter,
    reports_lost: Counter,
    results_applied: Family<StatusLabel, Counter>,
    delivery_latency: Histogram,
    leases_reset: Counter,
    dead_letters: Counter,
    verifications: Family<OutcomeLabel, Counter>,
    subscriptions_disabled: Family<ReasonLabel, Counter>,
    retention_removed: Family<KindLabel, Counter>,
    history_overdue: HistoryOverdue,
    pass: Family<StageLabel, Histogram, fn() -> Histogram>,
    store_errors: Family<ErrorLabels, Counter>,
    /// When a write was last refused for want of space, or because the database is read-only.
    unwritable: Mutex<Option<Instant>>,
    http_requests: Family<RequestLabels, Counter>,
    http_request: Family<RouteLabels, Histogram, fn() -> Histogram>,
    worker_slots: Gauge,
    worker_slots_busy: Gauge,
}

/// 0.5 ms to 16 s, doubling.
fn short_times() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 16))
}

/// 1 ms to a day: the first attempt takes milliseconds, retries take hours.
fn long_times() -> Histogram {
    const SECONDS: [f64; 21] = [
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
        900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0,
    ];
    Histogram::new(SECONDS)
}

const PREFIX: &str = "hooksaga";

impl Metrics {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::unshared())
    }

    /// The same, while more can still be added to it.
    pub fn unshared() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            events_ingested: Family::default(),
            ingest_commit: short_times(),
            ingest_batch: Histogram::new(exponential_buckets(1.0, 2.0, 12)),
            events_routed: Counter::default(),
            sagas_routed: Counter::default(),
            sagas_requeued: Counter::default(),
            sagas_redriven: Counter::default(),
            redrives_running: Gauge::default(),
            jobs_scheduled: Counter::default(),
            attempts: Family::default(),
            post: short_times(),
            jobs_handed_back: Counter::default(),
            reports_lost: Counter::default(),
            results_applied: Family::default(),
            delivery_latency: long_times(),
            leases_reset: Counter::default(),
            dead_letters: Counter::default(),
            verifications: Family::default(),
            subscriptions_disabled: Family::default(),
            retention_removed: Family::default(),
            history_overdue: HistoryOverdue::default(),
            pass: Family::new_with_constructor(short_times),
            store_errors: Family::default(),
            unwritable: Mutex::default(),
            http_requests: Family::default(),
            http_request: Family::new_with_constructor(short_times),
            worker_slots: Gauge::default(),
            worker_slots_busy: Gauge::default(),
        };
        metrics.register();
        metrics.create_known_series();
        metrics
    }

    /// Says what is running. Once per process.
    pub fn describe(&mut self, version: &str, database: &str) {
        let labels =
            vec![("version".to_owned(), version.to_owned()), ("database".to_owned(), database.to_owned())];
        let info = Family::<Vec<(String, String)>, Gauge>::default();
        info.get_or_create(&labels).set(1);
        let help = "Always 1; its labels say what is running";
        self.registry.sub_registry_with_prefix(PREFIX).register("build_info", help, info);
    }

    /// Counts something that another part of the program counts, from its own number. Once per name.
    pub fn count_from(
        &mut self,
        name: &'static str,
        help: &'static str,
        number: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let counted = Counted { name, help, number: Box::new(number) };
        self.registry.sub_registry_with_prefix(PREFIX).register_collector(Box::new(counted));
    }

    /// Shows the connections to the database server, as they are when somebody asks. Once per process.
    pub fn pools_from(&mut self, pools: impl Fn() -> Vec<PoolUse> + Send + Sync + 'static) {
        let pools = pools::PoolCollector(Box::new(pools));
        self.registry.sub_registry_with_prefix(PREFIX).register_collector(Box::new(pools));
    }

    /// A worker with `slots` slots runs here. Returns the gauge of those that are busy, for it to keep.
    pub(crate) fn worker(&self, slots: u32) -> Gauge {
        self.worker_slots.set(slots.into());
        self.worker_slots_busy.clone()
    }

    /// Everything in the older format, which `promtool check metrics` and people with curl expect.
    pub fn encode_plain(&self, read: &FromDatabase<'_>) -> String {
        prometheus_text::from_openmetrics(&self.encode(read))
    }

    /// Everything as OpenMetrics text, with what could be read.
    pub fn encode(&self, read: &FromDatabase<'_>) -> String {
        let queues = read.queues.map(gauges::registry);
        let oldest_due = read.oldest_due.map(gauges::oldest_due);
        let inventory = read.inventory.map(gauges::inventory);
        let mut text = String::new();
        let mut registries = iter::once(&self.registry).chain(&queues).chain(&oldest_due).chain(&inventory);
        let written = registries
            .try_for_each(|registry| encode_registry(&mut text, registry))
            .and_then(|()| encode_eof(&mut text));
        written.expect("writing to a String cannot fail");
        text
    }

    pub fn ingested(&self, result: IngestResult, events: u64) {
        if events > 0 {
            self.events_ingested.get_or_create(&result_label(result)).inc_by(events);
        }
    }

    pub fn ingest_commit(&self, took: Duration, events: usize) {
        self.ingest_commit.observe(took.as_secs_f64());
        // Batch sizes are small: the conversion is exact.
        self.ingest_batch.observe(u32::try_from(events).unwrap_or(u32::MAX).into());
    }

    pub fn routed(&self, events: u64, sagas: u64) {
        self.events_routed.inc_by(events);
        self.sagas_routed.inc_by(sagas);
    }

    pub fn requeued(&self, sagas: u64) {
        self.sagas_requeued.inc_by(sagas);
    }

    pub fn redriven(&self, sagas: u64) {
        self.sagas_redriven.inc_by(sagas);
    }

    pub(crate) fn history_removed(&self, removed: &Removed) {
        self.count_removed([
            ("events", removed.events),
            ("deliveries", removed.sagas),
            ("attempts", removed.jobs),
            ("dead_letters", removed.dead_letters),
        ]);
    }

    pub(crate) fn records_removed(&self, removed: &RemovedRecords) {
        self.count_removed([
            ("redrives", removed.redrives),
            ("audit_records", removed.audit_records),
            ("hours", removed.hours),
            ("keys", removed.keys),
        ]);
    }

    /// For how long the oldest history that may go has been overdue.
    pub(crate) fn history_overdue(&self, overdue: Duration) {
        self.history_overdue.set(overdue, Instant::now());
    }

    fn count_removed<const N: usize>(&self, counts: [(&'static str, u64); N]) {
        for (kind, rows) in counts {
            self.retention_removed.get_or_create(&KindLabel { kind }).inc_by(rows);
        }
    }

    pub fn redrives_running(&self, redrives: u64) {
        self.redrives_running.set(i64::try_from(redrives).unwrap_or(i64::MAX));
    }

    pub fn scheduled(&self, jobs: u64) {
        self.jobs_scheduled.inc_by(jobs);
    }

    /// One finished attempt.
    pub fn attempt(&self, outcome: &Outcome, took: Duration) {
        let labels = match outcome {
            Outcome::Delivered => DELIVERED,
            Outcome::Failed(code) => failed(error_label(code.as_str())),
        };
        self.attempts.get_or_create(&labels).inc();
        self.post.observe(took.as_secs_f64());
    }

    pub fn handed_back(&self, jobs: u64) {
        self.jobs_handed_back.inc_by(jobs);
    }

    pub fn reports_lost(&self, jobs: u64) {
        self.reports_lost.inc_by(jobs);
    }

    /// One delivery that succeeded; `latency`: since its event was accepted.
    pub fn delivered(&self, latency: Duration) {
        self.delivery_latency.observe(latency.as_secs_f64());
    }

    /// One result applied.
    pub fn applied(&self, status: SagaStatus) {
        self.results_applied.get_or_create(&StatusLabel { status: status.as_str() }).inc();
    }

    pub fn leases_reset(&self, jobs: u64) {
        self.leases_reset.inc_by(jobs);
    }

    pub fn buried(&self, letters: u64) {
        self.dead_letters.inc_by(letters);
    }

    pub fn verification(&self, result: VerificationResult) {
        self.verifications.get_or_create(&outcome_label(result)).inc();
    }

    pub fn subscription_disabled(&self, reason: DisabledReason) {
        self.subscriptions_disabled.get_or_create(&ReasonLabel { reason: reason.as_str() }).inc();
    }

    /// A pass of a stage that did work.
    pub fn pass(&self, stage: &'static str, took: Duration) {
        self.pass.get_or_create(&StageLabel { stage }).observe(took.as_secs_f64());
    }

    /// A pass of a stage that failed.
    pub fn store_error(&self, stage: &'static str, error: &StoreError) {
        let kind = if error.is_transient() { TRANSIENT } else { OTHER };
        self.store_errors.get_or_create(&ErrorLabels { stage, kind }).inc();
        if matches!(error, StoreError::Unwritable(_)) {
            *self.unwritable.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }

    /// A request to the API, other than for ingestion, that failed in the database.
    pub fn request_failed_in_database(&self, is_transient: bool) {
        let kind = if is_transient { TRANSIENT } else { OTHER };
        self.store_errors.get_or_create(&ErrorLabels { stage: API, kind }).inc();
    }

    /// How long ago this process last found that the database takes no writes; `None` if it never did.
    pub fn since_unwritable(&self) -> Option<Duration> {
        self.unwritable.lock().unwrap_or_else(PoisonError::into_inner).map(|at| at.elapsed())
    }

    /// Makes a route's failures visible before the first one, so that an alert on an increase sees it.
    pub fn know_route(&self, method: &str, route: &str) {
        let method = method_label(method);
        for status in [500, 503] {
            let labels = RequestLabels { method, route: route.to_owned(), status };
            drop(self.http_requests.get_or_create(&labels));
        }
    }

    /// A request to the API. `route` must be the pattern that matched, never the path itself.
    pub fn http_request(&self, method: &str, route: &str, status: u16, took: Duration) {
        let method = method_label(method);
        self.http_requests.get_or_create(&RequestLabels { method, route: route.to_owned(), status }).inc();
        self.http_request
            .get_or_create(&RouteLabels { method, route: route.to_owned() })
            .observe(took.as_secs_f64());
    }
}
