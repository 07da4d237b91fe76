//! TLS to the database.
//!
//! `sslmode=disable`: none. `sslmode=prefer` (the default): encrypted if the server offers it, whatever its
//! certificate; since `prefer` also goes on unencrypted, checking it would protect from nothing. So a server
//! with a self-made certificate works without set-up. `sslmode=verify-full`: always encrypted, and the certificate
//! must be valid for the host name, under `database.ca_file` or else the public roots. `sslmode=require` means the
//! same: stricter than libpq's. `sslmode=verify-ca`: under whatever name.

use hooksaga_store::{
    StoreError, StoreResult,
    database_tls::{TlsMode, TlsParameters},
};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use std::sync::Arc;
use tokio_postgres::{Config, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Sets the mode of a configuration; what its connections are made with.
pub(crate) fn apply(parameters: &TlsParameters, config: &mut Config) -> StoreResult<MakeRustlsConnect> {
    // The driver has found a mode where none was seen here: to overwrite it could leave a connection unprotected.
    if parameters.mode.is_none() && config.get_ssl_mode() != SslMode::Prefer {
        return Err(StoreError::Setup(
            "the URL of the database gives sslmode in an unusual way: write it as it is, like ?sslmode=verify-full, and in a \
             password write ? as %3F and @ as %40"
                .to_owned(),
        ));
    }
    let mode = parameters.mode.unwrap_or(TlsMode::Prefer);
    config.ssl_mode(match mode {
        TlsMode::Disable => SslMode::Disable,
        TlsMode::Prefer => SslMode::Prefer,
        TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
    });
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default TLS versions");
    let builder = match mode {
        TlsMode::VerifyFull => builder.with_root_certificates(roots(parameters)?),
        TlsMode::VerifyCa | TlsMode::Disable | TlsMode::Prefer => {
            let roots = (mode == TlsMode::VerifyCa).then(|| roots(parameters)).transpose()?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyName { provider, roots }))
        }
    };
    let client = match identity(parameters)? {
        None => builder.with_no_client_auth(),
        Some((certificates, key)) => {
            builder.with_client_auth_cert(certificates, key).map_err(|error| unusable("sslcert", &error))?
        }
    };
    Ok(MakeRustlsConnect::new(client))
}

/// The authorities that are trusted: those of the given file, or else the public ones.
fn roots(parameters: &TlsParameters) -> StoreResult<RootCertStore> {
    let Some(pem) = parameters.authority_pem()? else {
        return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unusable("database.ca_file", &error))?;
        roots.add(certificate).map_err(|error| unusable("database.ca_file", &error))?;
    }
    Ok(roots)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(parameters: &TlsParameters) -> StoreResult<Option<Identity>> {
    let Some((certificates, key)) = parameters.identity_pem()? else { return Ok(None) };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificates).collect();
    let certificates = certificates.map_err(|error| unusable("sslcert", &error))?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| unusable("sslkey", &error))?;
    Ok(Some((certificates, key)))
}

fn unusable(what: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Setup(format!("{what} cannot be used ({error}): name a PEM file with the right content"))
}

/// Accepts a certificate for whatever name: from one of these authorities, for `sslmode=verify-ca`, or from anybody, for
/// `sslmode=prefer`. Signatures are checked all the same.
#[derive(Debug)]
struct AnyName {
    provider: Arc<CryptoProvider>,
    roots: Option<RootCertStore>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(certificate)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(url: &str) -> StoreResult<SslMode> {
        let (parameters, rest) = TlsParameters::take("database.url", url)?;
        let mut config: Config = rest.parse().expect("a URL");
        apply(&parameters, &mut config)?;
        Ok(config.get_ssl_mode())
    }

    #[test]
    fn a_mode_that_only_the_driver_sees_is_refused() {
        for (url, mode) in [
            ("postgres://u@h/db", SslMode::Prefer),
            ("postgres://u@h/db?sslmode=prefer", SslMode::Prefer),
            ("postgres://u@h/db?sslmode=disable", SslMode::Disable),
            ("postgres://u@h/db?sslmode=require", SslMode::Require),
        ] {
            assert_eq!(applied(url).expect("usable"), mode, "{url}");
        }
        for url in
            ["postgres://u:hunter2@h/db?%73slmode=require", "postgres://u:hunter2@h/db?ssl%6dode=disable"]
        {
            let error = applied(url).expect_err("unusable").to_string();
            assert!(error.contains("sslmode=verify-full") && !error.contains("hunter2"), "{error}");
        }
    }
}
