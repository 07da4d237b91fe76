//! The listener's certificate, which can be exchanged while it serves.

use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::{
    fmt, fs,
    io::Read,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{self, ServerConfig, crypto::ring, version},
};

/// No certificate chain is nearly as large.
const MAX_FILE: u64 = 1 << 20;

/// A certificate and its key, from PEM files. Clones share it.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    certificate: PathBuf,
    key: PathBuf,
    acceptor: RwLock<TlsAcceptor>,
}

/// Why the files cannot be used: one line that names the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("certificate", &self.0.certificate).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a certificate chain and its private key.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let acceptor = read(certificate, key)?;
        Ok(Self(Arc::new(Inner {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            acceptor: RwLock::new(acceptor),
        })))
    }

    /// Reads both files again. New connections get what is in them; if they cannot be used, what was there before.
    pub fn reload(&self) -> Result<(), TlsError> {
        let acceptor = read(&self.0.certificate, &self.0.key)?;
        *self.0.acceptor.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.0.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn read(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let wrong =
        |path: &Path, why: &dyn fmt::Display| TlsError(format!("cannot use {}: {why}", path.display()));
    let pem = |path: &Path| {
        let mut bytes = Vec::new();
        fs::File::open(path)
            .and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes))
            .map_err(|error| wrong(path, &error))?;
        Ok(bytes)
    };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem(certificate)?)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(certificate, &error))?;
    if chain.is_empty() {
        return Err(wrong(certificate, &"it holds no certificate in PEM"));
    }
    let private = PrivateKeyDer::from_pem_slice(&pem(key)?)
        .map_err(|_| wrong(key, &"it holds no private key in PEM"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => wrong(key, &"it is not the key of the certificate"),
            error => wrong(certificate, &error),
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
