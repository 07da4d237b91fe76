//! What a check found.

use crate::output::{Color, Painter, clean_line};
use hooksaga_store::{StoreError, split_advice};
use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// It could not be looked at from here, which is no fault.
    Untried,
    /// It works, and will hurt some day.
    Warning,
    /// It does not work, or loses something.
    Problem,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Untried => "untried",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }

    const fn color(self) -> Color {
        match self {
            Self::Ok => Color::Good,
            Self::Untried | Self::Warning => Color::Open,
            Self::Problem => Color::Bad,
        }
    }
}

/// One check and what came of it. Its texts hold no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    /// What is the case.
    pub(super) found: String,
    /// What to do about it.
    #[serde(rename = "do")]
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    pub(super) fn untried(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Untried, found: found.into(), advice: Some(advice.into()) }
    }

    pub(super) fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    pub(super) fn problem(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Problem, found: found.into(), advice: Some(advice.into()) }
    }

    /// From a sentence that says both what is the case and, after its last colon or semicolon, what to do.
    pub(super) fn from_line(check: &'static str, verdict: Verdict, line: &str) -> Self {
        let (found, advice) = split_advice(line);
        Self { check, verdict, found, advice }
    }

    /// What a call of the database failed with.
    pub(super) fn from_error(check: &'static str, verdict: Verdict, error: &StoreError) -> Self {
        let (found, advice) = error.with_advice();
        Self { check, verdict, found, advice }
    }

    /// Its lines on a screen.
    pub(super) fn lines(&self, painter: Painter) -> Vec<String> {
        const VERDICT: usize = 8;
        const CHECK: usize = 14;
        let word = self.verdict.word();
        let blanks = " ".repeat(VERDICT.saturating_sub(word.len()) + 1);
        let word = painter.paint(self.verdict.color(), word);
        let mut lines = vec![format!("{word}{blanks}{:<CHECK$} {}", self.check, clean_line(&self.found))];
        if let Some(advice) = &self.advice {
            lines.push(format!("{}-> {}", " ".repeat(VERDICT + CHECK + 2), clean_line(advice)));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_stands_below_what_was_found() {
        let lines =
            Finding::problem("schema", "none yet", "run `hooksaga migrate`").lines(Painter::new(false));
        assert_eq!(
            lines,
            ["problem  schema         none yet", "                        -> run `hooksaga migrate`"]
        );
        assert_eq!(Finding::ok("schema", "version 2").lines(Painter::new(false)).len(), 1);
    }
}
