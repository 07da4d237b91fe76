//! Colours: only on a terminal, and never where NO_COLOR is set.

use std::{
    borrow::Cow,
    ffi::OsStr,
    io::{self, IsTerminal},
};

/// What a piece of text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Color {
    Plain,
    Good,
    Bad,
    /// May yet turn out well.
    Open,
    /// Of less importance, or a title.
    Faint,
}

impl Color {
    /// The colour of a delivery's or a verification's status.
    pub(crate) fn of_status(status: &str) -> Self {
        match status {
            "Completed" | "verified" => Self::Good,
            "DeadLettered" | "Failed" | "failed" => Self::Bad,
            "PendingRetry" | "pending" => Self::Open,
            _ => Self::Plain,
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "32",
            Self::Bad => "31",
            Self::Open => "33",
            Self::Faint => "2",
        }
    }
}

/// Paints text, or does not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Painter(bool);

impl Painter {
    /// For stdout as it is.
    pub(crate) fn for_stdout() -> Self {
        Self(wants_colors())
    }

    #[cfg(test)]
    pub(crate) fn new(colors: bool) -> Self {
        Self(colors)
    }

    pub(crate) fn paint<'a>(self, color: Color, text: &'a str) -> Cow<'a, str> {
        if !self.0 || color == Color::Plain || text.is_empty() {
            return text.into();
        }
        format!("\x1b[{}m{text}\x1b[0m", color.code()).into()
    }
}

/// Whether stdout is a terminal whose owner wants colours.
pub(crate) fn wants_colors() -> bool {
    let variable = |name| std::env::var_os(name);
    wanted(io::stdout().is_terminal(), variable("NO_COLOR").as_deref(), variable("TERM").as_deref())
}

/// NO_COLOR counts when it is set and not empty, as <https://no-color.org> defines it.
fn wanted(terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty) && term != Some(OsStr::new("dumb"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_whose_owners_want_them() {
        let set = |text| Some(OsStr::new(text));
        assert!(wanted(true, None, set("xterm")));
        assert!(wanted(true, set(""), None), "an empty NO_COLOR does not count");
        assert!(!wanted(true, set("1"), set("xterm")));
        assert!(!wanted(true, None, set("dumb")));
        assert!(!wanted(false, None, set("xterm")));
    }

    #[test]
    fn paint_ends_where_the_text_ends() {
        assert_eq!(Painter(true).paint(Color::Good, "ok"), "\x1b[32mok\x1b[0m");
        assert_eq!(Painter(true).paint(Color::Plain, "ok"), "ok");
        assert_eq!(Painter(false).paint(Color::Bad, "no"), "no");
    }
}
