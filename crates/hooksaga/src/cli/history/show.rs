//! Archived events for people.

use super::record::{Outline, Record, RecordedAttempt, RecordedDelivery, RecordedEvent};
use crate::{
    error::{CliError, CliResult},
    output::{self, Cell, Now, Table, clean, clean_line},
};
use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, IsTerminal as _},
};

/// The columns of a list. Their widths are fixed: a list has no end that could be waited for.
pub(super) const TITLES: &str = "ID         CREATED                      TENANT            TYPE                      EXTERNAL ID               DELIVERIES";

/// One line of a list; false when nobody reads it any more.
pub(super) fn row(line: &str, event: &RecordedEvent) -> CliResult<bool> {
    let outline: Outline = parsed(line)?;
    let text = format!(
        "{:<10} {:<28} {:<17} {:<25} {:<25} {}",
        event.id,
        event.created_at,
        event.tenant,
        event.event_type,
        event.external_id.as_deref().unwrap_or("-"),
        outline.text()
    );
    Ok(output::try_line(clean_line(&text)))
}

/// The same for scripts.
pub(super) fn head_json(event: &RecordedEvent) -> CliResult<bool> {
    let head = serde_json::json!({
        "id": event.id,
        "tenant": event.tenant,
        "event_type": event.event_type,
        "external_id": event.external_id,
        "correlation_id": event.correlation_id,
        "created_at": event.created_at,
    });
    Ok(json(&head.to_string()))
}

/// A line of JSON; false when nobody reads it any more. On a terminal it cannot take it over.
pub(super) fn json(line: &str) -> bool {
    if line.contains(is_raw_control) && io::stdout().is_terminal() {
        output::try_line(escaped(line))
    } else {
        output::try_line(line)
    }
}

/// A control character that JSON lets stand as it is.
fn is_raw_control(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{9f}')
}

/// The same JSON without such characters: they can only be in strings, where an escape means the same.
fn escaped(line: &str) -> Cow<'_, str> {
    if !line.contains(is_raw_control) {
        return line.into();
    }
    let mut text = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        if is_raw_control(c) {
            let _ = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    text.into()
}

/// One event with everything; false when nobody reads it any more.
pub(super) fn event(is_next: bool, place: &str, line: &str, event: &RecordedEvent) -> CliResult<bool> {
    let record: Record = parsed(line)?;
    let now = Now::local();
    if is_next && !output::try_line("") {
        return Ok(false);
    }
    let facts = vec![
        ("event", event.id.into()),
        ("tenant", (&event.tenant).into()),
        ("type", (&event.event_type).into()),
        ("external id", Cell::optional(event.external_id.as_deref())),
        ("correlation id", Cell::optional(event.correlation_id.as_deref())),
        ("created", now.both(&event.created_at).into()),
        ("archived in", place.into()),
    ];
    output::facts(facts).iter().for_each(output::line);
    output::line("\nPayload");
    output::line(clean(&record.event.payload));
    if record.deliveries.is_empty() {
        output::line("\nIt had no deliveries.");
    }
    for delivery in &record.deliveries {
        show_delivery(delivery);
    }
    if !record.dead_letters.is_empty() {
        output::line("\nDead letters");
        let mut table = Table::new(&["ID", "DELIVERY", "ERROR", "CREATED", "SENT AGAIN AS"]);
        for letter in &record.dead_letters {
            table.row(vec![
                letter.id.into(),
                letter.saga_id.into(),
                (&letter.final_error_code).into(),
                (&letter.created_at).into(),
                Cell::optional(letter.requeued_saga_id.map(|id| id.to_string())),
            ]);
        }
        table.print();
    }
    Ok(true)
}

fn show_delivery(delivery: &RecordedDelivery) {
    let again = if delivery.generation > 0 {
        format!(", sent again ({})", delivery.generation)
    } else {
        String::new()
    };
    output::line("");
    output::line(clean_line(&format!(
        "Delivery {} to {} (subscription {}){again}: {} after {}",
        delivery.saga_id,
        delivery.callback_url.as_deref().unwrap_or("an endpoint that is not recorded"),
        delivery.subscription_id,
        delivery.status,
        output::count(delivery.attempt_count.into(), "attempt"),
    )));
    if delivery.attempts.is_empty() {
        return;
    }
    let mut table = Table::new(&["AT", "STATUS", "RESPONSE", "ERROR", "MS"]);
    for RecordedAttempt { attempt_at, started_at, status, response_status, error_code, duration_ms } in
        &delivery.attempts
    {
        table.row(vec![
            Cell::optional(started_at.as_deref().or(attempt_at.as_deref())),
            status.as_deref().map_or_else(|| Cell::optional(None::<String>), Cell::status),
            Cell::optional(response_status.map(|status| status.to_string())),
            Cell::optional(error_code.as_deref()),
            Cell::optional(duration_ms.map(|duration| duration.to_string())),
        ]);
    }
    table.print();
}

fn parsed<'a, T: serde::Deserialize<'a>>(line: &'a str) -> CliResult<T> {
    serde_json::from_str(line)
        .map_err(|error| CliError::new(format!("a line of the archive is not as expected: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_means_the_same_and_has_no_control_characters() {
        let line = "{\"payload\":\"a\u{7f}b\u{9b}31m\u{9f}\u{a0}ä\"}";
        let safe = escaped(line);
        assert_eq!(safe, "{\"payload\":\"a\\u007fb\\u009b31m\\u009f\u{a0}ä\"}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(value(&safe), value(line));
        assert!(matches!(escaped("{}"), Cow::Borrowed("{}")));
    }
}
