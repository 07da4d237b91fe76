//! What the URL of a database server says about TLS, and what to do when a handshake fails. Both server back
//! ends share it, so that they take the same parameters and give the same advice.
//!
//! Each parameter has the names that either server's own programs use: `sslmode` or `ssl-mode`, `sslrootcert` or `ssl-ca`,
//! `sslcert` or `ssl-cert`, `sslkey` or `ssl-key`. `database.ca_file` becomes the second one in every URL
//! ([`with_authority`]), so that no connection can miss it.
//!
//! URLs are split here and not with the `url` crate: it rejects several hosts, and rewrites what the drivers need to read.

use crate::{StoreError, StoreResult};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// No certificate file is nearly as long: a bundle of all public authorities has 250 KiB.
const MAX_PEM_BYTES: u64 = 4 << 20;

/// How far a connection is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// Never encrypted.
    Disable,
    /// Encrypted where the server offers it, whatever its certificate: verifies nothing.
    Prefer,
    /// Encrypted, and the certificate is from an authority that is trusted, for whatever name.
    VerifyCa,
    /// The same, and for the name in the URL. `require` means this, too.
    VerifyFull,
}

/// The parameters of a URL that are about TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsParameters {
    /// As it is written, if it is. With an authority or a client certificate it is [`TlsMode::VerifyFull`] where nothing
    /// else is said.
    pub mode: Option<TlsMode>,
    /// A file with the certificates of the authorities that are trusted, instead of the public ones.
    pub authority: Option<PathBuf>,
    /// Files with this side's certificate and its key, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl TlsParameters {
    /// Takes them out of a URL; the rest of it is what a driver understands. `key`: the setting that the URL is from.
    pub fn take(key: &str, url: &str) -> StoreResult<(Self, String)> {
        let Some((address, query)) = url.split_once('?') else {
            return Ok((Self::default(), url.to_owned()));
        };
        let (mut found, mut certificate, mut private_key) = (Self::default(), None, None);
        let mut rest = Vec::new();
        for parameter in query.split('&') {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let path = || PathBuf::from(percent_decoded(value));
            match name {
                "sslmode" | "ssl-mode" => {
                    set_once(key, "sslmode (or ssl-mode)", &mut found.mode, mode(key, name, value)?)?;
                }
                "sslrootcert" | "ssl-ca" => {
                    set_once(key, "sslrootcert (or ssl-ca)", &mut found.authority, path())?;
                }
                "sslcert" | "ssl-cert" => {
                    set_once(key, "sslcert (or ssl-cert)", &mut certificate, path())?;
                }
                "sslkey" | "ssl-key" => set_once(key, "sslkey (or ssl-key)", &mut private_key, path())?,
                _ => rest.push(parameter),
            }
        }
        found.identity = match (certificate, private_key) {
            (Some(certificate), Some(private_key)) => Some((certificate, private_key)),
            (None, None) => None,
            _ => {
                return Err(StoreError::Setup(format!(
                    "{key} names a client certificate without its key, or a key alone: give both sslcert and sslkey"
                )));
            }
        };
        found.settle_mode(key)?;
        let rest = if rest.is_empty() { address.to_owned() } else { format!("{address}?{}", rest.join("&")) };
        Ok((found, rest))
    }

    /// Certificates mean verification. A mode that would ignore them is better refused: whoever names them relies on them.
    fn settle_mode(&mut self, key: &str) -> StoreResult<()> {
        let problem = match self.mode {
            None => {
                if self.authority.is_some() || self.identity.is_some() {
                    self.mode = Some(TlsMode::VerifyFull);
                }
                return Ok(());
            }
            Some(TlsMode::VerifyCa) if self.authority.is_none() => {
                ": sslmode=verify-ca needs database.ca_file or sslrootcert, since any public authority would do; or write \
                 verify-full"
            }
            Some(TlsMode::Disable | TlsMode::Prefer) if self.authority.is_some() => {
                " and database.ca_file contradict each other: with this sslmode no certificate is verified; write \
                 sslmode=verify-full"
            }
            Some(TlsMode::Disable | TlsMode::Prefer) if self.identity.is_some() => {
                ": with this sslmode a client certificate may go to anybody, or nowhere; write sslmode=verify-full, or \
                 remove sslcert and sslkey"
            }
            Some(_) => return Ok(()),
        };
        Err(StoreError::Setup(format!("{key}{problem}")))
    }

    /// The certificates of [`Self::authority`], as PEM.
    pub fn authority_pem(&self) -> StoreResult<Option<Vec<u8>>> {
        self.authority.as_deref().map(|path| read_pem("database.ca_file", path, "CERTIFICATE")).transpose()
    }

    /// This side's certificate and its key, as PEM.
    pub fn identity_pem(&self) -> StoreResult<Option<(Vec<u8>, Vec<u8>)>> {
        let Some((certificate, key)) = &self.identity else { return Ok(None) };
        let certificate = read_pem("sslcert in database.url", certificate, "CERTIFICATE")?;
        Ok(Some((certificate, read_pem("sslkey in database.url", key, "PRIVATE KEY")?)))
    }
}

/// Sets a parameter. A second one must say the same.
fn set_once<T: PartialEq>(key: &str, name: &str, place: &mut Option<T>, value: T) -> StoreResult<()> {
    if place.as_ref().is_some_and(|former| *former != value) {
        return Err(StoreError::Setup(format!("{key} gives {name} more than one value: keep one of them")));
    }
    *place = Some(value);
    Ok(())
}

fn mode(key: &str, name: &str, value: &str) -> StoreResult<TlsMode> {
    match value.to_ascii_lowercase().replace('_', "-").as_str() {
        "disable" | "disabled" => Ok(TlsMode::Disable),
        "prefer" | "preferred" => Ok(TlsMode::Prefer),
        "verify-ca" => Ok(TlsMode::VerifyCa),
        "require" | "required" | "verify-full" | "verify-identity" => Ok(TlsMode::VerifyFull),
        _ => Err(StoreError::Setup(format!(
            "{key}: the value of {name} must be disable, prefer, require, verify-ca or verify-full"
        ))),
    }
}

/// The same URL with this authority, unless it names one itself. The path is made absolute, so that the URL means the
/// same in every folder.
pub fn with_authority(url: &str, file: &Path) -> String {
    let parameters = url.split_once('?').map_or("", |(_, query)| query);
    let has = |name: &str| parameters.split('&').any(|parameter| parameter.split('=').next() == Some(name));
    if has("sslrootcert") || has("ssl-ca") {
        return url.to_owned();
    }
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}sslrootcert={}", percent_encoded(&file.to_string_lossy()))
}

/// Reads a PEM file that has a block of this kind. `what`: who named it.
fn read_pem(what: &str, path: &Path, kind: &str) -> StoreResult<Vec<u8>> {
    let unusable = |problem: &str| {
        StoreError::Setup(format!(
            "{what}: {} cannot be used ({problem}): name another PEM file, or correct it",
            path.display()
        ))
    };
    let mut pem = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_PEM_BYTES).read_to_end(&mut pem))
        .map_err(|error| unusable(&error.to_string()))?;
    let text = String::from_utf8_lossy(&pem);
    if !text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(kind)) {
        return Err(unusable(&format!("it is no PEM file with a block \"BEGIN {kind}\"")));
    }
    Ok(pem)
}

/// The error for a handshake that failed with this problem: why, and what to do.
pub fn handshake_failure(problem: &str) -> StoreError {
    let has = |part: &str| problem.contains(part);
    let advice = if has("UnknownIssuer") || has("BadSignature") {
        "the server's certificate is not from an authority that is trusted here; set database.ca_file to the certificate \
         (PEM) of the authority that made it"
    } else if has("not valid for name") || has("NotValidForName") {
        "the server's certificate is for other names than the host in database.url; write one of its names there"
    } else if has("CaUsedAsEndEntity") {
        "the server uses the certificate of an authority as its own; have that authority make one for the server"
    } else if has("expired") || has("Expired") || has("not valid yet") || has("NotValidYet") {
        "renew the server's certificate, or set this machine's clock right"
    } else if has("does not support TLS") {
        "the server offers no TLS; switch it on there, or say with sslmode=disable in database.url that the connection \
         needs no protection"
    } else if has("no hostname") {
        "a certificate is for a name, and database.url has none; leave sslmode out for a socket of this machine"
    } else {
        "check the server's certificate, and sslmode and database.ca_file here"
    };
    StoreError::Setup(format!("no safe connection to the database ({problem}): {advice}"))
}

/// The text of a part of a URL, decoded.
pub fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// What a path in a parameter may hold as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(url: &str) -> (TlsParameters, String) {
        TlsParameters::take("database.url", url).expect("usable")
    }

    #[test]
    fn what_is_about_tls_is_taken_out_and_the_rest_stays() {
        for (url, rest, mode) in [
            ("postgres://u@h/db", "postgres://u@h/db", None),
            ("postgres://u@h/db?sslmode=verify-full", "postgres://u@h/db", Some(TlsMode::VerifyFull)),
            ("postgres://h/db?a=b&sslmode=require&c=d", "postgres://h/db?a=b&c=d", Some(TlsMode::VerifyFull)),
            ("mysql://h/db?ssl-mode=VERIFY_IDENTITY", "mysql://h/db", Some(TlsMode::VerifyFull)),
            ("mysql://h/db?ssl-mode=verify_ca&ssl-ca=/ca.pem", "mysql://h/db", Some(TlsMode::VerifyCa)),
            ("postgres://h/db?sslcert=/c.pem&sslkey=/k.pem", "postgres://h/db", Some(TlsMode::VerifyFull)),
            (
                "postgres://h/db?sslmode=require&ssl-mode=verify-full",
                "postgres://h/db",
                Some(TlsMode::VerifyFull),
            ),
            ("postgres://h/db?sslmode=prefer", "postgres://h/db", Some(TlsMode::Prefer)),
            ("mysql://h/db?sslmode=DISABLED", "mysql://h/db", Some(TlsMode::Disable)),
            ("mysql://h/db?require_ssl=true", "mysql://h/db?require_ssl=true", None),
        ] {
            let (found, left) = taken(url);
            assert_eq!((found.mode, left.as_str()), (mode, rest), "{url}");
        }
    }

    #[test]
    fn an_authority_is_in_every_url_once_and_means_verification() {
        let url = with_authority("postgres://u@h/db?connect_timeout=3", Path::new("/etc/my ca&co.pem"));
        let (found, rest) = taken(&url);
        assert_eq!(found.authority.as_deref(), Some(Path::new("/etc/my ca&co.pem")));
        assert_eq!(
            (found.mode, rest.as_str()),
            (Some(TlsMode::VerifyFull), "postgres://u@h/db?connect_timeout=3")
        );
        assert_eq!(with_authority(&url, Path::new("/other.pem")), url, "the URL's own comes first");
        let relative = taken(&with_authority("mysql://h/db", Path::new("ca.pem"))).0;
        assert!(relative.authority.is_some_and(|path| path.is_absolute() && path.ends_with("ca.pem")));
    }

    #[test]
    fn contradictions_and_nonsense_are_refused_in_one_line() {
        for (url, word) in [
            ("postgres://u:hunter2@h/db?sslmode=maybe", "sslmode"),
            ("postgres://u:hunter2@h/db?sslmode=prefer&sslrootcert=/ca.pem", "verify-full"),
            ("mysql://u:hunter2@h/db?ssl-ca=/ca.pem&ssl-mode=disabled", "verify-full"),
            ("postgres://u:hunter2@h/db?sslcert=/c.pem", "sslkey"),
            ("postgres://u:hunter2@h/db?sslmode=verify-ca", "sslrootcert"),
            ("mysql://u:hunter2@h/db?ssl-mode=verify_ca", "database.ca_file"),
            ("postgres://u:hunter2@h/db?sslmode=verify-ca&sslcert=/c.pem&sslkey=/k.pem", "sslrootcert"),
            ("postgres://u:hunter2@h/db?sslmode=prefer&sslcert=/c.pem&sslkey=/k.pem", "client certificate"),
            ("mysql://u:hunter2@h/db?ssl-cert=/c.pem&ssl-key=/k.pem&ssl-mode=disabled", "client certificate"),
            ("postgres://u:hunter2@h/db?sslmode=verify-full&sslmode=disable", "keep one"),
            ("mysql://u:hunter2@h/db?sslmode=verify-full&ssl-mode=preferred", "keep one"),
            ("postgres://u:hunter2@h/db?sslrootcert=/a.pem&ssl-ca=/b.pem", "sslrootcert"),
            ("postgres://u:hunter2@h/db?sslcert=/a.pem&sslcert=/b.pem&sslkey=/k.pem", "keep one"),
        ] {
            let error = TlsParameters::take("database.url", url).expect_err("unusable").to_string();
            assert!(error.contains("database.url") && error.contains(word), "{error}");
            assert!(!error.contains("hunter2") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_file_that_holds_no_certificate_is_named() {
        let (found, _) = taken("postgres://h/db?sslrootcert=/nowhere/ca.pem");
        assert!(found.authority_pem().is_err_and(|error| error.to_string().contains("/nowhere/ca.pem")));
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let (found, _) = taken(&with_authority("postgres://h/db", &here));
        assert!(found.authority_pem().is_err_and(|error| error.to_string().contains("BEGIN CERTIFICATE")));
    }
}
