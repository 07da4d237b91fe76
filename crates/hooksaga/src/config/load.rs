//! Reads the layers, builds every section, and checks what only shows across sections.
//!
//! Layers are merged here, without a configuration crate: every error names the file, variable or flag that set the
//! value, unknown keys and variables are refused, and secrets can come from files that a variable names. Crates that merge
//! layers through serde lose these origins. It is a map from keys to values (`settings.rs`); TOML itself is read by a crate.

use super::{
    AuthConfig, CallbacksConfig, CleanerConfig, Config, ConfigError, DatabaseConfig, LogConfig, PortalConfig,
    RetentionConfig, RetryConfig, SecretsConfig, ServerConfig, WorkerConfig, settings::Settings,
};
use std::{
    ffi::OsString,
    io::ErrorKind,
    path::{Path, PathBuf},
};

const DEFAULT_FILE: &str = "hooksaga.toml";

/// Where the configuration comes from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// `--config`: must exist. Without it, `hooksaga.toml` is read if it is there.
    pub(crate) file: Option<PathBuf>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Keys set by flags.
    pub(crate) flags: Vec<(String, String)>,
    pub(crate) dev: bool,
}

/// The effective configuration.
pub(crate) fn load(sources: &Sources) -> Result<Config, ConfigError> {
    let mut settings = Settings::default();
    let path = sources.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => settings.add_file(path, &text)?,
        Err(error) if error.kind() == ErrorKind::NotFound && sources.file.is_none() => {}
        Err(error) => {
            let path = path.display();
            return Err(ConfigError::new(format!(
                "cannot read {path}: {error}; correct --config or the file"
            )));
        }
    }
    settings.add_environment(sources.environment.iter().cloned())?;
    settings.add_flags(&sources.flags)?;
    build(&settings, sources.dev)
}

/// A configuration of these keys alone: neither file nor environment has a say.
pub(crate) fn from_flags(flags: &[(String, String)], dev: bool) -> Result<Config, ConfigError> {
    let mut settings = Settings::default();
    settings.add_flags(flags)?;
    build(&settings, dev)
}

fn build(settings: &Settings, dev: bool) -> Result<Config, ConfigError> {
    let mut config = Config {
        database: DatabaseConfig::read(settings)?,
        server: ServerConfig::read(settings)?,
        auth: AuthConfig::read(settings)?,
        secrets: SecretsConfig::read(settings)?,
        retry: RetryConfig::read(settings)?,
        worker: WorkerConfig::read(settings)?,
        cleaner: CleanerConfig::read(settings)?,
        callbacks: CallbacksConfig::read(settings)?,
        retention: RetentionConfig::read(settings)?,
        portal: PortalConfig::read(settings)?,
        log: LogConfig::read(settings)?,
        dev,
    };
    let is_local = config.server.listen.ip().is_loopback();
    if config.auth.is_guessable() && (!is_local || config.server.is_reached_elsewhere()) {
        return Err(settings.complain(
            "auth.root_key",
            "with a server that others reach (server.listen, server.public_url, server.tls_cert) it must have 24 \
             characters or more: make one with `openssl rand -hex 24`",
        ));
    }
    if dev {
        if !is_local {
            return Err(settings.complain(
                "server.listen",
                "with --dev the listener must be a loopback address: use 127.0.0.1:8080, or leave --dev out",
            ));
        }
        config.callbacks.open_for_development();
    }
    Ok(config)
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
