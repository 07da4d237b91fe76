//! `server.*`: the listener, its limits, and how long a shutdown may take.

use super::{ConfigError, settings::Settings};
use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    path::PathBuf,
    time::Duration,
};

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
    /// A listener of its own for `/metrics`.
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Where clients reach this server, without a slash at the end; `None`: at the listener's address.
    pub(crate) public_url: Option<String>,
    /// With it the listener speaks HTTPS.
    pub(crate) tls: Option<TlsFiles>,
    /// Of one API key.
    pub(crate) requests_per_second: Option<NonZeroU32>,
}

/// The listener's certificate chain and its key, both PEM.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl ServerConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let key = "server.listen";
        let listen = settings.text(key)?.unwrap_or_else(|| "127.0.0.1:8080".to_owned());
        let listen = parse_listen(&listen).map_err(|problem| settings.complain(key, &problem))?;
        let payload = settings.size("server.max_payload_bytes", 1, LARGEST_PAYLOAD)?.unwrap_or(MIB);
        let batch = settings.size("server.max_batch_bytes", 1, LARGEST_BATCH)?.unwrap_or(8 * MIB);
        let grace = settings.duration("server.shutdown_grace", Duration::ZERO, Duration::from_secs(3600))?;
        let key = "server.metrics_listen";
        let metrics_listen = settings.text(key)?.map(|text| parse_listen(&text)).transpose();
        let metrics_listen = metrics_listen.map_err(|problem| settings.complain(key, &problem))?;
        if metrics_listen.is_some_and(|address| address == listen && address.port() != 0) {
            return Err(settings.complain(key, "it must be another address than server.listen"));
        }
        let key = "server.public_url";
        let public_url = settings.text(key)?.map(|text| parse_public_url(&text)).transpose();
        let public_url = public_url.map_err(|problem| settings.complain(key, &problem))?;
        let per_second = settings.number_or_off("server.requests_per_second", 1, 1_000_000)?;
        Ok(Self {
            metrics_listen,
            public_url,
            tls: tls_files(settings)?,
            requests_per_second: per_second.and_then(|number| NonZeroU32::new(u32::try_from(number).ok()?)),
            listen,
            max_payload_bytes: usize::try_from(payload).expect("at most 256 MiB"),
            max_batch_bytes: usize::try_from(batch).expect("at most 1 GiB"),
            shutdown_grace: grace.unwrap_or(Duration::from_secs(20)),
        })
    }

    /// Others reach this server, whatever it listens on: through TLS of its own, or a proxy in front of it.
    pub(super) fn is_reached_elsewhere(&self) -> bool {
        let is_remote = |url: &String| {
            let uri: Option<http::Uri> = url.parse().ok();
            let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default();
            let address: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
            host != "localhost" && !address.is_ok_and(|address| address.is_loopback())
        };
        self.tls.is_some() || self.public_url.as_ref().is_some_and(is_remote)
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

fn tls_files(settings: &Settings) -> Result<Option<TlsFiles>, ConfigError> {
    let (cert, key) = ("server.tls_cert", "server.tls_key");
    match (settings.text(cert)?, settings.text(key)?) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            Ok(Some(TlsFiles { certificate: PathBuf::from(certificate), key: PathBuf::from(key) }))
        }
        (Some(_), None) => Err(settings.complain(cert, "it needs server.tls_key beside it")),
        (None, Some(_)) => Err(settings.complain(key, "it needs server.tls_cert beside it")),
    }
}

/// An http or https URL, without a query or fragment; links are made by adding to it.
fn parse_public_url(text: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "{text:?} is not the URL of a server: write it like https://hooks.example.com, without ? and #"
        )
    };
    let uri: http::Uri = text.parse().map_err(|_| wrong())?;
    let web = matches!(uri.scheme_str(), Some("http" | "https"));
    let named = uri.host().is_some_and(|host| !host.is_empty());
    let plain = !text.contains(['?', '#', '@']) && text.is_ascii();
    if web && named && plain { Ok(text.trim_end_matches('/').to_owned()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::parse_public_url;

    #[test]
    fn a_public_url_is_one_that_can_be_added_to() {
        for (text, url) in [
            ("https://hooks.example.com", "https://hooks.example.com"),
            ("https://hooks.example.com/", "https://hooks.example.com"),
            ("http://10.0.0.1:8080/hooks/", "http://10.0.0.1:8080/hooks"),
        ] {
            assert_eq!(parse_public_url(text).as_deref(), Ok(url));
        }
        for text in [
            "",
            "hooks.example.com",
            "/x",
            "ftp://x",
            "https://",
            "https://x/?a",
            "https://x/#a",
            "https://u@x",
        ] {
            assert!(parse_public_url(text).is_err(), "{text}");
        }
    }
}
