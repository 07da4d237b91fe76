//! Log records as JSON: one flat object per line, written with no allocation and few instructions, since
//! every delivery logs several of them.
//!
//! A line is `timestamp` (UTC, microseconds), `level`, `message`, the event's fields in their order, and
//! `target`. Numbers and booleans stay what they are; whatever has only a text form becomes a string, and so
//! do 128-bit integers, which few readers of JSON can hold. A float that JSON has no number for is `null`, and
//! an absent optional field is left out. Spans are not shown.
//!
//! Every line is valid JSON, whatever the names and values hold. Strings are escaped here and not by `serde_json`: that
//! escapes whole values, and a value with only a text form comes in pieces, as its `Debug` writes them.

use jiff::{Timestamp, fmt::temporal::DateTimePrinter};
use std::{
    cell::Cell,
    fmt::{self, Debug, Write},
};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

const TIME: DateTimePrinter = DateTimePrinter::new().precision(Some(6));

thread_local! {
    /// The memory of the last line, for the next one. It is taken while a line is written: a value that logs
    /// while it is formatted finds an empty string here instead of half a line.
    static LINE: Cell<String> = const { Cell::new(String::new()) };
}

/// Passes events on as lines of JSON, each in one piece: if a value panics, no half line is left before the next record.
pub(super) struct JsonLines<W> {
    clock: fn() -> Timestamp,
    write: W,
}

impl<W: Fn(&str)> JsonLines<W> {
    pub(super) fn new(clock: fn() -> Timestamp, write: W) -> Self {
        Self { clock, write }
    }
}

impl<S: Subscriber, W: Fn(&str) + 'static> Layer<S> for JsonLines<W> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = LINE.take();
        line.clear();
        line.push_str("{\"timestamp\":\"");
        TIME.print_timestamp(&(self.clock)(), &mut line).expect("writing to a String cannot fail");
        line.push_str("\",\"level\":\"");
        line.push_str(event.metadata().level().as_str());
        line.push('"');
        event.record(&mut FieldWriter(&mut line));
        line.push_str(",\"target\":\"");
        push_escaped(&mut line, event.metadata().target());
        line.push_str("\"}\n");
        (self.write)(&line);
        LINE.set(line);
    }
}

/// Appends an event's fields to a line that has a member already.
///
/// A field with the name of one of the record's own members gets an underscore behind it (`level_`): most
/// readers keep only one of two members with the same name. A call that names the same field twice gets both.
struct FieldWriter<'line>(&'line mut String);

impl FieldWriter<'_> {
    fn name(&mut self, field: &Field) {
        let name = field.name();
        self.0.push_str(",\"");
        push_escaped(self.0, name);
        if matches!(name, "timestamp" | "level" | "target") {
            self.0.push('_');
        }
        self.0.push_str("\":");
    }
}

impl Visit for FieldWriter<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.name(field);
        match serde_json::Number::from_f64(value) {
            // Writing to a string cannot fail.
            Some(number) => _ = write!(self.0, "{number}"),
            None => self.0.push_str("null"),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.name(field);
        self.0.push_str(itoa::Buffer::new().format(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.name(field);
        self.0.push_str(itoa::Buffer::new().format(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.name(field);
        self.0.push_str(if value { "true" } else { "false" });
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        self.0.push('"');
        push_escaped(self.0, value);
        self.0.push('"');
    }

    /// Also the message, values with `%`, errors (their `Display`), bytes and 128-bit integers: the trait's
    /// other methods end here.
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.name(field);
        self.0.push('"');
        // Only the value itself can fail; what it has written until then stays.
        let _ = write!(Escaped(self.0), "{value:?}");
        self.0.push('"');
    }
}

/// Escapes what is written to it for the inside of a JSON string.
struct Escaped<'line>(&'line mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        push_escaped(self.0, text);
        Ok(())
    }
}

/// The characters that have to be escaped in a JSON string. All are ASCII, so that a text may be
/// cut before and after each of them.
fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Whether a text has one of them, eight bytes at a time: names and ids are too short for vector instructions.
fn has_special(text: &str) -> bool {
    /// Every byte 1.
    const EACH: u64 = u64::MAX / 255;
    /// The top bit of the word's bytes that are less than `least` (at most 128).
    fn less(word: u64, least: u64) -> u64 {
        word.wrapping_sub(EACH * least) & !word & (EACH << 7)
    }
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let found = words.iter().map(|word| u64::from_le_bytes(*word)).fold(0, |found, word| {
        let quote = word ^ (EACH * u64::from(b'"'));
        let backslash = word ^ (EACH * u64::from(b'\\'));
        found | less(word, 0x20) | less(quote, 1) | less(backslash, 1)
    });
    found != 0 || rest.iter().copied().any(is_special)
}

fn push_escaped(line: &mut String, text: &str) {
    // Nearly every text is clean.
    if !has_special(text) {
        line.push_str(text);
        return;
    }
    let mut clean = 0;
    for (at, byte) in text.bytes().enumerate().filter(|(_, byte)| is_special(*byte)) {
        line.push_str(&text[clean..at]);
        clean = at + 1;
        match byte {
            b'"' => line.push_str("\\\""),
            b'\\' => line.push_str("\\\\"),
            b'\n' => line.push_str("\\n"),
            b'\r' => line.push_str("\\r"),
            b'\t' => line.push_str("\\t"),
            0x08 => line.push_str("\\b"),
            0x0c => line.push_str("\\f"),
            // Writing to a string cannot fail.
            control => _ = write!(line, "\\u{control:04x}"),
        }
    }
    line.push_str(&text[clean..]);
}

#[cfg(test)]
mod tests;
