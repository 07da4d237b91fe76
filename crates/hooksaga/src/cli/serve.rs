//! `hooksaga serve`: runs the server.

use super::options::ConfigOptions;
use crate::{
    client::Client,
    config::{BackendUrl, ServerConfig},
    descriptors,
    error::{CliError, CliResult},
    output,
    serve::Server,
    signals::StopSignals,
    telemetry::Telemetry,
    wiring::Component,
};
use clap::Args;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

const EXAMPLES: &str = "\
Examples:
  hooksaga serve                                   embedded SQLite under ./hooksaga-data/, on 127.0.0.1:8080
  hooksaga serve --dev                             for development: http and loopback callbacks are allowed
  hooksaga serve --listen 127.0.0.1:0              on any free port, which is printed
  hooksaga serve --only worker,cleaner             some components only; needs a database server
  hooksaga serve --print-config                    the effective configuration, secrets masked
  hooksaga serve --check-ready                     whether the server that runs here is ready: a container's health check

Components: api, verifier, router, orchestrator, worker, cleaner, deadletters, caretaker,
janitor.
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

    /// Start nothing: ask the server that runs with this configuration whether it is ready; exits with 0 if it is
    #[arg(long, conflicts_with = "print_config")]
    check_ready: bool,
}

impl Serve {
    pub(super) async fn run(self) -> CliResult {
        let listen = self.listen.map(|address| ("server.listen".to_owned(), address));
        let config = self.options.load(listen.into_iter().collect(), self.dev)?;
        if !self.only.is_empty() && matches!(config.database.backend, BackendUrl::Sqlite(_)) {
            return Err(CliError::new(
                "--only needs a database server, because an embedded SQLite database has one process: \
                 leave --only out, or set database.url to postgres://… or mysql://…",
            ));
        }
        if self.print_config {
            output::line(config.show().trim_end());
            return Ok(());
        }
        if self.check_ready {
            return check_ready(&config.server).await;
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
                // Does not even wait for the log: a second signal means to stop at once.
                std::process::exit(1)
            }
        }
    }
}

/// How long a server may take to say whether it is ready.
const PATIENCE: Duration = Duration::from_secs(5);

async fn check_ready(server: &ServerConfig) -> CliResult {
    let (scheme, address) = match (server.metrics_listen, &server.tls) {
        // The probes are on both, and this one never speaks TLS.
        (Some(address), _) => ("http", address),
        (None, Some(_)) => ("https", server.listen),
        (None, None) => ("http", server.listen),
    };
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let client = Client::for_probes(&format!("{scheme}://{}", SocketAddr::new(host, address.port())))?;
    let reply = tokio::time::timeout(PATIENCE, client.get("/readyz")).await;
    reply
        .map_err(|_| CliError::new(format!("no response within {} s", PATIENCE.as_secs())))??
        .expect_success()
}

fn component(text: &str) -> Result<Component, String> {
    text.parse()
}
