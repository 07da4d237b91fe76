//! What the text says.

use super::{labels::error_label, *};
use hooksaga_saga::ErrorCode;

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
    let metrics = Metrics::new();
    // A family shows from its first series on.
    metrics.ingested(IngestResult::Created, 1);
    metrics.delivery(&Outcome::Delivered, Duration::ZERO);
    metrics.applied(SagaStatus::Completed, Duration::ZERO);
    metrics.verification(VerificationResult::Verified);
    metrics.pass("router", Duration::ZERO);
    metrics.store_error("router", true);
    metrics.http_request("GET", "/v1/events", 200, Duration::ZERO);
    let text = metrics.encode(Some(&QueueGauges::default()));
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
}

#[test]
fn gauges_show_what_was_read_and_are_absent_when_nothing_was() {
    let metrics = Metrics::new();
    let gauges =
        QueueGauges { unrouted_events: 7, oldest_due_age_micros: 1_500_000, ..QueueGauges::default() };
    let text = metrics.encode(Some(&gauges));
    assert!(text.contains("hooksaga_queue_depth{queue=\"unrouted_events\"} 7\n"), "{text}");
    assert!(text.contains("hooksaga_oldest_due_seconds 1.5\n"), "{text}");
    assert!(!metrics.encode(None).contains("hooksaga_queue_depth"));
}

#[test]
fn labels_are_bounded_whatever_callbacks_and_clients_send() {
    let metrics = Metrics::new();
    for status in 100..1000 {
        metrics.delivery(&Outcome::Failed(ErrorCode::http(status)), Duration::ZERO);
        let odd = ErrorCode::from_stored(format!("ODD_{status}"));
        metrics.delivery(&Outcome::Failed(odd), Duration::ZERO);
        metrics.http_request(&format!("M{status}"), "/v1/events", 200, Duration::ZERO);
    }
    let text = metrics.encode(None);
    let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(series("hooksaga_deliveries_total"), 3, "4XX, 5XX and OTHER");
    assert_eq!(series("hooksaga_http_requests_total"), 1);
}

#[test]
fn every_error_code_of_a_delivery_has_a_label() {
    for code in [
        ErrorCode::REDIRECT,
        ErrorCode::TIMEOUT,
        ErrorCode::CONNECT_FAILED,
        ErrorCode::DNS_FAILED,
        ErrorCode::TLS_FAILED,
        ErrorCode::BLOCKED_ADDRESS,
        ErrorCode::RESPONSE_INVALID,
        ErrorCode::LEASE_EXHAUSTED,
        ErrorCode::INTERNAL,
    ] {
        assert_eq!(error_label(code.as_str()), code.as_str());
    }
    assert_eq!(error_label("HTTP_404"), "HTTP_4XX");
    assert_eq!(error_label("HTTP_503"), "HTTP_5XX");
}
