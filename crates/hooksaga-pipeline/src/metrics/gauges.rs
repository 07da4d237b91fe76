//! What is read from the database when someone asks: how much waits where.

use super::labels::{QueueLabel, StateLabel, StatusLabel};
use hooksaga_saga::SagaStatus;
use hooksaga_store::{Inventory, QueueGauges};
use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use std::{sync::atomic::AtomicU64, time::Duration};

/// What there is, registered for one encoding.
pub(super) fn inventory(found: &Inventory) -> Registry {
    let mut registry = Registry::with_prefix("hooksaga");
    let as_gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let subscriptions = Family::<StateLabel, Gauge>::default();
    for (state, number) in [
        ("active", found.active),
        ("unverified", found.unverified),
        ("paused", found.paused),
        ("disabled", found.disabled),
    ] {
        subscriptions.get_or_create(&StateLabel { state }).set(as_gauge(number));
    }
    registry.register("subscriptions", "Subscriptions, by state", subscriptions);
    let letters: Gauge = Gauge::default();
    letters.set(as_gauge(found.open_dead_letters));
    registry.register(
        "dead_letters_open",
        "Dead letters that were not sent again, counted up to 10,000",
        letters,
    );
    registry
}

/// The gauges as they were read, registered for one encoding.
pub(super) fn registry(gauges: &QueueGauges) -> Registry {
    let mut registry = Registry::with_prefix("hooksaga");
    let as_gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);

    let depths = Family::<QueueLabel, Gauge>::default();
    for (queue, depth) in [
        ("unrouted_events", gauges.unrouted_events),
        ("pending_jobs", gauges.pending_jobs),
        ("leased_jobs", gauges.leased_jobs),
        ("finished_jobs", gauges.finished_jobs),
        ("pending_dead_letters", gauges.pending_dead_letters),
    ] {
        depths.get_or_create(&QueueLabel { queue }).set(as_gauge(depth));
    }
    registry.register("queue_depth", "Rows that wait, by queue", depths);

    let open = Family::<StatusLabel, Gauge>::default();
    for (status, sagas) in [
        (SagaStatus::Pending, gauges.pending_sagas),
        (SagaStatus::InProgress, gauges.in_progress_sagas()),
        (SagaStatus::PendingRetry, gauges.pending_retry_sagas),
    ] {
        open.get_or_create(&StatusLabel { status: status.as_str() }).set(as_gauge(sagas));
    }
    registry.register("sagas_open", "Open deliveries, by status", open);

    let held: Gauge = Gauge::default();
    held.set(as_gauge(gauges.held_sagas));
    registry.register("sagas_held", "Open deliveries of paused or unverified subscriptions", held);

    registry
}

/// How long the oldest delivery that could run has been due: known, too, where counting takes too long.
pub(super) fn oldest_due(age: Duration) -> Registry {
    let mut registry = Registry::with_prefix("hooksaga");
    let oldest = Gauge::<f64, AtomicU64>::default();
    oldest.set(age.as_secs_f64());
    registry.register_with_unit(
        "oldest_due",
        "How long the oldest delivery that could run has been due",
        Unit::Seconds,
        oldest,
    );
    registry
}
