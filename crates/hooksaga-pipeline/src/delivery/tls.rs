//! TLS towards callbacks: the public roots, and those that the operator adds.
//!
//! Only HTTP/1.1 is offered. An HTTP/2 endpoint could cost what nobody here can bound: the library queues interim
//! (1xx) responses per stream without a limit (355 MiB were measured within one attempt), and answers floods of
//! SETTINGS and PING frames as fast as they come; and one hostile stream would break every other request that
//! shares its connection. Every server that is called in public speaks HTTP/1.1 as well.

use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// Why no client can be built: the extra root certificates are unusable.
#[derive(Debug, thiserror::Error)]
pub enum ClientSetupError {
    #[error("the extra root certificates are not valid PEM: {0}")]
    Pem(String),
    #[error("the extra root certificates contain no certificate (a PEM block \"BEGIN CERTIFICATE\")")]
    NoCertificate,
    #[error("an extra root certificate cannot be used: {0}")]
    Certificate(rustls::Error),
    #[error("TLS cannot be set up: {0}")]
    Tls(rustls::Error),
}

/// A connector that trusts the public roots and those in `extra_roots_pem`.
pub(super) fn connector(extra_roots_pem: Option<&[u8]>) -> Result<TlsConnector, ClientSetupError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(pem) = extra_roots_pem {
        let public = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| ClientSetupError::Pem(error.to_string()))?;
            roots.add(certificate).map_err(ClientSetupError::Certificate)?;
        }
        if roots.len() == public {
            return Err(ClientSetupError::NoCertificate);
        }
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(ClientSetupError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
