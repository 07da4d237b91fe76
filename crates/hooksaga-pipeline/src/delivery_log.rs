//! Which deliveries are logged.
//!
//! The lines have the target [`TARGET`] and the fields `stage`, `delivery_status`, `tenant`, `correlation_id`,
//! and `saga_id` and `job_id` where they exist. A stage asks [`DeliveryLog::wants`] before it builds one, so
//! that what is switched off costs a comparison.

use std::{fmt, str::FromStr};
use tracing::Level;

/// The target of all lines about single deliveries.
pub const TARGET: &str = "hooksaga::delivery";

/// How much the stages log about single deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeliveryLog {
    /// Every step of every delivery.
    #[default]
    All,
    /// Failed attempts, dead letters, expired leases, and events that matched no subscription.
    Failures,
    /// Nothing.
    None,
}

impl DeliveryLog {
    /// Whether a line about a step that went well (or not: `failure`) is wanted by this setting and by
    /// anyone who listens.
    pub fn wants(self, failure: bool) -> bool {
        let wanted = match self {
            Self::All => true,
            Self::Failures => failure,
            Self::None => false,
        };
        wanted
            && if failure {
                tracing::enabled!(target: TARGET, Level::WARN)
            } else {
                tracing::enabled!(target: TARGET, Level::INFO)
            }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Failures => "failures",
            Self::None => "none",
        }
    }
}

impl FromStr for DeliveryLog {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::All, Self::Failures, Self::None]
            .into_iter()
            .find(|log| log.as_str() == text)
            .ok_or_else(|| format!("{text:?} is not one of all, failures, none"))
    }
}

impl fmt::Display for DeliveryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
