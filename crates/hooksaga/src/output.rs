//! Everything that commands print for people and scripts.
//!
//! A closed pipe (`hooksaga keys list | head -1`) is not an error: what cannot be written is dropped.

use std::io::{self, IsTerminal, Write};

/// Prints a line on stdout.
pub(crate) fn line(text: impl AsRef<str>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{}", text.as_ref());
    let _ = out.flush();
}

/// Prints a line on stderr: why the program ended, or a remark that must not mix with the result.
pub(crate) fn note(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "{}", text.as_ref());
}

/// A progress display on stderr, only when a person watches.
pub(crate) struct Progress {
    visible: bool,
    /// How much there is to do; nothing if nobody knows.
    total: Option<u64>,
}

impl Progress {
    const WIDTH: u64 = 30;

    pub(crate) fn new(total: Option<u64>) -> Self {
        Self { visible: io::stderr().is_terminal(), total }
    }

    /// Shows that `done` of the total is done, with a remark.
    pub(crate) fn show(&self, done: u64, remark: &str) {
        if self.visible {
            let _ = write!(io::stderr().lock(), "\r\x1b[2K{}", self.render(done, remark));
        }
    }

    /// Removes the display, so that lines can be printed.
    pub(crate) fn clear(&self) {
        if self.visible {
            let _ = write!(io::stderr().lock(), "\r\x1b[2K");
        }
    }

    fn render(&self, done: u64, remark: &str) -> String {
        let Some(total) = self.total else { return remark.to_owned() };
        let share = done.saturating_mul(100).checked_div(total).unwrap_or(100).min(100);
        let bar: String =
            (0..Self::WIDTH).map(|i| if i * 100 < share * Self::WIDTH { '#' } else { '-' }).collect();
        format!("[{bar}] {share:>3}%  {remark}")
    }
}

/// Columns of text, each as wide as its widest cell.
pub(crate) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_never_divides_by_zero_and_ends_full() {
        let bar = |total, done| Progress { visible: true, total }.render(done, "5 events");
        assert_eq!(bar(Some(10), 5), "[###############---------------]  50%  5 events");
        assert!(bar(Some(0), 0).contains("#] 100%"));
        assert!(bar(Some(10), 11).contains("#] 100%"));
        assert_eq!(bar(None, 3), "5 events");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["ID".into(), "NAME".into()], vec!["12345".into(), "x".into()]];
        assert_eq!(table(&rows), ["ID     NAME", "12345  x"]);
    }
}
