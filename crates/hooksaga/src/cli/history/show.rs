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

const TITLES: [&str; 6] = ["ID", "CREATED", "TENANT", "TYPE", "EXTERNAL ID", "DELIVERIES"];

/// So many rows are waited for: a list has no end that could be.
const MEASURED: usize = 500;

/// A list of events, a line each. The columns are as wide as its first rows need; a later row that needs more widens them for
/// the rest.
pub(super) struct Rows<W> {
    /// Prints a line; false when nobody reads it any more.
    print: W,
    waiting: Vec<[String; 6]>,
    widths: [usize; 6],
    measured: bool,
}

impl<W: FnMut(&str) -> bool> Rows<W> {
    pub(super) fn new(print: W) -> Self {
        let widths = TITLES.map(str::len);
        Self { print, waiting: Vec::new(), widths, measured: false }
    }

    /// One event; false when nobody reads it any more.
    pub(super) fn add(&mut self, line: &str, event: &RecordedEvent) -> CliResult<bool> {
        let outline: Outline = parsed(line)?;
        let row = [
            event.id.to_string(),
            event.created_at.clone(),
            event.tenant.clone(),
            event.event_type.clone(),
            event.external_id.clone().unwrap_or_else(|| "-".to_owned()),
            outline.text(),
        ];
        let row = row.map(|cell| clean_line(&cell));
        for (width, cell) in self.widths.iter_mut().zip(&row) {
            *width = (*width).max(cell.chars().count());
        }
        if self.measured {
            return Ok(self.print(&row));
        }
        self.waiting.push(row);
        Ok(self.waiting.len() < MEASURED || self.end())
    }

    /// Prints what has waited.
    pub(super) fn end(&mut self) -> bool {
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return true;
        }
        self.measured = true;
        self.print(&TITLES.map(str::to_owned)) && waiting.iter().all(|row| self.print(row))
    }

    fn print(&mut self, row: &[String; 6]) -> bool {
        let cells = row.iter().zip(self.widths).map(|(cell, width)| format!("{cell:<width$}"));
        (self.print)(cells.collect::<Vec<_>>().join("  ").trim_end())
    }
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
    fn rows_line_up_and_a_wider_one_widens_the_rest() {
        let mut lines = Vec::new();
        let mut rows = Rows::new(|line: &str| {
            lines.push(line.to_owned());
            true
        });
        let event = |id: i64, event_type: &str| RecordedEvent {
            id,
            tenant: "acme".to_owned(),
            event_type: event_type.to_owned(),
            external_id: None,
            correlation_id: None,
            created_at: "2026-01-31T12:00:00Z".to_owned(),
        };
        let (line, long) = (r#"{"deliveries":[]}"#, "x".repeat(40));
        let mut add = |id, event_type| rows.add(line, &event(id, event_type)).expect("a row");
        for id in 1..=MEASURED as i64 {
            assert!(add(id, if id == 2 { "hooksaga.subscription.verified" } else { "t" }));
        }
        assert!(add(501, "t") && add(502, &long) && add(503, "t"));
        assert!(rows.end());
        let place = |index: usize| lines[index].find(" none").expect("the last column") + 1;
        assert_eq!(lines[0].find("DELIVERIES"), Some(place(1)), "{}\n{}", lines[0], lines[1]);
        assert!(lines[0].starts_with("ID   CREATED               TENANT  TYPE "), "{}", lines[0]);
        assert_eq!([place(2), place(501)], [place(1); 2]);
        assert_eq!([place(502), place(503)], [place(1) + 10; 2]);
    }

    #[test]
    fn a_list_that_nobody_reads_any_more_ends() {
        let mut rows = Rows::new(|_: &str| false);
        let event = RecordedEvent {
            id: 1,
            tenant: "acme".to_owned(),
            event_type: "t".to_owned(),
            external_id: None,
            correlation_id: None,
            created_at: String::new(),
        };
        let printed = |rows: &mut Rows<_>| rows.add(r#"{"deliveries":[]}"#, &event).expect("a row");
        assert!((1..MEASURED).all(|_| printed(&mut rows)));
        assert!(!printed(&mut rows) && !printed(&mut rows));
    }

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
