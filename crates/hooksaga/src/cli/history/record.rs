//! One line of an archive: an event and everything that became of it.
//!
//! What is not named here is kept in the line, which `--json` prints as it is.

use serde::Deserialize;

/// What is read before the rest of a line.
#[derive(Debug, Deserialize)]
pub(super) struct Head {
    pub(super) event: RecordedEvent,
}

#[derive(Debug, Deserialize)]
pub(super) struct RecordedEvent {
    pub(super) id: i64,
    pub(super) tenant: String,
    pub(super) event_type: String,
    pub(super) external_id: Option<String>,
    pub(super) correlation_id: Option<String>,
    pub(super) created_at: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Record {
    pub(super) event: RecordedPayload,
    #[serde(default)]
    pub(super) deliveries: Vec<RecordedDelivery>,
    #[serde(default)]
    pub(super) dead_letters: Vec<RecordedDeadLetter>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RecordedPayload {
    /// Its exact text.
    pub(super) payload: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct RecordedDelivery {
    pub(super) saga_id: i64,
    pub(super) subscription_id: i64,
    pub(super) callback_url: Option<String>,
    #[serde(default)]
    pub(super) generation: u32,
    pub(super) status: String,
    #[serde(default)]
    pub(super) attempt_count: u32,
    #[serde(default)]
    pub(super) attempts: Vec<RecordedAttempt>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RecordedAttempt {
    pub(super) attempt_at: Option<String>,
    pub(super) started_at: Option<String>,
    pub(super) status: Option<String>,
    pub(super) response_status: Option<u16>,
    pub(super) error_code: Option<String>,
    pub(super) duration_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RecordedDeadLetter {
    pub(super) id: i64,
    pub(super) saga_id: i64,
    pub(super) final_error_code: String,
    pub(super) created_at: String,
    pub(super) requeued_saga_id: Option<i64>,
}

/// The statuses of an event's deliveries, for a list.
#[derive(Debug, Deserialize)]
pub(super) struct Outline {
    #[serde(default)]
    pub(super) deliveries: Vec<Status>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Status {
    pub(super) status: String,
}

impl Outline {
    /// `2 Completed, 1 DeadLettered`.
    pub(super) fn text(&self) -> String {
        let mut counts: Vec<(&str, usize)> = Vec::new();
        for Status { status } in &self.deliveries {
            match counts.iter_mut().find(|(known, _)| known == status) {
                Some((_, count)) => *count += 1,
                None => counts.push((status, 1)),
            }
        }
        let counts: Vec<String> = counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
        if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_counted_in_the_order_of_their_coming() {
        let line = r#"{"deliveries": [{"status": "Completed"}, {"status": "DeadLettered"}, {"status": "Completed"}]}"#;
        let outline: Outline = serde_json::from_str(line).expect("an outline");
        assert_eq!(outline.text(), "2 Completed, 1 DeadLettered");
        assert_eq!(Outline { deliveries: vec![] }.text(), "none");
    }
}
