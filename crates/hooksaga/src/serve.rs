//! A running server, from its start to its orderly end.
//!
//! Start: take the ports, open the database, find the keys, start the components. Whatever is wrong stops the
//! start with one line before anything is accepted. End: it is no longer ready, nothing more is claimed, what is in
//! flight finishes within the grace period while the API still serves, then the listeners and the database close.

use crate::{
    config::{BackendUrl, Config, ServerConfig, show_duration},
    data_folder, descriptors,
    error::{CliError, CliResult},
    signals,
    telemetry::ANNOUNCEMENT,
    wiring::{self, Component, RunningServer, Sockets, Wiring},
};
use hooksaga_http::Tls;
use std::{io::IsTerminal, net::SocketAddr, path::PathBuf, time::Duration};
use tokio::{net::TcpListener, task::JoinHandle};

pub(crate) struct Server {
    address: SocketAddr,
    /// Where the first API key is, if this start made it.
    root_key: Option<PathBuf>,
    grace: Duration,
    running: RunningServer,
    /// Takes SIGHUP.
    hangup: Option<JoinHandle<()>>,
    /// Holds the database open.
    _wiring: Wiring,
}

impl Server {
    pub(crate) async fn start(config: Config, components: Vec<Component>) -> CliResult<Self> {
        let tls = load_certificate(&config.server)?;
        let listener = listen(config.server.listen, "server.listen (HOOKSAGA_LISTEN)").await?;
        let address = address_of(&listener)?;
        let metrics = match config.server.metrics_listen {
            Some(address) => Some(listen(address, "server.metrics_listen (HOOKSAGA_METRICS_LISTEN)").await?),
            None => None,
        };
        let metrics_address = metrics.as_ref().map(address_of).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        announce(&config, &components, scheme);
        let grace = config.server.shutdown_grace;
        let mut warnings = config.warnings();
        let embedded = match &config.database.backend {
            BackendUrl::Sqlite(path) => Some(path.clone()),
            BackendUrl::Postgres(_) | BackendUrl::MySql(_) => None,
        };

        let wiring = Wiring::open(config, components).await?;
        let schema = wiring.schema().await?;
        tracing::info!(target: ANNOUNCEMENT, schema, "the database is open and has schema {schema}");
        let secret_key = wiring.secret_key().await?;
        let root_key = wiring.root_key().await?;
        wiring.store_payload_limit().await;
        let max_connections =
            descriptors::connections_beside(wiring.deliveries_at_a_time(), wiring.checks_at_a_time());
        let sockets = Sockets { listener, tls: tls.clone(), max_connections, metrics };
        let running = wiring.start(secret_key.as_ref(), sockets);
        let hangup = on_hangup(tls);

        warnings.extend(embedded.and_then(|path| data_folder::complaint(&path)));
        for warning in warnings {
            tracing::warn!(target: ANNOUNCEMENT, "{warning}");
        }
        if let Some(path) = &root_key {
            let path = path.display();
            tracing::info!(target: ANNOUNCEMENT, %path, "the first API key, with every scope, is in {path}");
        }
        if let Some(address) = metrics_address {
            tracing::info!(target: ANNOUNCEMENT, "metrics on http://{address}/metrics");
        }
        let port = address.port();
        let url = format!("{scheme}://{address}");
        tracing::info!(target: ANNOUNCEMENT, %url, port, "listening on {url}");
        Ok(Self { address, root_key, grace, running, hangup, _wiring: wiring })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The file with the first API key, if this start made it.
    pub(crate) fn root_key(&self) -> Option<&std::path::Path> {
        self.root_key.as_deref()
    }

    /// Waits until a component ends although nobody asked it to.
    pub(crate) async fn failure(&mut self) -> CliError {
        self.running.failure().await
    }

    /// Ends it: what is in flight may finish within the grace period.
    pub(crate) async fn stop(self) {
        tracing::info!(grace = show_duration(self.grace), "stopping: finishing what is in flight");
        self.running.stop(self.grace).await;
        tracing::info!("stopped");
        if let Some(hangup) = self.hangup {
            hangup.abort();
        }
    }
}

/// The first line of every log: what starts here, and where. It is there before the database is, whatever becomes of
/// that. A port that is taken from the free ones is not named yet: a script reads it from the line that comes once the
/// server responds there.
fn announce(config: &Config, components: &[Component], scheme: &str) {
    let version = env!("CARGO_PKG_VERSION");
    let database = config.database.masked_url();
    let schema = wiring::schema_version(&config.database.backend);
    let names: Vec<&str> = components.iter().map(|component| component.as_str()).collect();
    let components = names.join(",");
    let listen = match config.server.listen {
        address if address.port() == 0 => format!("a free port of {}", address.ip()),
        address => format!("{scheme}://{address}"),
    };
    tracing::info!(
        target: ANNOUNCEMENT,
        version,
        database,
        schema,
        components,
        listen,
        "hooksaga {version} (for schema {schema}) starts on {listen} with {database}: {components}"
    );
}

async fn listen(address: SocketAddr, setting: &str) -> CliResult<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        CliError::new(format!(
            "cannot listen on {address}: {error}; stop what uses it, or set {setting} to another address"
        ))
    })
}

fn address_of(listener: &TcpListener) -> CliResult<SocketAddr> {
    listener.local_addr().map_err(|error| CliError::new(format!("cannot tell where it listens: {error}")))
}

fn load_certificate(server: &ServerConfig) -> CliResult<Option<Tls>> {
    let Some(files) = &server.tls else { return Ok(None) };
    Tls::load(&files.certificate, &files.key)
        .map(Some)
        .map_err(|error| CliError::new(format!("configuration: server.tls_cert, server.tls_key: {error}")))
}

/// Takes SIGHUP, which asks a service to read its files again. Only the certificate is read again; a server without one goes
/// on as it is, and does not end as the system would have it. On a terminal the signal says that the terminal was closed:
/// that may end a server which has no other use for it.
fn on_hangup(tls: Option<Tls>) -> Option<JoinHandle<()>> {
    match tls {
        Some(tls) => Some(signals::at_hangup(move || read_again(&tls))),
        None if std::io::stdin().is_terminal() || std::io::stdout().is_terminal() => None,
        None => Some(signals::at_hangup(|| {
            tracing::info!("SIGHUP: nothing is read again, since server.tls_cert is not set");
        })),
    }
}

fn read_again(tls: &Tls) {
    match tls.reload() {
        Ok(()) => tracing::info!("the certificate was read again: new connections get it"),
        Err(error) => {
            tracing::error!(%error, "the certificate could not be read again: the previous one stays in use");
        }
    }
}
