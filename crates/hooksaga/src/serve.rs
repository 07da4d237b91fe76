//! A running server, from its start to its orderly end.
//!
//! Start: take the port, open the database, find the keys, start the components. Whatever is wrong stops the
//! start with one line before anything is accepted. End: nothing more is accepted or claimed, what is in
//! flight finishes within the grace period, then the database is closed.

use crate::{
    config::{Config, show_duration},
    failure::{Failure, Outcome},
    telemetry::ANNOUNCEMENT,
    wiring::{Component, Running, Wiring},
};
use hooksaga_pipeline::Shutdown;
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use tokio::net::TcpListener;

pub(crate) struct Server {
    address: SocketAddr,
    /// Where the first API key is, if this start made it.
    root_key: Option<PathBuf>,
    shutdown: Shutdown,
    grace: Duration,
    running: Running,
    /// Holds the database open.
    _wiring: Wiring,
}

impl Server {
    pub(crate) async fn start(config: Config, components: Vec<Component>) -> Outcome<Self> {
        let listen = config.server.listen;
        let cannot_listen = |error: std::io::Error| {
            Failure::new(format!(
                "cannot listen on {listen}: {error}; stop what uses it, or set server.listen (HOOKSAGA_LISTEN) \
                 to another address"
            ))
        };
        let listener = TcpListener::bind(listen).await.map_err(cannot_listen)?;
        let address = listener.local_addr().map_err(cannot_listen)?;
        let (grace, dev) = (config.server.shutdown_grace, config.dev);

        let wiring = Wiring::open(config, components).await?;
        let secret_key = wiring.secret_key().await?;
        let root_key = wiring.root_key().await?;
        let shutdown = Shutdown::new();
        let running = wiring.start(secret_key.as_ref(), listener, &shutdown);

        if dev {
            tracing::warn!(
                target: ANNOUNCEMENT,
                "DEVELOPMENT MODE (--dev): callbacks over http and to this machine are allowed; never use it in production"
            );
        }
        if let Some(path) = &root_key {
            let path = path.display();
            tracing::info!(target: ANNOUNCEMENT, %path, "the first API key, with every scope, is in {path}");
        }
        let port = address.port();
        let url = format!("http://{address}");
        tracing::info!(target: ANNOUNCEMENT, %url, port, "listening on {url}");
        Ok(Self { address, root_key, shutdown, grace, running, _wiring: wiring })
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
    pub(crate) async fn failure(&mut self) -> Failure {
        self.running.failure().await
    }

    /// Ends it: what is in flight may finish within the grace period.
    pub(crate) async fn stop(self) {
        tracing::info!(grace = show_duration(self.grace), "stopping: finishing what is in flight");
        self.shutdown.trigger();
        match tokio::time::timeout(self.grace, self.running.ended()).await {
            Ok(()) => tracing::info!("stopped"),
            Err(_) => tracing::warn!(
                "stopped at the end of the grace period: deliveries in flight will be tried again when their lease has run out"
            ),
        }
    }
}
