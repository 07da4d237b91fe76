//! The certificates that a server reads from files: the listener's, and the authorities that endpoints may be from.

use super::{
    finding::{Finding, Verdict},
    host,
    validity::Validity,
};
use crate::{
    config::{CallbacksConfig, ServerConfig, TlsFiles},
    output, wiring,
};
use hooksaga_http::Tls;
use jiff::Timestamp;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use std::{path::Path, time::Duration};
use tokio::task::spawn_blocking;

/// What renews certificates by itself has done so by then.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// What to do about a certificate that can no longer be used.
const REPLACE: &str = "replace the files of server.tls_cert and server.tls_key, then send the server SIGHUP, which reads them again";

const LISTENER: &str = "listener TLS";
const CALLBACKS: &str = "callback TLS";

/// Checks `server.tls_cert` and `server.tls_key`.
pub(super) async fn listener(server: &ServerConfig) -> Finding {
    let Some(files) = server.tls.clone() else {
        return Finding::ok(LISTENER, "off: the listener speaks plain HTTP");
    };
    let place = files.certificate.clone();
    let look = spawn_blocking(move || judge_files(&files, Timestamp::now()));
    host::in_time(LISTENER, &place, host::deadline(), look).await
}

fn judge_files(files: &TlsFiles, now: Timestamp) -> Finding {
    if let Err(error) = Tls::load(&files.certificate, &files.key) {
        return Finding::problem(
            LISTENER,
            format!("{error}; `hooksaga serve` does not start with it"),
            "set server.tls_cert to a PEM file with the server's certificate, then its intermediate ones, and server.tls_key to \
             the PEM file of its key, both readable for the user that runs hooksaga",
        );
    }
    match chain_validity(&files.certificate) {
        Some(validity) => judge_validity(&files.certificate, validity, now),
        None => Finding::warning(
            LISTENER,
            format!("cannot read the expiry date of {}", files.certificate.display()),
            "look at it with `openssl x509 -enddate -noout -in FILE`",
        ),
    }
}

/// While every certificate of the chain is valid: clients refuse it before and after.
fn chain_validity(file: &Path) -> Option<Validity> {
    let chain = CertificateDer::pem_file_iter(file).ok()?;
    let all = chain.map(|certificate| Validity::of(&certificate.ok()?)).collect::<Option<Vec<_>>>()?;
    all.into_iter().reduce(Validity::and)
}

fn judge_validity(file: &Path, validity: Validity, now: Timestamp) -> Finding {
    let shown = file.display();
    let Validity { from, until } = validity;
    if until < now {
        return Finding::problem(
            LISTENER,
            format!("{shown} has expired at {until}: clients refuse it"),
            REPLACE,
        );
    }
    if from > now {
        return Finding::problem(
            LISTENER,
            format!("{shown} is valid from {from} on only: clients refuse it until then"),
            "set this machine's clock, or use the former certificate until then",
        );
    }
    if until.duration_since(now) < SOON.try_into().unwrap_or(jiff::SignedDuration::MAX) {
        let found = format!("{shown} matches its key; it expires soon, on {until}");
        return Finding::warning(LISTENER, found, REPLACE);
    }
    Finding::ok(LISTENER, format!("{shown} matches its key; valid until {until}"))
}

/// What `callbacks.ca_file` is worth.
pub(super) async fn callbacks(callbacks: &CallbacksConfig) -> Finding {
    let Some(file) = callbacks.ca_file.clone() else {
        return Finding::ok(CALLBACKS, "endpoints' certificates are checked against the public authorities");
    };
    let (callbacks, place) = (callbacks.clone(), file.clone());
    let look = spawn_blocking(move || judge_authorities(&callbacks, &file));
    host::in_time(CALLBACKS, &place, host::deadline(), look).await
}

fn judge_authorities(callbacks: &CallbacksConfig, file: &Path) -> Finding {
    if let Err(error) = wiring::delivery_client(callbacks) {
        let line = error.to_string();
        let line = line.strip_prefix("configuration: ").unwrap_or(&line);
        return Finding {
            check: CALLBACKS,
            verdict: Verdict::Problem,
            found: format!("{line}; `hooksaga serve` does not start with it"),
            advice: Some(
                "set callbacks.ca_file to a PEM file of root certificates that the user that runs hooksaga can read, or \
                 remove it"
                    .to_owned(),
            ),
        };
    }
    let number = CertificateDer::pem_file_iter(file).map_or(0, |found| found.flatten().count());
    Finding::ok(
        CALLBACKS,
        format!(
            "endpoints' certificates are checked against the public authorities and {} of {}",
            output::count(number as u64, "certificate"),
            file.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn a_certificate_is_judged_by_how_long_it_is_still_valid() {
        let validity = Validity { from: at("2026-01-01T00:00:00Z"), until: at("2026-04-01T00:00:00Z") };
        for (now, verdict) in [
            ("2025-12-31T23:59:59Z", Verdict::Problem),
            ("2026-02-01T00:00:00Z", Verdict::Ok),
            ("2026-03-17T23:00:00Z", Verdict::Ok),
            ("2026-03-18T01:00:00Z", Verdict::Warning),
            ("2026-04-01T00:00:01Z", Verdict::Problem),
        ] {
            let finding = judge_validity(Path::new("cert.pem"), validity, at(now));
            assert_eq!(finding.verdict, verdict, "{now}: {finding:?}");
            assert!(finding.found.contains("cert.pem"), "{finding:?}");
        }
    }
}
