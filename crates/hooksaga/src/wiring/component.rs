//! The components that a process can run.

use hooksaga_store::Stage;
use std::{fmt, str::FromStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Component {
    Api,
    Verifier,
    Router,
    Orchestrator,
    Worker,
    Cleaner,
    DeadLetters,
    Caretaker,
    Janitor,
}

impl Component {
    pub(crate) const ALL: &'static [Self] = &[
        Self::Api,
        Self::Verifier,
        Self::Router,
        Self::Orchestrator,
        Self::Worker,
        Self::Cleaner,
        Self::DeadLetters,
        Self::Caretaker,
        Self::Janitor,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Verifier => "verifier",
            Self::Router => "router",
            Self::Orchestrator => "orchestrator",
            Self::Worker => "worker",
            Self::Cleaner => "cleaner",
            Self::DeadLetters => "deadletters",
            Self::Caretaker => "caretaker",
            Self::Janitor => "janitor",
        }
    }

    /// The stages that it runs, and so can be woken for.
    pub(super) const fn stages(self) -> &'static [Stage] {
        match self {
            Self::Api | Self::Cleaner | Self::Janitor => &[],
            Self::Verifier => &[Stage::Verifier],
            Self::Router => &[Stage::Router],
            Self::Orchestrator => &[Stage::Schedule, Stage::Apply],
            Self::Worker => &[Stage::Worker, Stage::Resume],
            Self::DeadLetters => &[Stage::DeadLetters, Stage::Redrives],
            Self::Caretaker => &[Stage::Caretaker],
        }
    }

    /// Whether it encrypts or decrypts signing secrets.
    pub(crate) const fn needs_secret_key(self) -> bool {
        matches!(self, Self::Api | Self::Verifier | Self::Worker)
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Component {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|component| component.as_str() == text.trim()).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|component| component.as_str()).collect();
            format!("there is no component {text:?}; the components are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_components_together_run_every_stage() {
        let mut stages: Vec<Stage> = Component::ALL.iter().flat_map(|c| c.stages()).copied().collect();
        stages.sort();
        assert_eq!(stages, Stage::ALL);
    }

    #[test]
    fn names_read_back_and_others_are_named() {
        for component in Component::ALL {
            assert_eq!(component.as_str().parse(), Ok(*component));
        }
        assert!("wroker".parse::<Component>().expect_err("none").contains("wroker"));
    }
}
