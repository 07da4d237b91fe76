//! `hooksaga demo`: the whole story in one command, on a scratch folder and loopback.

mod endpoints;
mod story;

use crate::{
    client::Client,
    config,
    failure::{Failure, Outcome},
    output,
    serve::Server,
    signals::StopSignals,
    wiring::Component,
};
use clap::Args;
use hooksaga_pipeline::random_hex;
use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};
use story::Story;

const EXAMPLES: &str = "\
Examples:
  hooksaga demo              ends by itself in well under a minute
  hooksaga demo --keep       stays, with an order every two seconds, until Ctrl-C

Everything happens on 127.0.0.1 and in a scratch folder that is removed at the end. No configuration is read.";

/// See it all work: receivers, verification, deliveries, retries, dead letters, requeue
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Demo {
    /// Leave the server running afterwards
    #[arg(long)]
    keep: bool,
}

impl Demo {
    pub(super) async fn run(self) -> Outcome {
        let mut signals = StopSignals::listen();
        let scratch = Scratch::new()?;
        let config = config::from_flags(&settings(&scratch.0), true)?;
        let mut server = Server::start(config, Component::ALL.to_vec()).await?;
        let url = format!("http://{}", server.address());
        let key_file = server.root_key().map(Path::to_owned);
        let key_file = key_file.ok_or_else(|| Failure::new("the demo's server has no API key"))?;
        let told = tokio::select! {
            told = self.tell(&url, &key_file) => told,
            failure = server.failure() => Err(failure),
            () = signals.next() => Ok(()),
        };
        server.stop().await;
        told
    }

    async fn tell(&self, url: &str, key_file: &Path) -> Outcome {
        let key = std::fs::read_to_string(key_file).map_err(|error| Failure::new(error.to_string()))?;
        output::line(format!("1. A server runs on {url}, its data is in {}", folder_of(key_file).display()));
        let mut story = Story::new(Client::new(url, &key)?);
        story.tell().await?;
        if !self.keep {
            return Ok(());
        }
        output::line(format!("\nStill running, until Ctrl-C. Look around: {url}/docs"));
        output::line(format!("The API key: {}", key.trim()));
        for number in 1000.. {
            tokio::time::sleep(Duration::from_secs(2)).await;
            story.send_order(number).await?;
        }
        Ok(())
    }
}

fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new("."))
}

/// Quick retries, so that the story is short.
fn settings(folder: &Path) -> Vec<(String, String)> {
    let database = format!("sqlite://{}", folder.join("hooksaga.db").display());
    [
        ("database.url", database.as_str()),
        ("server.listen", "127.0.0.1:0"),
        ("server.shutdown_grace", "5s"),
        ("retry.base_delay", "1s"),
        ("retry.max_delay", "2s"),
        ("retry.max_retry_limit", "3"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .to_vec()
}

/// A folder for its owner only, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Outcome<Self> {
        let path = std::env::temp_dir().join(format!("hooksaga-demo-{}", random_hex(6)));
        let cannot = |error| Failure::new(format!("cannot create {}: {error}; set TMPDIR", path.display()));
        DirBuilder::new().mode(0o700).create(&path).map_err(cannot)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            output::note(format!("cannot remove {}: {error}", self.0.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demos_settings_are_valid_and_stay_on_this_machine() {
        let config = config::from_flags(&settings(Path::new("/scratch")), true).expect("valid");
        assert!(config.server.listen.ip().is_loopback());
    }
}
