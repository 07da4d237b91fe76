//! Everything that commands print for people and scripts: lines, tables, times, colours, progress.
//!
//! A closed pipe (`hooksaga keys list | head -1`) is not an error: nobody wants the rest. Anything else that keeps output
//! from being written (a full disk) is: the program goes on, and its end is a failure, see [`lost`].

mod color;
mod progress;
mod table;
mod time;

pub(crate) use color::{Color, Painter, wants_colors};
pub(crate) use progress::ProgressBar;
pub(crate) use table::{Cell, Table, facts, table};
pub(crate) use time::{Now, a_little_before, rfc3339, well_before};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{self, Write},
    sync::OnceLock,
};

/// The first failure to write to stdout.
static LOST: OnceLock<String> = OnceLock::new();

/// Prints a line on stdout.
pub(crate) fn line(text: impl AsRef<str>) {
    try_line(text);
}

/// Prints a line of a long list: whether it could be written.
pub(crate) fn try_line(text: impl AsRef<str>) -> bool {
    // It ends with a line break, at which stdout flushes by itself.
    let written = writeln!(io::stdout().lock(), "{}", text.as_ref());
    written.inspect_err(note_lost).is_ok()
}

fn note_lost(error: &io::Error) {
    if error.kind() != io::ErrorKind::BrokenPipe {
        LOST.get_or_init(|| error.to_string());
    }
}

/// Why something that was printed on stdout did not arrive there, if so.
pub(crate) fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

/// Whether whoever read stdout through a pipe has gone. For what prints now and then: a write would find out only later.
pub(crate) fn has_no_reader() -> bool {
    let out = io::stdout();
    let mut looked_at = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut looked_at, Some(&at_once)).is_ok() && looked_at[0].revents().contains(PollFlags::ERR)
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

/// Cleans text that must stay on one line.
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
