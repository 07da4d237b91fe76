//! The names of the metrics, and the series that are there from the start.

use super::{
    IngestResult, Metrics, PREFIX, VerificationResult,
    labels::{
        API, DELIVERED, ErrorLabels, OTHER, ReasonLabel, StatusLabel, TRANSIENT, error_codes, failed,
        outcome_label, result_label,
    },
    process::Process,
};
use hooksaga_saga::{DisabledReason, SagaStatus};
use hooksaga_store::{Removed, RemovedRecords};
use prometheus_client::registry::Unit;

/// Where the database can fail.
const STAGES: [&str; 16] = [
    API,
    "apply",
    "caretaker",
    "cleaner",
    "dead_letters",
    "ingest",
    "janitor",
    "list_indexer",
    "redriver",
    "report",
    "requeue",
    "router",
    "schedule",
    "stranded",
    "verifier",
    "worker",
];

impl Metrics {
    pub(super) fn register(&mut self) {
        self.registry.register_collector(Box::new(Process));
        let r = self.registry.sub_registry_with_prefix(PREFIX);
        r.register("events_ingested", "Events handed to ingestion, by result", self.events_ingested.clone());
        r.register_with_unit(
            "ingest_commit",
            "Duration of one group commit",
            Unit::Seconds,
            self.ingest_commit.clone(),
        );
        r.register("ingest_batch_events", "Events per group commit", self.ingest_batch.clone());
        r.register("events_routed", "Events taken off the router's queue", self.events_routed.clone());
        r.register("sagas_routed", "Deliveries that routing created", self.sagas_routed.clone());
        r.register("sagas_requeued", "Deliveries that requeues created", self.sagas_requeued.clone());
        r.register(
            "sagas_redriven",
            "Deliveries that redrives and catching up created",
            self.sagas_redriven.clone(),
        );
        r.register("redrives_running", "Redrives that run", self.redrives_running.clone());
        r.register("jobs_scheduled", "Jobs created", self.jobs_scheduled.clone());
        r.register("attempts", "Finished attempts, by outcome and error code", self.attempts.clone());
        r.register_with_unit("post", "Duration of one POST", Unit::Seconds, self.post.clone());
        r.register("jobs_handed_back", "Leased jobs given back unsent", self.jobs_handed_back.clone());
        r.register("reports_lost", "Results that came after the lease was over", self.reports_lost.clone());
        r.register("results_applied", "Results applied, by the saga's status", self.results_applied.clone());
        r.register_with_unit(
            "delivery_latency",
            "From an event's acceptance to an endpoint's successful response",
            Unit::Seconds,
            self.delivery_latency.clone(),
        );
        r.register("leases_reset", "Leases that ran out", self.leases_reset.clone());
        r.register("dead_letters", "Dead letters stored", self.dead_letters.clone());
        r.register("verifications", "Verification challenges sent, by outcome", self.verifications.clone());
        r.register(
            "subscriptions_disabled",
            "Subscriptions that the caretaker disabled, by reason",
            self.subscriptions_disabled.clone(),
        );
        r.register(
            "retention_removed",
            "Rows of history that the janitor removed, by kind",
            self.retention_removed.clone(),
        );
        r.register_collector(Box::new(self.history_overdue.clone()));
        r.register_with_unit(
            "pass",
            "Database time of a stage's passes that did work",
            Unit::Seconds,
            self.pass.clone(),
        );
        r.register("store_errors", "Passes of a stage that failed", self.store_errors.clone());
        r.register("http_requests", "Requests to the API", self.http_requests.clone());
        r.register_with_unit(
            "http_request",
            "Duration of requests to the API",
            Unit::Seconds,
            self.http_request.clone(),
        );
        r.register("worker_slots", "Requests that may be in flight", self.worker_slots.clone());
        r.register("worker_slots_busy", "Requests in flight", self.worker_slots_busy.clone());
    }

    /// What can happen is there from the start: an alert on an increase sees the first one.
    pub(super) fn create_known_series(&self) {
        for result in [
            IngestResult::Created,
            IngestResult::Duplicate,
            IngestResult::Conflict,
            IngestResult::Overloaded,
            IngestResult::Failed,
        ] {
            drop(self.events_ingested.get_or_create(&result_label(result)));
        }
        drop(self.attempts.get_or_create(&DELIVERED));
        for error_code in error_codes() {
            drop(self.attempts.get_or_create(&failed(error_code)));
        }
        for status in [SagaStatus::Completed, SagaStatus::PendingRetry, SagaStatus::DeadLettered] {
            drop(self.results_applied.get_or_create(&StatusLabel { status: status.as_str() }));
        }
        for result in [VerificationResult::Verified, VerificationResult::Retry, VerificationResult::Failed] {
            drop(self.verifications.get_or_create(&outcome_label(result)));
        }
        for stage in STAGES {
            for kind in [TRANSIENT, OTHER] {
                drop(self.store_errors.get_or_create(&ErrorLabels { stage, kind }));
            }
        }
        for reason in DisabledReason::ALL {
            drop(self.subscriptions_disabled.get_or_create(&ReasonLabel { reason: reason.as_str() }));
        }
        self.history_removed(&Removed::default());
        self.records_removed(&RemovedRecords::default());
    }
}
