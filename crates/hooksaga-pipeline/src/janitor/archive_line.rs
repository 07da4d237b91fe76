//! A line of the archive: an event with its deliveries, their attempts, and its dead letters. Enough to append the event
//! again by hand: its payload is a string with its exact text.

use crate::caretaker::rfc_3339;
use hooksaga_store::{ArchivedDelivery, ArchivedEvent, Attempt};
use serde::Serialize;

/// Lines as they grow: an event may have more deliveries than fit into memory.
#[derive(Debug, Default)]
pub(super) struct ArchiveLines {
    text: Vec<u8>,
    /// Of the line that is begun; they come behind its deliveries.
    letters: Vec<u8>,
    has_delivery: bool,
}

impl ArchiveLines {
    /// Begins a line.
    pub(super) fn begin(&mut self, event: &ArchivedEvent) {
        self.text.extend_from_slice(b"{\"event\":");
        write(
            &mut self.text,
            &ArchiveLineEvent {
                id: event.id.0,
                tenant: &event.tenant,
                event_type: &event.event_type,
                external_id: event.external_id.as_deref(),
                correlation_id: &event.correlation_id,
                created_at: rfc_3339(event.created_at),
                payload: &event.payload,
            },
        );
        self.text.extend_from_slice(b",\"deliveries\":[");
        self.has_delivery = false;
        self.letters.clear();
    }

    /// Adds a delivery to the line that is begun.
    pub(super) fn delivery(&mut self, delivery: &ArchivedDelivery) {
        if std::mem::replace(&mut self.has_delivery, true) {
            self.text.push(b',');
        }
        write(&mut self.text, &ArchiveLineDelivery::from(delivery));
        if let Some(letter) = &delivery.dead_letter {
            if !self.letters.is_empty() {
                self.letters.push(b',');
            }
            let view = LetterView {
                id: letter.id.0,
                saga_id: delivery.saga_id.0,
                final_error_code: letter.final_error_code.as_str(),
                created_at: rfc_3339(letter.created_at),
                requeued_saga_id: letter.requeued_saga_id.map(|id| id.0),
            };
            write(&mut self.letters, &view);
        }
    }

    /// Ends the line that is begun.
    pub(super) fn end(&mut self) {
        self.text.extend_from_slice(b"],\"dead_letters\":[");
        self.text.append(&mut self.letters);
        self.text.extend_from_slice(b"]}\n");
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// What there is so far.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.text)
    }
}

fn write(text: &mut Vec<u8>, view: &impl Serialize) {
    serde_json::to_writer(text, view).expect("plain structs can be written to memory");
}

#[derive(Serialize)]
struct ArchiveLineEvent<'a> {
    id: i64,
    tenant: &'a str,
    event_type: &'a str,
    external_id: Option<&'a str>,
    correlation_id: &'a str,
    created_at: String,
    payload: &'a str,
}

#[derive(Serialize)]
struct ArchiveLineDelivery<'a> {
    saga_id: i64,
    subscription_id: i64,
    callback_url: &'a str,
    generation: u32,
    status: &'static str,
    attempt_count: u32,
    max_retry_limit: u32,
    final_error_code: Option<&'a str>,
    created_at: String,
    updated_at: String,
    attempts: Vec<ArchiveLineAttempt<'a>>,
}

impl<'a> From<&'a ArchivedDelivery> for ArchiveLineDelivery<'a> {
    fn from(delivery: &'a ArchivedDelivery) -> Self {
        Self {
            saga_id: delivery.saga_id.0,
            subscription_id: delivery.subscription_id.0,
            callback_url: &delivery.callback_url,
            generation: delivery.generation,
            status: delivery.status.as_str(),
            attempt_count: delivery.attempt_count,
            max_retry_limit: delivery.max_retry_limit,
            final_error_code: delivery.final_error_code.as_ref().map(|code| code.as_str()),
            created_at: rfc_3339(delivery.created_at),
            updated_at: rfc_3339(delivery.updated_at),
            attempts: delivery.attempts.iter().map(ArchiveLineAttempt::from).collect(),
        }
    }
}

#[derive(Serialize)]
struct ArchiveLineAttempt<'a> {
    job_id: i64,
    attempt_at: String,
    started_at: Option<String>,
    callback_url: Option<&'a str>,
    status: &'static str,
    response_status: Option<u16>,
    error_code: Option<&'a str>,
    duration_ms: Option<u32>,
    response_excerpt: Option<&'a str>,
    lease_resets: u32,
}

impl<'a> From<&'a Attempt> for ArchiveLineAttempt<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        Self {
            job_id: attempt.job_id.0,
            attempt_at: rfc_3339(attempt.attempt_at),
            started_at: attempt.started_at.map(rfc_3339),
            callback_url: attempt.callback_url.as_deref(),
            status: attempt.status.as_str(),
            response_status: attempt.response_status,
            error_code: attempt.error_code.as_ref().map(|code| code.as_str()),
            duration_ms: attempt.duration_ms,
            response_excerpt: attempt.response_excerpt.as_deref(),
            lease_resets: attempt.lease_resets,
        }
    }
}

#[derive(Serialize)]
struct LetterView<'a> {
    id: i64,
    saga_id: i64,
    final_error_code: &'a str,
    created_at: String,
    requeued_saga_id: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::{
        DeadLetterId, ErrorCode, EventId, JobId, JobStatus, SagaId, SagaStatus, SubscriptionId, Timestamp,
    };
    use hooksaga_store::ArchivedLetter;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn a_line_has_everything_under_the_names_of_the_api() {
        let at = Timestamp::from_micros(1_769_860_800_123_456);
        let time = "2026-01-31T12:00:00.123456Z";
        let event = ArchivedEvent {
            id: EventId(17),
            tenant: "acme".to_owned(),
            event_type: "order.created".to_owned(),
            external_id: None,
            correlation_id: "c-1".to_owned(),
            created_at: at,
            payload: Arc::from("{ \"a\": 1.0,\n\"a\":\"é\" }"),
        };
        let delivery = ArchivedDelivery {
            saga_id: SagaId(5),
            event_id: event.id,
            subscription_id: SubscriptionId(3),
            callback_url: "https://example.com/".to_owned(),
            generation: 0,
            status: SagaStatus::DeadLettered,
            attempt_count: 1,
            max_retry_limit: 1,
            final_error_code: Some(ErrorCode::http(500)),
            created_at: at,
            updated_at: at,
            attempts: vec![Attempt {
                job_id: JobId(7),
                attempt_at: at,
                started_at: Some(at),
                callback_url: Some("https://example.com/".to_owned()),
                retry_at: None,
                status: JobStatus::Failed,
                response_status: Some(500),
                error_code: Some(ErrorCode::http(500)),
                duration_ms: Some(12),
                response_excerpt: Some("no\n\"".to_owned()),
                lease_resets: 0,
            }],
            dead_letter: Some(ArchivedLetter {
                id: DeadLetterId(2),
                final_error_code: ErrorCode::http(500),
                created_at: at,
                requeued_saga_id: Some(SagaId(6)),
            }),
        };
        let again = ArchivedDelivery {
            saga_id: SagaId(6),
            generation: 1,
            dead_letter: None,
            attempts: vec![],
            ..delivery.clone()
        };
        let mut lines = ArchiveLines::default();
        lines.begin(&event);
        lines.delivery(&delivery);
        lines.delivery(&again);
        lines.end();
        lines.begin(&event);
        lines.end();
        assert!(lines.len() > 0);
        let text = String::from_utf8(lines.take()).expect("UTF-8");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let of_event = json!({
            "id": 17, "tenant": "acme", "event_type": "order.created", "external_id": null, "correlation_id": "c-1",
            "created_at": time, "payload": "{ \"a\": 1.0,\n\"a\":\"é\" }",
        });
        let saga = |id: i64, generation: u32, attempts: serde_json::Value| {
            json!({
                "saga_id": id, "subscription_id": 3, "callback_url": "https://example.com/", "generation": generation,
                "status": "DeadLettered", "attempt_count": 1, "max_retry_limit": 1, "final_error_code": "HTTP_500",
                "created_at": time, "updated_at": time, "attempts": attempts,
            })
        };
        let attempt = json!({
            "job_id": 7, "attempt_at": time, "started_at": time, "callback_url": "https://example.com/",
            "status": "Failed", "response_status": 500, "error_code": "HTTP_500", "duration_ms": 12,
            "response_excerpt": "no\n\"", "lease_resets": 0,
        });
        let letter = json!({
            "id": 2, "saga_id": 5, "final_error_code": "HTTP_500", "created_at": time, "requeued_saga_id": 6,
        });
        assert_eq!(
            lines,
            [
                json!({
                    "event": of_event, "dead_letters": [letter],
                    "deliveries": [saga(5, 0, json!([attempt])), saga(6, 1, json!([]))],
                }),
                json!({ "event": of_event, "deliveries": [], "dead_letters": [] }),
            ]
        );
    }
}
