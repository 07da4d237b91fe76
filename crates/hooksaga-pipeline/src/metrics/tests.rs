//! Tests of the metrics' text.

use super::{labels::error_label, *};
use hooksaga_saga::ErrorCode;
use hooksaga_store::Role;

/// The names in the table at the top of this file.
fn documented() -> Vec<&'static str> {
    include_str!("mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn everything_documented_is_there_and_nothing_else() {
    let mut metrics = Metrics::unshared();
    metrics.describe("1.2.3", "sqlite");
    metrics.count_from("log_records_dropped", "Dropped", || 3);
    metrics.pools_from(|| vec![PoolUse { role: Role::JobWorker, most: 4, busy: 1 }]);
    // A family shows from its first series on.
    metrics.worker(512).inc();
    metrics.pass("router", Duration::ZERO);
    metrics.store_error("router", &hooksaga_store::StoreError::Unavailable(String::new()));
    metrics.http_request("GET", "/v1/events", 200, Duration::ZERO);
    let inventory = Inventory { paused: 3, open_dead_letters: 5, ..Inventory::default() };
    let text = metrics.encode(&FromDatabase {
        queues: Some(&QueueGauges::default()),
        oldest_due: Some(Duration::ZERO),
        inventory: Some(&inventory),
    });
    let mut found: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| if kind == "counter" { format!("{name}_total") } else { name.to_owned() })
        .collect();
    let mut expected = documented();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert!(text.ends_with("# EOF\n"));
    assert!(text.contains("hooksaga_worker_slots 512\n") && text.contains("hooksaga_worker_slots_busy 1\n"));
    assert!(text.contains("hooksaga_log_records_dropped_total 3\n"), "{text}");
    assert!(text.contains("hooksaga_database_connections_busy{role=\"job_worker\"} 1\n"), "{text}");
    assert!(text.contains("hooksaga_subscriptions{state=\"paused\"} 3\n"), "{text}");
    assert!(text.contains("hooksaga_dead_letters_open 5\n"), "{text}");
    assert!(text.contains("hooksaga_build_info{version=\"1.2.3\",database=\"sqlite\"} 1\n"), "{text}");
}

#[test]
fn what_can_fail_is_counted_from_zero() {
    let text = Metrics::new().encode(&Default::default());
    for series in [
        "hooksaga_events_ingested_total{result=\"failed\"} 0\n",
        "hooksaga_attempts_total{outcome=\"failed\",error_code=\"TIMEOUT\"} 0\n",
        "hooksaga_attempts_total{outcome=\"failed\",error_code=\"HTTP_5XX\"} 0\n",
        "hooksaga_results_applied_total{status=\"DeadLettered\"} 0\n",
        "hooksaga_verifications_total{outcome=\"failed\"} 0\n",
        "hooksaga_store_errors_total{stage=\"api\",kind=\"transient\"} 0\n",
        "hooksaga_store_errors_total{stage=\"router\",kind=\"other\"} 0\n",
    ] {
        assert!(text.contains(series), "{series} in {text}");
    }
}

#[test]
fn gauges_show_what_was_read_and_are_absent_when_nothing_was() {
    let metrics = Metrics::new();
    let gauges = QueueGauges { unrouted_events: 7, ..QueueGauges::default() };
    let counted = FromDatabase { queues: Some(&gauges), ..FromDatabase::default() };
    let text = metrics.encode(&counted);
    assert!(text.contains("hooksaga_queue_depth{queue=\"unrouted_events\"} 7\n"), "{text}");
    assert!(!text.contains("hooksaga_oldest_due_seconds"), "{text}");
    let due = FromDatabase { oldest_due: Some(Duration::from_millis(1_500)), ..FromDatabase::default() };
    let text = metrics.encode(&due);
    assert!(text.contains("hooksaga_oldest_due_seconds 1.5\n"), "{text}");
    assert!(!metrics.encode(&Default::default()).contains("hooksaga_queue_depth"));
}

#[test]
fn labels_are_bounded_whatever_callbacks_and_clients_send() {
    let metrics = Metrics::new();
    for status in 100..1000 {
        metrics.attempt(&Outcome::Failed(ErrorCode::http(status)), Duration::ZERO);
        let odd = ErrorCode::from_stored(format!("ODD_{status}"));
        metrics.attempt(&Outcome::Failed(odd), Duration::ZERO);
        metrics.http_request(&format!("M{status}"), "/v1/events", 200, Duration::ZERO);
    }
    let text = metrics.encode(&Default::default());
    let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(
        series("hooksaga_attempts_total"),
        1 + labels::error_codes().count(),
        "delivered, and those known beforehand"
    );
    assert_eq!(series("hooksaga_http_requests_total"), 1);
}

#[test]
fn every_error_code_of_a_delivery_has_a_label() {
    for code in ErrorCode::ALL.iter().filter(|code| **code != ErrorCode::CHALLENGE_MISMATCH) {
        assert_eq!(error_label(code.as_str()), code.as_str());
    }
    assert_eq!(error_label("HTTP_404"), "HTTP_4XX");
    assert_eq!(error_label("HTTP_503"), "HTTP_5XX");
}
