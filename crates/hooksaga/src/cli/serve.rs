//! `hooksaga serve`: runs the server.

use super::options::ConfigOptions;
use crate::{
    config::Backend,
    descriptors,
    error::{CliError, CliResult},
    output,
    serve::Server,
    signals::StopSignals,
    telemetry::Telemetry,
    wiring::Component,
};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  hooksaga serve                                   embedded SQLite under ./hooksaga-data/, on 127.0.0.1:8080
  hooksaga serve --dev                             for development: http and loopback callbacks are allowed
  hooksaga serve --listen 127.0.0.1:0              on any free port, which is printed
  hooksaga serve --only worker,cleaner             some components only; needs a database server
  hooksaga serve --print-config                    the effective configuration, secrets masked

Components: api, verifier, router, orchestrator, worker, cleaner, deadletters, caretaker.
SIGTERM or Ctrl-C finishes what is in flight and ends with 0; a second one ends at once.";

/// Run the server
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Serve {
    #[command(flatten)]
    options: ConfigOptions,

    /// The address to listen on; port 0 takes a free one (same as server.listen)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// Run only these components, comma-separated; needs a database server
    #[arg(long, value_name = "COMPONENT,…", value_delimiter = ',', value_parser = component)]
    only: Vec<Component>,

    /// Development mode: allow http and loopback callbacks; the listener must be loopback
    #[arg(long)]
    dev: bool,

    /// Print the effective configuration as TOML, secrets masked, and exit
    #[arg(long)]
    print_config: bool,
}

impl Serve {
    pub(super) async fn run(self) -> CliResult {
        let listen = self.listen.map(|address| ("server.listen".to_owned(), address));
        let config = self.options.load(listen.into_iter().collect(), self.dev)?;
        if !self.only.is_empty() && matches!(config.database.backend, Backend::Sqlite(_)) {
            return Err(CliError::new(
                "--only needs a database server, because an embedded SQLite database has one process: \
                 leave --only out, or set database.url to postgres://… or mysql://…",
            ));
        }
        if self.print_config {
            output::line(config.show().trim_end());
            return Ok(());
        }
        let mut components = if self.only.is_empty() { Component::ALL.to_vec() } else { self.only };
        components.sort();
        components.dedup();

        let mut signals = StopSignals::listen();
        let _telemetry = Telemetry::start(&config.log);
        descriptors::raise_limit();
        let mut server = tokio::select! {
            server = Server::start(config, components) => server?,
            () = signals.next() => return Ok(()),
        };
        tokio::select! {
            failure = server.failure() => return Err(failure),
            () = signals.next() => {}
        }
        tokio::select! {
            () = server.stop() => Ok(()),
            () = signals.next() => {
                output::note(
                    "hooksaga: ended at once by a second signal: deliveries in flight will be tried again when their \
                     lease has run out",
                );
                // Nothing is waited for, not even the log: whoever asks twice wants it gone.
                std::process::exit(1)
            }
        }
    }
}

fn component(text: &str) -> Result<Component, String> {
    text.parse()
}
