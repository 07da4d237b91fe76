//! `log.*`: what is logged, and how.

use super::{ConfigError, settings::Settings};
use hooksaga_pipeline::DeliveryLog;
use std::io::IsTerminal;
use tracing_subscriber::filter::LevelFilter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl LogFormat {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct LogConfig {
    pub(crate) format: LogFormat,
    pub(crate) level: LevelFilter,
    /// Which attempts are logged one by one.
    pub(crate) deliveries: DeliveryLog,
}

const LEVELS: &[(&str, LevelFilter)] = &[
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];
const DELIVERIES: &[(&str, DeliveryLog)] =
    &[("all", DeliveryLog::All), ("failures", DeliveryLog::Failures), ("none", DeliveryLog::None)];

impl LogConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        let on_terminal = || if std::io::stdout().is_terminal() { LogFormat::Text } else { LogFormat::Json };
        Ok(Self {
            format: settings.word("log.format", &formats)?.unwrap_or_else(on_terminal),
            level: settings.word("log.level", LEVELS)?.unwrap_or(LevelFilter::INFO),
            deliveries: settings.word("log.deliveries", DELIVERIES)?.unwrap_or(DeliveryLog::All),
        })
    }

    pub(super) fn level_name(&self) -> &'static str {
        LEVELS.iter().find(|(_, level)| *level == self.level).map_or("info", |(name, _)| *name)
    }
}
