//! A progress display for people.

use rustix::termios::tcgetwinsize;
use std::io::{self, IsTerminal, Write};

/// A progress display on stderr, only when a person watches.
pub(crate) struct ProgressBar {
    visible: bool,
    /// How much there is to do; `None` if nobody knows.
    total: Option<u64>,
}

impl ProgressBar {
    const WIDTH: u64 = 30;

    pub(crate) fn new(total: Option<u64>) -> Self {
        Self { visible: io::stderr().is_terminal(), total }
    }

    /// Shows that `done` of the total is done, with a remark.
    pub(crate) fn show(&self, done: u64, remark: &str) {
        if self.visible {
            let line = self.render(done, remark);
            let _ = write!(io::stderr().lock(), "\r\x1b[2K{}", cut(&line, width()));
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

/// How many columns the terminal has.
fn width() -> usize {
    // Some report none.
    let size = tcgetwinsize(io::stderr()).ok().filter(|size| size.ws_col > 0);
    size.map_or(80, |size| usize::from(size.ws_col))
}

/// The line as far as it fits: one that wraps could not be removed again. The last column stays free.
fn cut(line: &str, width: usize) -> String {
    line.chars().take(width.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_never_wraps() {
        assert_eq!(cut("[###] 100%  é", 80), "[###] 100%  é");
        assert_eq!(cut("[###] 100%  é", 13), "[###] 100%  ");
        assert_eq!(cut("[###]", 0), "");
        assert!(width() > 0);
    }

    #[test]
    fn progress_never_divides_by_zero_and_ends_full() {
        let bar = |total, done| ProgressBar { visible: true, total }.render(done, "5 events");
        assert_eq!(bar(Some(10), 5), "[###############---------------]  50%  5 events");
        assert!(bar(Some(0), 0).contains("#] 100%"));
        assert!(bar(Some(10), 11).contains("#] 100%"));
        assert_eq!(bar(None, 3), "5 events");
    }
}
