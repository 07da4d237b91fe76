//! Everything that commands print for people and scripts: lines, tables, times, colours, progress.
//!
//! A closed pipe (`hooksaga keys list | head -1`) is not an error: what cannot be written is dropped.

mod color;
mod progress;
mod table;
mod time;

pub(crate) use color::{Color, Painter};
pub(crate) use progress::ProgressBar;
pub(crate) use table::{Cell, Table, facts, table};
pub(crate) use time::{Now, rfc3339};

use std::io::{self, Write};

/// Prints a line on stdout.
pub(crate) fn line(text: impl AsRef<str>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{}", text.as_ref());
    let _ = out.flush();
}

/// The same for long lists: whether anybody still reads it.
pub(crate) fn try_line(text: impl AsRef<str>) -> bool {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", text.as_ref()).is_ok()
}

/// Prints a line on stderr: why the program ended, or a remark that must not mix with the result.
pub(crate) fn note(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "{}", text.as_ref());
}

/// Text from elsewhere without control characters, which would let it take over the terminal. Line breaks and tabs
/// stay.
pub(crate) fn clean(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}")
}

/// The same for text that must stay on one line.
pub(crate) fn clean_line(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// A number with its noun: `1 event`, `2 events`, `2 deliveries`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if number == 1 => format!("1 {noun}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_elsewhere_cannot_take_over_the_terminal() {
        assert_eq!(clean("a\u{1b}[31m\n\tb\r"), "a\u{fffd}[31m\n\tb\u{fffd}");
        assert_eq!(clean_line("a\nb\u{9b}"), "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn nouns_follow_their_number() {
        let said = [(1, "delivery"), (0, "delivery"), (2, "event")].map(|(number, noun)| count(number, noun));
        assert_eq!(said, ["1 delivery", "0 deliveries", "2 events"]);
    }
}
