//! `hooksaga demo`: the whole story in one command, on a scratch folder and loopback.

mod endpoints;
mod story;

use crate::{
    client::Client,
    config,
    error::{CliError, CliResult},
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

/// Run a demo: receivers, verification, deliveries, retries, dead letters, requeue
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Demo {
    /// Leave the server running afterwards
    #[arg(long)]
    keep: bool,
}

impl Demo {
    pub(super) async fn run(self) -> CliResult {
        let mut signals = StopSignals::listen();
        let scratch = DemoFolder::new()?;
        let config = config::from_flags(&settings(&scratch.0), true)?;
        let mut server = Server::start(config, Component::ALL.to_vec()).await?;
        let url = format!("http://{}", server.address());
        let key_file = server.root_key().map(Path::to_owned);
        let key_file = key_file.ok_or_else(|| CliError::new("the demo's server has no API key"))?;
        let told = tokio::select! {
            told = self.tell(&url, &key_file) => told,
            failure = server.failure() => Err(failure),
            () = signals.next() => Ok(()),
        };
        server.stop().await;
        told
    }

    async fn tell(&self, url: &str, key_file: &Path) -> CliResult {
        let key = std::fs::read_to_string(key_file).map_err(|error| CliError::new(error.to_string()))?;
        output::line(format!("1. A server runs on {url}, its data is in {}", folder_of(key_file).display()));
        let mut story = Story::new(Client::new(url, &key)?);
        story.tell().await?;
        if !self.keep {
            NEXT.iter().for_each(output::line);
            return Ok(());
        }
        output::line("\nStill running, until Ctrl-C, with an order every two seconds. In another terminal:");
        output::line(format!("   export HOOKSAGA_URL={url} HOOKSAGA_API_KEY={}", key.trim()));
        LOOK_AROUND.iter().for_each(output::line);
        output::line(format!("In a browser: {url}/ is the dashboard, {url}/docs the whole API."));
        for number in 1000.. {
            tokio::time::sleep(Duration::from_secs(2)).await;
            story.send_order(number).await?;
        }
        Ok(())
    }
}

/// How a new user goes on.
const NEXT: [&str; 9] = [
    "\nWhat to do next, with a server of your own (`--dev` allows endpoints on this machine):",
    "   hooksaga serve --dev                                                    in a terminal of its own",
    "   hooksaga listen --port 9000                                             in another: your endpoint",
    "   hooksaga subscriptions add order.created http://127.0.0.1:9000/hook --wait",
    "   hooksaga send order.created '{\"order\": 42}' --watch",
    "   hooksaga tail                                                           deliveries as they happen",
    "   hooksaga dead-letters list                                              what was given up",
    "`hooksaga demo --keep` leaves this one running to look around; `hooksaga --help` shows every command, and",
    "http://127.0.0.1:8080/, while the server runs, the dashboard.",
];

/// What there is to see in a demo that was kept.
const LOOK_AROUND: [&str; 4] = [
    "   hooksaga tail                          deliveries as they happen",
    "   hooksaga stats                         how everything stands",
    "   hooksaga subscriptions list            the three endpoints",
    "   hooksaga dead-letters list             what was given up, and what became of it",
];

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
struct DemoFolder(PathBuf);

impl DemoFolder {
    fn new() -> CliResult<Self> {
        let path = std::env::temp_dir().join(format!("hooksaga-demo-{}", random_hex(6)));
        let cannot = |error| CliError::new(format!("cannot create {}: {error}; set TMPDIR", path.display()));
        DirBuilder::new().mode(0o700).create(&path).map_err(cannot)?;
        Ok(Self(path))
    }
}

impl Drop for DemoFolder {
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
