//! Small values: statuses, error codes, times.

use super::{durations, timestamps};
use hooksaga_saga::{ErrorCode, JobStatus, SagaStatus, Timestamp};
use proptest::prelude::*;
use std::time::Duration;

#[test]
fn status_names_are_those_of_the_specification() {
    let sagas: Vec<&str> = SagaStatus::ALL.iter().map(|status| status.as_str()).collect();
    assert_eq!(sagas, ["Pending", "InProgress", "PendingRetry", "Completed", "DeadLettered"]);
    let jobs: Vec<&str> = JobStatus::ALL.iter().map(|status| status.as_str()).collect();
    assert_eq!(jobs, ["Pending", "Leased", "Completed", "Failed"]);
    let active: Vec<&JobStatus> = JobStatus::ALL.iter().filter(|status| status.is_active()).collect();
    assert_eq!(active, [&JobStatus::Pending, &JobStatus::Leased]);
}

#[test]
fn status_names_round_trip() {
    for status in SagaStatus::ALL {
        assert_eq!(status.to_string().parse(), Ok(*status));
    }
    for status in JobStatus::ALL {
        assert_eq!(status.to_string().parse(), Ok(*status));
    }
}

#[test]
fn unreachable_means_no_answer_in_time() {
    let unreachable = ["TIMEOUT", "CONNECT_FAILED", "DNS_FAILED", "TLS_FAILED"];
    let reachable =
        ["REDIRECT", "BLOCKED_ADDRESS", "RESPONSE_INVALID", "LEASE_EXHAUSTED", "INTERNAL", "HTTP_504"];
    assert!(unreachable.iter().all(|code| ErrorCode::from_stored((*code).to_owned()).means_unreachable()));
    assert!(!reachable.iter().any(|code| ErrorCode::from_stored((*code).to_owned()).means_unreachable()));
    assert!(ErrorCode::TIMEOUT.means_unreachable() && !ErrorCode::http(504).means_unreachable());
}

/// The fixed codes are those of the interface, and those of verifications.
#[test]
fn error_codes_are_those_of_the_interface() {
    let all: Vec<&str> = ErrorCode::ALL.iter().map(ErrorCode::as_str).collect();
    let interface = [
        "REDIRECT",
        "TIMEOUT",
        "CONNECT_FAILED",
        "DNS_FAILED",
        "TLS_FAILED",
        "BLOCKED_ADDRESS",
        "RESPONSE_INVALID",
        "LEASE_EXHAUSTED",
        "SUBSCRIPTION_DELETED",
        "INTERNAL",
        "CHALLENGE_MISMATCH",
    ];
    assert_eq!(all, interface);
    let ends: Vec<&ErrorCode> = ErrorCode::ALL.iter().filter(|code| code.is_final()).collect();
    assert_eq!(ends, [&ErrorCode::SUBSCRIPTION_DELETED]);
    let statuses: Vec<u16> = (100..=999).filter(|status| ErrorCode::http(*status).is_final()).collect();
    assert_eq!(statuses, [410]);
}

proptest! {
    #[test]
    fn other_names_are_refused(text in "[A-Za-z ]{0,14}") {
        let known = SagaStatus::ALL.iter().any(|status| status.as_str() == text);
        prop_assert_eq!(text.parse::<SagaStatus>().is_ok(), known);
        let known = JobStatus::ALL.iter().any(|status| status.as_str() == text);
        match text.parse::<JobStatus>() {
            Ok(status) => prop_assert!(known && status.as_str() == text),
            Err(error) => prop_assert!(!known && error.to_string().contains(&text), "{}", error),
        }
    }

    /// A code can always be stored, and comes back as it was.
    #[test]
    fn stored_codes_fit_and_come_back(text in "\\PC{0,130}") {
        let code = ErrorCode::from_stored(text.clone());
        let kept: String = text.chars().take(ErrorCode::MAX_LEN).collect();
        prop_assert_eq!(code.as_str(), &kept);
        prop_assert_eq!(&ErrorCode::from_stored(kept), &code);
        prop_assert_eq!(code.to_string(), code.as_str());
    }

    #[test]
    fn http_codes_name_the_status(status: u16) {
        let code = ErrorCode::http(status);
        prop_assert_eq!(code.as_str(), format!("HTTP_{status}"));
        prop_assert_eq!(ErrorCode::from_stored(code.as_str().to_owned()), code);
    }

    #[test]
    fn times_stay_in_range(micros: i64) {
        let expected = micros.min(Timestamp::MAX.as_micros());
        prop_assert_eq!(Timestamp::from_micros(micros).as_micros(), expected);
    }

    /// Exact up to the end of time, however early the start and however absurd the delay.
    #[test]
    fn after_is_exact(time in timestamps(), delay in durations()) {
        let exact = i128::from(time.as_micros()) + i128::try_from(delay.as_micros()).unwrap();
        let expected = exact.min(Timestamp::MAX.as_micros().into());
        prop_assert_eq!(i128::from(time.after(delay).as_micros()), expected);
    }

    /// Exact over the whole range, and never negative.
    #[test]
    fn since_is_the_distance(a in timestamps(), b in timestamps()) {
        let (early, late) = (a.min(b), a.max(b));
        prop_assert!(early.since(late).is_zero());
        let distance = i128::from(late.as_micros()) - i128::from(early.as_micros());
        prop_assert_eq!(i128::try_from(late.since(early).as_micros()).unwrap(), distance);
    }
}

/// A delay that alone is longer than an `i64` of microseconds still adds up exactly.
#[test]
fn the_longest_way_there_is() {
    let whole_range = Duration::from_micros(u64::MAX);
    assert_eq!(Timestamp::from_micros(i64::MIN).after(whole_range), Timestamp::MAX);
    let to_zero = Duration::from_micros(i64::MIN.unsigned_abs());
    assert_eq!(Timestamp::from_micros(i64::MIN).after(to_zero), Timestamp::from_micros(0));
}
