//! The options that every command on the configured database has.

use crate::config::{self, Config, Sources};
use crate::error::CliResult;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct ConfigOptions {
    /// The configuration file [default: hooksaga.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The database: sqlite://FILE, postgres://… or mysql://… (same as database.url)
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,

    /// Sets any configuration key, such as worker.concurrency=64; can be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

impl ConfigOptions {
    /// Whether the database was named on the command line.
    pub(crate) fn names_database(&self) -> bool {
        self.database_url.is_some()
    }

    /// The effective configuration with these options, `more` keys from other flags, and the environment.
    pub(crate) fn load(&self, more: Vec<(String, String)>, dev: bool) -> CliResult<Config> {
        let mut flags = self.set.clone();
        flags.extend(self.database_url.clone().map(|url| ("database.url".to_owned(), url)));
        flags.extend(more);
        let sources =
            Sources { file: self.config.clone(), environment: std::env::vars_os().collect(), flags, dev };
        Ok(config::load(&sources)?)
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}
