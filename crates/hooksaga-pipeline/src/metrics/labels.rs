//! The labels of the metrics, each with a bounded set of values.

use super::{IngestResult, VerificationResult};
use hooksaga_saga::ErrorCode;
use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabel {
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AttemptLabels {
    pub(super) outcome: &'static str,
    pub(super) error_code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StatusLabel {
    pub(super) status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OutcomeLabel {
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReasonLabel {
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KindLabel {
    pub(super) kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StageLabel {
    pub(super) stage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ErrorLabels {
    pub(super) stage: &'static str,
    pub(super) kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) method: &'static str,
    pub(super) route: String,
    pub(super) status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RouteLabels {
    pub(super) method: &'static str,
    pub(super) route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct QueueLabel {
    pub(super) queue: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StateLabel {
    pub(super) state: &'static str,
}

/// What an attempt can fail with, as labels: statuses by their class.
pub(super) fn error_codes() -> impl Iterator<Item = &'static str> {
    ["HTTP_4XX", "HTTP_5XX"].into_iter().chain(fixed_codes()).chain(["OTHER"])
}

/// A missing challenge fails a verification, never an attempt.
fn fixed_codes() -> impl Iterator<Item = &'static str> {
    ErrorCode::ALL.iter().filter(|code| **code != ErrorCode::CHALLENGE_MISMATCH).map(ErrorCode::as_str)
}

pub(super) fn error_label(code: &str) -> &'static str {
    match code {
        _ if code.starts_with("HTTP_4") => "HTTP_4XX",
        _ if code.starts_with("HTTP_5") => "HTTP_5XX",
        _ => fixed_codes().find(|known| *known == code).unwrap_or("OTHER"),
    }
}

/// A client may send any word as its method.
pub(super) fn method_label(method: &str) -> &'static str {
    ["GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"]
        .into_iter()
        .find(|known| *known == method)
        .unwrap_or("OTHER")
}

/// What an error of the database is.
pub(super) const TRANSIENT: &str = "transient";
pub(super) const OTHER: &str = "other";
/// The stage of requests to the API.
pub(super) const API: &str = "api";

pub(super) const DELIVERED: AttemptLabels = AttemptLabels { outcome: "delivered", error_code: "none" };

pub(super) fn failed(error_code: &'static str) -> AttemptLabels {
    AttemptLabels { outcome: "failed", error_code }
}

pub(super) fn result_label(result: IngestResult) -> ResultLabel {
    let result = match result {
        IngestResult::Created => "created",
        IngestResult::Duplicate => "duplicate",
        IngestResult::Conflict => "conflict",
        IngestResult::Overloaded => "overloaded",
        IngestResult::Failed => "failed",
    };
    ResultLabel { result }
}

pub(super) fn outcome_label(result: VerificationResult) -> OutcomeLabel {
    let outcome = match result {
        VerificationResult::Verified => "verified",
        VerificationResult::Retry => "retry",
        VerificationResult::Failed => "failed",
    };
    OutcomeLabel { outcome }
}
