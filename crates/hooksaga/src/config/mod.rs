//! The configuration: `hooksaga.toml`, overridden by environment variables, overridden by flags.
//!
//! One file per concern, each with its defaults and checks. A [`Config`] that exists has been validated:
//! an unknown key, a bad value or an unsafe combination never gets past [`load`], and the error is one
//! line that names the key and says what to do.

mod auth;
mod callbacks;
mod database;
mod duration;
mod keys;
mod load;
mod log;
mod portal;
mod retention;
mod retry;
mod server;
mod settings;
mod show;
mod warnings;
mod worker;

pub(crate) use auth::{AuthConfig, SecretsConfig};
pub(crate) use callbacks::CallbacksConfig;
pub(crate) use database::{BackendUrl, DatabaseConfig};
pub(crate) use duration::{parse_duration, show_duration};
pub(crate) use load::{Sources, from_flags, load};
pub(crate) use log::{LogConfig, LogFormat};
pub(crate) use portal::PortalConfig;
pub(crate) use retention::RetentionConfig;
pub(crate) use retry::RetryConfig;
pub(crate) use server::{ServerConfig, TlsFiles};
pub(crate) use worker::{CleanerConfig, WorkerConfig};

use crate::error::CliError;

/// The whole configuration, validated.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) database: DatabaseConfig,
    pub(crate) server: ServerConfig,
    pub(crate) auth: AuthConfig,
    pub(crate) secrets: SecretsConfig,
    pub(crate) retry: RetryConfig,
    pub(crate) worker: WorkerConfig,
    pub(crate) cleaner: CleanerConfig,
    pub(crate) callbacks: CallbacksConfig,
    pub(crate) retention: RetentionConfig,
    pub(crate) portal: PortalConfig,
    pub(crate) log: LogConfig,
    /// `--dev`: http and loopback callbacks are allowed, on a loopback listener only.
    pub(crate) dev: bool,
}

impl Config {
    /// The effective configuration as TOML, with secrets masked.
    pub(crate) fn show(&self) -> String {
        show::show(self)
    }

    /// What an operator should hear about at the start, one line each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        warnings::warnings(self)
    }

    /// The one of them that is about the connection to the database.
    pub(crate) fn database_warning(&self) -> Option<String> {
        warnings::database(self)
    }
}

/// What is wrong with the configuration: one line that names the key and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(String);

impl ConfigError {
    fn new(text: String) -> Self {
        Self(text)
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::new(format!("configuration: {error}"))
    }
}
