//! TLS to the database.
//!
//! Without a parameter there is no TLS. With `ssl-mode=verify_identity` connections are always encrypted, and the certificate
//! must be valid for the host name, by an authority of `database.ca_file` or else a public one. `ssl-mode=required` and the
//! driver's own `require_ssl=true` mean the same. `preferred` does not exist: the driver encrypts always or never.
//! `verify_ca` does not exist either: the driver always verifies the name.

use hooksaga_store::{
    StoreError, StoreResult,
    database_tls::{TlsMode, TlsParameters},
};
use mysql_async::{ClientIdentity, Opts, SslOpts};

/// The encryption of connections with these parameters, if any. `opts`: what the driver has read from the same URL.
pub(crate) fn ssl_opts(key: &str, parameters: &TlsParameters, opts: &Opts) -> StoreResult<Option<SslOpts>> {
    let refuse = |problem: &str| Err(StoreError::Setup(format!("{key}: {problem}")));
    let by_driver = opts.ssl_opts();
    let own_words = by_driver.is_some_and(|ssl| ssl.accept_invalid_certs() || ssl.skip_domain_validation());
    let base = match parameters.mode {
        Some(_) if own_words => {
            return refuse(
                "a verified connection and verify_ca=false or verify_identity=false contradict each other: remove \
                 the latter",
            );
        }
        Some(TlsMode::VerifyFull) => Some(SslOpts::default()),
        Some(TlsMode::VerifyCa) => {
            return refuse(
                "on MySQL and MariaDB the name in the certificate cannot be left out: write ssl-mode=verify_identity, and \
                 a host that the certificate is for",
            );
        }
        Some(TlsMode::Prefer) => {
            return refuse(
                "ssl-mode=preferred verifies nothing and is not offered: write ssl-mode=verify_identity, or \
                 ssl-mode=disabled",
            );
        }
        Some(TlsMode::Disable) if by_driver.is_some() => {
            return refuse(
                "ssl-mode=disabled and require_ssl=true contradict each other: remove one of them",
            );
        }
        Some(TlsMode::Disable) => None,
        None => by_driver.cloned(),
    };
    let Some(mut ssl) = base else { return Ok(None) };
    if ssl.skip_domain_validation() && !ssl.accept_invalid_certs() {
        return refuse("verify_identity=false is not offered: the name in the certificate is always checked");
    }
    if let Some(pem) = parameters.authority_pem()? {
        ssl = ssl.with_root_certs(vec![pem.into()]).with_disable_built_in_roots(true);
    }
    if let Some((certificate, private_key)) = parameters.identity_pem()? {
        ssl = ssl.with_client_identity(Some(ClientIdentity::new(certificate.into(), private_key.into())));
    }
    Ok(Some(ssl))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> StoreResult<Option<SslOpts>> {
        let (parameters, rest) = TlsParameters::take("database.url", url)?;
        ssl_opts("database.url", &parameters, &Opts::from_url(&rest).expect("a URL"))
    }

    #[test]
    fn what_is_encrypted_is_verified_unless_the_driver_is_told_otherwise() {
        for (url, encrypted, verified) in [
            ("mysql://h/db", false, false),
            ("mysql://h/db?ssl-mode=disabled", false, false),
            ("mysql://h/db?ssl-mode=REQUIRED", true, true),
            ("mysql://h/db?ssl-mode=VERIFY_IDENTITY", true, true),
            ("mysql://h/db?sslmode=verify-full", true, true),
            ("mysql://h/db?require_ssl=true", true, true),
            ("mysql://h/db?require_ssl=true&verify_ca=false", true, false),
        ] {
            let found = read(url).expect("usable");
            assert_eq!(found.is_some(), encrypted, "{url}");
            assert_eq!(found.is_some_and(|ssl| !ssl.accept_invalid_certs()), verified, "{url}");
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for url in [
            "mysql://h/db?ssl-mode=preferred",
            "mysql://h/db?ssl-mode=verify_ca",
            "mysql://h/db?ssl-mode=verify_ca&ssl-ca=/ca.pem",
            "mysql://h/db?require_ssl=true&verify_ca=false&ssl-cert=/c.pem&ssl-key=/k.pem",
            "mysql://h/db?require_ssl=true&verify_identity=false",
            "mysql://h/db?ssl-mode=verify_identity&require_ssl=true&verify_ca=false",
            "mysql://h/db?ssl-mode=disabled&require_ssl=true",
            "mysql://h/db?ssl-ca=/nowhere.pem",
        ] {
            let error = read(url).expect_err("unusable").to_string();
            assert!(error.contains("database.") && !error.contains('\n'), "{url}: {error}");
        }
    }
}
