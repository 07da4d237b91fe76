//! HTTP/1.1 towards a server or an endpoint, plain or TLS, with connections that are reused.
//!
//! Certificates are checked against the public roots and, as in other programs, against those in the file that
//! SSL_CERT_FILE names; a probe of this machine's own server checks none.

use crate::error::{CliError, CliResult};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, WantsVerifier,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use std::{error::Error, io, path::Path, sync::Arc, time::Duration};
use tokio::time::timeout;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The server closes a connection that is idle for a minute: this side is earlier, so that no request meets that.
const IDLE: Duration = Duration::from_secs(20);

/// A request that could not be carried out: what went wrong, in words.
#[derive(Debug)]
pub(crate) struct Unanswered(pub(crate) String);

/// How long a request may take and how large its response may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) time: Duration,
    pub(crate) bytes: usize,
}

/// Sends requests; cheap to clone, and clones share their connections.
#[derive(Clone)]
pub(crate) struct Transport {
    client: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Transport {
    /// With the roots that the environment names besides the public ones.
    pub(crate) fn from_environment() -> CliResult<Self> {
        let file = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
        Self::new(file.as_deref().map(Path::new))
    }

    fn new(extra_roots: Option<&Path>) -> CliResult<Self> {
        let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        if let Some(file) = extra_roots {
            add_roots(&mut roots, file)?;
        }
        Ok(Self::with_tls(tls().with_root_certificates(roots).with_no_client_auth()))
    }

    /// For requests that send no secret to this machine's own server: its certificate is for another name.
    pub(crate) fn unverified() -> Self {
        let any = AnyCertificate(Arc::new(ring::default_provider()));
        let config = tls().dangerous().with_custom_certificate_verifier(Arc::new(any));
        Self::with_tls(config.with_no_client_auth())
    }

    fn with_tls(config: ClientConfig) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        // Requests are small and written at once: waiting for more would only delay them.
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Self { client }
    }

    /// Sends one request and reads the whole response. A GET whose connection breaks is sent once more: the server
    /// may have closed it just then.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        bounds: Bounds,
    ) -> Result<Response<Bytes>, Unanswered> {
        let again = (request.method() == Method::GET).then(|| request.clone());
        let exchange = async {
            let response = match (self.client.request(request).await, again) {
                (Err(error), Some(again)) if is_closed(&error) => self.client.request(again).await,
                (response, _) => response,
            };
            let (head, body) = response.map_err(|error| Unanswered(in_words(&error)))?.into_parts();
            let body = Limited::new(body, bounds.bytes).collect().await;
            let body = body.map_err(|error| Unanswered(format!("its response is incomplete: {error}")))?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let late = |_| Unanswered(format!("it did not respond within {} s", bounds.time.as_secs()));
        timeout(bounds.time, exchange).await.map_err(late)?
    }
}

fn tls() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions of TLS")
}

/// Accepts a certificate for whatever name, from anybody. Signatures are checked all the same.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn add_roots(roots: &mut RootCertStore, file: &Path) -> CliResult {
    let wrong = |error: String| {
        CliError::new(format!(
            "SSL_CERT_FILE {}: {error}; it must be a file of PEM certificates",
            file.display()
        ))
    };
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| wrong(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        // A system's file holds hundreds, some of which no program can use.
        let _ = roots.add(certificate);
    }
    Ok(())
}

/// Whether the connection ended before a response began.
fn is_closed(error: &legacy::Error) -> bool {
    of_http(error).is_some_and(|error| error.is_incomplete_message() || error.is_canceled())
}

fn of_http(error: &legacy::Error) -> Option<&hyper::Error> {
    error.source().and_then(|source| source.downcast_ref())
}

fn in_words(error: &legacy::Error) -> String {
    if let Some(tls) = tls_failure(error) {
        if is_of_an_authority(tls) {
            return "TLS failed: its certificate is that of an authority, which no server may have as its own: make it one \
                    with basicConstraints=CA:FALSE"
                .to_owned();
        }
        return format!(
            "TLS failed: {tls} (if its certificate is from an authority of your own, name that authority's file in \
             SSL_CERT_FILE)"
        );
    }
    if error.is_connect() && deepest_io(error).is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        return format!("it did not accept a connection within {} s", CONNECT_TIMEOUT.as_secs());
    }
    if of_http(error).is_some_and(hyper::Error::is_parse) {
        return "what responds there is no HTTP (if the server has a certificate, its address begins with https://)"
            .to_owned();
    }
    deepest(error)
}

/// What `openssl req -x509` makes unless it is told otherwise. rustls has no name of its own for it.
fn is_of_an_authority(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(_)) && error.to_string().contains("CaUsedAsEndEntity")
}

/// The cause at the bottom of an error: the part that says something.
fn deepest(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), deepest)
}

fn deepest_io<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    error.source().and_then(deepest_io).or_else(|| error.downcast_ref())
}

/// The TLS error among the causes. An I/O error does not count what it wraps as its source.
fn tls_failure<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let wrapped =
        || error.downcast_ref::<io::Error>()?.get_ref().map(|inner| inner as &(dyn Error + 'static));
    error
        .downcast_ref()
        .or_else(|| wrapped().and_then(tls_failure))
        .or_else(|| error.source().and_then(tls_failure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_roots_that_is_none_is_named() {
        let error =
            Transport::new(Some(Path::new("no-such-roots.pem"))).err().expect("not there").to_string();
        assert!(error.contains("SSL_CERT_FILE") && error.contains("no-such-roots.pem"), "{error}");
        assert!(Transport::new(None).is_ok());
    }

    #[test]
    fn a_tls_error_is_found_inside_io_errors() {
        let inner = io::Error::other(rustls::Error::HandshakeNotComplete);
        let outer = io::Error::other(inner);
        assert_eq!(tls_failure(&outer), Some(&rustls::Error::HandshakeNotComplete));
        assert_eq!(tls_failure(&io::Error::from(io::ErrorKind::TimedOut)), None);
    }
}
