//! Cuts a file of events into batches that the API takes.

use super::{Event, Given};
use crate::error::{CliError, CliResult};
use serde_json::value::RawValue;
use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

/// The API's limit of events per batch.
const MOST_EVENTS: usize = 1000;
/// Below the server's default of 8 MiB, so that the frame around the events fits too.
const MOST_BYTES: usize = 4 << 20;

/// One event, and the line that it stands on.
pub(super) struct EventLine {
    pub(super) number: u64,
    pub(super) event: Event,
}

/// A line that cannot be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadLine {
    pub(super) number: u64,
    pub(super) problem: String,
}

/// The lines of a file, in batches.
pub(super) struct LineBatches<'a> {
    input: Box<dyn BufRead + Send>,
    given: Given<'a>,
    /// Lines read so far.
    pub(super) line: u64,
    /// Bytes read so far.
    pub(super) read: u64,
}

/// A batch to send, with the lines between that cannot be.
#[derive(Default)]
pub(super) struct LineBatch {
    pub(super) lines: Vec<EventLine>,
    pub(super) bad: Vec<BadLine>,
}

impl<'a> LineBatches<'a> {
    /// Opens a file (`-`: standard input), and tells its size if it has one.
    pub(super) fn open(path: &Path, given: Given<'a>) -> CliResult<(Self, Option<u64>)> {
        if path == Path::new("-") {
            return Ok((Self::new(Box::new(BufReader::new(io::stdin())), given), None));
        }
        let cannot = |error| CliError::new(format!("cannot read {}: {error}", path.display()));
        let file = File::open(path).map_err(cannot)?;
        let size = file.metadata().map_err(cannot)?;
        let size = size.is_file().then_some(size.len());
        Ok((Self::new(Box::new(BufReader::new(file)), given), size))
    }

    fn new(input: Box<dyn BufRead + Send>, given: Given<'a>) -> Self {
        Self { input, given, line: 0, read: 0 }
    }

    /// The next batch; nothing at the end.
    pub(super) fn next(&mut self) -> CliResult<Option<LineBatch>> {
        let mut batch = LineBatch::default();
        let mut bytes = 0;
        while batch.lines.len() < MOST_EVENTS && bytes < MOST_BYTES {
            let mut text = Vec::new();
            let length = self
                .input
                .read_until(b'\n', &mut text)
                .map_err(|error| CliError::new(format!("cannot read past line {}: {error}", self.line)))?;
            if length == 0 {
                break;
            }
            self.line += 1;
            self.read += length as u64;
            bytes += length;
            if text.trim_ascii().is_empty() {
                continue;
            }
            match parse(&text, self.given) {
                Ok(event) => batch.lines.push(EventLine { number: self.line, event }),
                Err(error) => {
                    batch.bad.push(BadLine { number: self.line, problem: in_words(&error) });
                }
            }
        }
        Ok((!batch.lines.is_empty() || !batch.bad.is_empty()).then_some(batch))
    }
}

fn in_words(error: &serde_json::Error) -> String {
    // The position inside the line; its own number is said already.
    let said = error.to_string().replace(" line 1 column", " column");
    if error.is_data() { said } else { format!("not JSON: {said}") }
}

fn parse(text: &[u8], given: Given<'_>) -> Result<Event, serde_json::Error> {
    let mut event = match given.event_type {
        None => serde_json::from_slice(text)?,
        Some(event_type) => {
            let payload: Box<RawValue> = serde_json::from_slice(text)?;
            Event { event_type: event_type.to_owned(), payload, external_id: None, tenant: None }
        }
    };
    event.tenant = event.tenant.or_else(|| given.tenant.map(ToString::to_string));
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(text: String, event_type: Option<&str>) -> LineBatches<'_> {
        LineBatches::new(Box::new(io::Cursor::new(text)), Given { event_type, tenant: None })
    }

    #[test]
    fn a_line_may_name_another_tenant_than_the_command_line() {
        let tenant = "acme".parse().expect("a tenant");
        let given = Given { event_type: None, tenant: Some(&tenant) };
        let of = |line: &str| parse(line.as_bytes(), given).expect("an event").tenant;
        assert_eq!(of(r#"{"event_type":"a","payload":1}"#).as_deref(), Some("acme"));
        assert_eq!(of(r#"{"event_type":"a","payload":1,"tenant":"other"}"#).as_deref(), Some("other"));
    }

    #[test]
    fn lines_are_events_or_with_a_type_payloads() {
        let text = "{\"event_type\":\"a\",\"payload\":{\"x\": 1}}\n\n  \n[1,  2]\n";
        let first = batches(text.to_owned(), None).next().expect("reads").expect("a batch");
        assert_eq!((first.lines.len(), first.lines[0].number), (1, 1));
        assert_eq!(first.lines[0].event.payload.get(), "{\"x\": 1}");
        assert_eq!(first.bad.len(), 1);
        assert_eq!(first.bad[0].number, 4);

        let typed = batches(text.to_owned(), Some("t")).next().expect("reads").expect("a batch");
        let payloads: Vec<&str> = typed.lines.iter().map(|line| line.event.payload.get()).collect();
        assert_eq!(payloads, ["{\"event_type\":\"a\",\"payload\":{\"x\": 1}}", "[1,  2]"]);
    }

    #[test]
    fn a_bad_line_is_called_what_it_is() {
        let text = "oops\n{\"event_type\":\"a\"\n{\"event_type\":\"a\"}\n".to_owned();
        let bad = batches(text, None).next().expect("reads").expect("a batch").bad;
        let said = bad.iter().map(|line| line.problem.as_str()).collect::<Vec<_>>();
        assert!(said[0].starts_with("not JSON: ") && said[1].starts_with("not JSON: "), "{said:?}");
        assert_eq!(said[2], "missing field `payload` at column 18");
    }

    #[test]
    fn a_batch_has_at_most_a_thousand_events_and_four_mebibytes_of_them() {
        let mut many = batches("1\n".repeat(2500), Some("t"));
        let mut sizes = Vec::new();
        while let Some(batch) = many.next().expect("reads") {
            sizes.push(batch.lines.len());
        }
        assert_eq!(sizes, [1000, 1000, 500]);

        let large = format!("\"{}\"\n", "x".repeat(3 << 20));
        let mut large = batches(large.repeat(3), Some("t"));
        assert_eq!(large.next().expect("reads").expect("a batch").lines.len(), 2);
        assert_eq!(large.next().expect("reads").expect("a batch").lines.len(), 1);
        assert!(large.next().expect("reads").is_none());
    }
}
