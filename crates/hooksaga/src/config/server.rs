//! `server.*`: the listener, its limits, and how long a shutdown may take.

use super::{ConfigError, settings::Settings};
use std::{net::SocketAddr, time::Duration};

const MIB: u64 = 1 << 20;
/// The largest text that every back end stores comfortably.
const LARGEST_PAYLOAD: u64 = 256 * MIB;
const LARGEST_BATCH: u64 = 1024 * MIB;

#[derive(Clone, Debug)]
pub(crate) struct ServerConfig {
    pub(crate) listen: SocketAddr,
    pub(crate) max_payload_bytes: usize,
    pub(crate) max_batch_bytes: usize,
    /// How long what is in flight may take to finish after SIGTERM.
    pub(crate) shutdown_grace: Duration,
}

impl ServerConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let key = "server.listen";
        let listen = settings.text(key)?.unwrap_or_else(|| "127.0.0.1:8080".to_owned());
        let listen = parse_listen(&listen).map_err(|problem| settings.complain(key, &problem))?;
        let payload = settings.size("server.max_payload_bytes", 1, LARGEST_PAYLOAD)?.unwrap_or(MIB);
        let batch = settings.size("server.max_batch_bytes", 1, LARGEST_BATCH)?.unwrap_or(8 * MIB);
        let grace = settings.duration("server.shutdown_grace", Duration::ZERO, Duration::from_secs(3600))?;
        Ok(Self {
            listen,
            max_payload_bytes: usize::try_from(payload).expect("at most 256 MiB"),
            max_batch_bytes: usize::try_from(batch).expect("at most 1 GiB"),
            shutdown_grace: grace.unwrap_or(Duration::from_secs(20)),
        })
    }
}

/// An address with a port; `localhost` is taken as 127.0.0.1.
fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numeric.as_deref().unwrap_or(text).parse().map_err(|_| {
        format!(
            "{text:?} is not an address with a port: write it like 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080"
        )
    })
}
