//! Settings that are valid but risky: each is logged with one line at the start.

use super::Config;
use ipnet::IpNet;
use std::{net::IpAddr, time::Duration};

/// A private network that is wider than this is hardly meant as a whole.
const WIDE_V4: u8 = 15;
const WIDE_V6: u8 = 31;

/// Clients may repeat a post for longer than this.
const SHORT_RETENTION: Duration = Duration::from_secs(24 * 3600);

pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    if config.dev {
        lines.push(
            "DEVELOPMENT MODE (--dev): callbacks over http and to this machine are allowed; never use it in production"
                .to_owned(),
        );
    }
    if config.auth.is_guessable() {
        lines.push(
            "auth.root_key has fewer than 24 characters and could be guessed: make one with `openssl rand -hex 24` before \
             anybody else reaches this server"
                .to_owned(),
        );
    }
    let listen = config.server.listen;
    if !listen.ip().is_loopback() && config.server.tls.is_none() {
        lines.push(format!(
            "the listener on {listen} has no TLS: API keys cross the network in plain text unless a proxy in front \
             speaks HTTPS (server.tls_cert and server.tls_key, or a loopback address in server.listen)"
        ));
    }
    match config.server.metrics_listen {
        Some(metrics) if !metrics.ip().is_loopback() => {
            lines.push(format!("metrics are readable without a key by whoever reaches {metrics}"));
        }
        None if !listen.ip().is_loopback() => lines.push(format!(
            "metrics are readable without a key by whoever reaches {listen}; give them an address of their own in \
             server.metrics_listen"
        )),
        Some(_) | None => {}
    }
    lines.extend(database(config));
    let wide: Vec<String> = config
        .callbacks
        .allow_networks
        .iter()
        .filter(|network| is_wide(network))
        .map(IpNet::to_string)
        .collect();
    if !wide.is_empty() && !config.dev {
        lines.push(format!(
            "callbacks.allow_networks is wide ({}): callbacks may reach any server in it; name the smallest \
             networks that will do",
            wide.join(", ")
        ));
    }
    if config.retention.finished.is_some_and(|kept| kept < SHORT_RETENTION) {
        lines.push(
            "retention.finished is shorter than a day: an external_id is forgotten with its event, so a client that \
             repeats a post later than that creates it again"
                .to_owned(),
        );
    }
    lines
}

/// The line about the connection to the database, if it has one.
pub(super) fn database(config: &Config) -> Option<String> {
    let problem = config.database.unverified()?;
    Some(format!(
        "the connection to the database is not authenticated: an attacker on the network could read and change \
         everything: {problem}; add \
         sslmode=verify-full to database.url (and set database.ca_file, if its authority is a private one)"
    ))
}

/// Whether a network covers so much that internal services are likely inside.
fn is_wide(network: &IpNet) -> bool {
    match network.addr() {
        // The whole of the loopback network is one machine.
        IpAddr::V4(address) => network.prefix_len() <= WIDE_V4 && !address.is_loopback(),
        IpAddr::V6(_) => network.prefix_len() <= WIDE_V6,
    }
}

#[cfg(test)]
mod tests {
    use super::super::from_flags;

    fn warned(flags: &[(&str, &str)], dev: bool) -> Vec<String> {
        let flags: Vec<_> =
            flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        from_flags(&flags, dev).expect("valid").warnings()
    }

    #[test]
    fn what_is_safe_is_not_warned_of() {
        assert!(warned(&[], false).is_empty());
        let private = [("callbacks.allow_networks", "10.1.0.0/16, 127.0.0.0/8, fd00:1::/48")];
        assert!(warned(&private, false).is_empty());
        assert!(warned(&[("retention.finished", "1d")], false).is_empty());
        assert!(warned(&[("auth.root_key", "this-has-24-characters-.")], false).is_empty());
        let tls = [
            ("server.listen", "0.0.0.0:1"),
            ("server.metrics_listen", "127.0.0.1:2"),
            ("server.tls_cert", "a"),
            ("server.tls_key", "b"),
        ];
        assert!(warned(&tls, false).is_empty());
        for url in [
            "postgres://u:p@127.0.0.1:5432/db",
            "postgres://u@localhost/db",
            "postgres:///db?host=/run/postgresql&user=u",
            "postgres://u@%2Frun%2Fpostgresql/db",
            "postgres://u@db.example,other.example:1/db?sslmode=require",
            "mysql://u:p@[::1]:3306/db",
            "postgres://u@db.example/db?sslmode=verify-full",
            "postgres://u@db.example/db?sslmode=verify-ca&sslrootcert=/ca.pem",
            "postgres://u@db.example/db?sslrootcert=/ca.pem",
            "mysql://u@db.example/db?require_ssl=true",
            "mysql://u@db.example/db?ssl-mode=VERIFY_IDENTITY",
        ] {
            assert!(warned(&[("database.url", url)], false).is_empty(), "{url}");
        }
    }

    #[test]
    fn each_hazard_has_its_line() {
        for (flags, dev, word) in [
            (
                &[("server.listen", "0.0.0.0:8080"), ("server.metrics_listen", "127.0.0.1:9")][..],
                false,
                "no TLS",
            ),
            (&[("server.listen", "[::]:8080"), ("server.metrics_listen", "[::1]:9")][..], false, "no TLS"),
            (
                &[("server.listen", "0.0.0.0:1"), ("server.tls_cert", "a"), ("server.tls_key", "b")][..],
                false,
                "server.metrics_listen",
            ),
            (&[("server.metrics_listen", "0.0.0.0:9")][..], false, "metrics"),
            (&[("callbacks.allow_networks", "0.0.0.0/0")][..], false, "allow_networks"),
            (&[("callbacks.allow_networks", "::/0")][..], false, "allow_networks"),
            (&[("callbacks.allow_networks", "10.0.0.0/8")][..], false, "allow_networks"),
            (
                &[("database.url", "postgres://u@db.example/db")][..],
                false,
                "prefer, the default, verifies nothing",
            ),
            (&[("database.url", "postgres://u@db.example/db?sslmode=prefer")][..], false, "verifies nothing"),
            (&[("database.url", "postgres:///db?host=db.example")][..], false, "verifies nothing"),
            (&[("database.url", "postgres:///db?host=/run,db.example")][..], false, "verifies nothing"),
            (&[("database.url", "postgres://localhost/db?hostaddr=10.1.2.3")][..], false, "verifies nothing"),
            (&[("database.url", "postgres://u@h/db?sslmode=disable")][..], false, "not encrypted"),
            (&[("database.url", "postgres://u@127.0.0.1,10.1.2.3:1/db")][..], false, "sslmode=verify-full"),
            (&[("database.url", "mysql://u:p@h:3306/db")][..], false, "not encrypted"),
            (
                &[("database.url", "mysql://h/db?require_ssl=true&verify_ca=false")][..],
                false,
                "verify_ca=false",
            ),
            (
                &[
                    ("database.url", "postgres://u@127.0.0.1/db"),
                    ("database.role_urls.job_worker", "postgres://w@db.example/db"),
                ][..],
                false,
                "verifies nothing",
            ),
            (&[("retention.finished", "23h")][..], false, "retention.finished"),
            (&[("auth.root_key", "only-23-characters-long")][..], false, "auth.root_key"),
            (&[][..], true, "--dev"),
        ] {
            let lines = warned(flags, dev);
            assert!(lines.len() == 1 && lines[0].contains(word) && !lines[0].contains('\n'), "{lines:?}");
        }
    }
}
