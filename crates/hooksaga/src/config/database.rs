//! `database.*`: which database, and how its roles are used.

use super::{ConfigError, keys, settings::Settings};
use hooksaga_store::{
    Role,
    database_tls::{TlsMode, TlsParameters, percent_decoded, with_authority},
};
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

const DEFAULT_URL: &str = "sqlite://hooksaga-data/hooksaga.db";

/// Which back end, and where.
#[derive(Clone)]
pub(crate) enum BackendUrl {
    /// Embedded: the database file.
    Sqlite(PathBuf),
    /// A PostgreSQL URL.
    Postgres(String),
    /// A MySQL or MariaDB URL.
    MySql(String),
}

impl BackendUrl {
    /// What kind of database it is, for people and metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::MySql(_) => "mysql",
        }
    }
}

#[derive(Clone)]
pub(crate) struct DatabaseConfig {
    pub(crate) backend: BackendUrl,
    /// A login per role, where one is configured.
    pub(crate) role_urls: BTreeMap<Role, String>,
    /// Whether connections switch to the component's role (`database.roles = "off"`: they do not).
    pub(crate) roles: bool,
    /// The authorities (PEM) that the database server's certificate may be from. It is part of every URL above.
    pub(crate) ca_file: Option<PathBuf>,
    /// As configured; may hold a password.
    url: String,
}

impl DatabaseConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let url = settings.text("database.url")?.unwrap_or_else(|| DEFAULT_URL.to_owned());
        let ca_file = settings.text("database.ca_file")?.map(PathBuf::from);
        let backend = parse_url(&url, ca_file.as_deref());
        let backend = backend.map_err(|problem| settings.complain("database.url", &problem))?;
        let roles = settings.word("database.roles", &[("on", true), ("off", false)])?.unwrap_or(true);
        let mut role_urls = BTreeMap::new();
        for role in Role::ALL {
            let key = keys::role_url(*role);
            let Some(url) = settings.text(&key)? else { continue };
            match (&backend, parse_url(&url, ca_file.as_deref())) {
                (_, Err(problem)) => return Err(settings.complain(&key, &problem)),
                (BackendUrl::Postgres(_), Ok(BackendUrl::Postgres(url)))
                | (BackendUrl::MySql(_), Ok(BackendUrl::MySql(url))) => role_urls.insert(*role, url),
                (BackendUrl::Sqlite(_), _) => {
                    return Err(settings.complain(
                        &key,
                        "SQLite has no logins: remove it, or set database.url to a database server",
                    ));
                }
                (_, Ok(_)) => {
                    return Err(settings.complain(&key, "it must be a URL of the same kind as database.url"));
                }
            };
        }
        if !roles && !role_urls.is_empty() {
            return Err(settings.complain(
                "database.roles",
                "\"off\" and database.role_urls contradict each other: remove one of them",
            ));
        }
        if ca_file.is_some() && matches!(backend, BackendUrl::Sqlite(_)) {
            return Err(settings.complain(
                "database.ca_file",
                "SQLite has no connection to secure: remove it, or set database.url to a database server",
            ));
        }
        Ok(Self { backend, role_urls, roles, ca_file, url })
    }

    /// What is wrong with a connection that crosses a network, if the server at its other end could be anybody: no
    /// certificate is verified.
    pub(super) fn unverified(&self) -> Option<&'static str> {
        let url = match &self.backend {
            BackendUrl::Sqlite(_) => return None,
            BackendUrl::Postgres(url) | BackendUrl::MySql(url) => url,
        };
        let is_mysql = matches!(self.backend, BackendUrl::MySql(_));
        [url].into_iter().chain(self.role_urls.values()).find_map(|url| unverified(url, is_mysql))
    }

    /// Whether every server that the URL names is this machine.
    pub(crate) fn is_on_this_machine(&self) -> bool {
        stays_here(&self.url)
    }

    /// The URL with its password masked.
    pub(crate) fn masked_url(&self) -> String {
        mask_url(&self.url)
    }
}

impl fmt::Debug for DatabaseConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roles: Vec<&Role> = self.role_urls.keys().collect();
        f.debug_struct("DatabaseConfig").field("url", &self.masked_url()).field("role_urls", &roles).finish()
    }
}

/// Whether every server that a URL names is this machine, also where it names them among the parameters.
fn stays_here(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let address = address.rsplit_once('@').map_or(address, |(_, hosts)| hosts);
    let hosts = address.split('/').next().unwrap_or(address);
    let parameters_stay = query.split('&').map(percent_decoded).all(|pair| match pair.split_once('=') {
        Some(("host" | "hostaddr", hosts)) => hosts.split(',').all(is_this_machine),
        _ => true,
    });
    parameters_stay && hosts.split(',').all(is_this_machine)
}

/// A host and port of a URL that lead no further: none at all, a socket's folder, loopback.
fn is_this_machine(host: &str) -> bool {
    let is_loopback =
        |text: &str| text.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    // Without a port an address of IPv6 may stand alone, as in hostaddr=::1.
    if is_loopback(host) {
        return true;
    }
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.is_empty()
        || host.starts_with('/')
        || host.to_ascii_lowercase().starts_with("%2f")
        || host.eq_ignore_ascii_case("localhost")
        || is_loopback(bare)
}

/// What is wrong with the connection of one URL, if it crosses a network unverified.
fn unverified(url: &str, is_mysql: bool) -> Option<&'static str> {
    let (parameters, _) = TlsParameters::take("", url).ok()?;
    let (_, rest) = url.split_once("://")?;
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let given = |parameter: &str| query.split('&').any(|pair| pair.eq_ignore_ascii_case(parameter));
    let problem = match parameters.mode {
        Some(TlsMode::VerifyCa | TlsMode::VerifyFull) => return None,
        None if is_mysql && given("require_ssl=true") => {
            if !given("verify_ca=false") {
                return None;
            }
            "verify_ca=false verifies nothing"
        }
        None if is_mysql => "it is not encrypted",
        Some(TlsMode::Disable) => "it is not encrypted",
        None | Some(TlsMode::Prefer) => "sslmode=prefer, the default, verifies nothing",
    };
    (!stays_here(url)).then_some(problem)
}

/// Which back end a URL is of. On a database server it gets the authority, if there is one.
fn parse_url(url: &str, ca_file: Option<&Path>) -> Result<BackendUrl, String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err("a database URL begins with sqlite://, postgres:// or mysql://".to_owned());
    };
    match scheme {
        "sqlite" if rest.is_empty() || rest.ends_with('/') => {
            Err("the file is missing: write it like sqlite://hooksaga-data/hooksaga.db".to_owned())
        }
        "sqlite" if rest.contains('?') || rest.starts_with(':') => {
            Err("only the path of a file can follow sqlite://, without parameters".to_owned())
        }
        "sqlite" => Ok(BackendUrl::Sqlite(PathBuf::from(rest))),
        "postgres" | "postgresql" => Ok(BackendUrl::Postgres(secured(url, ca_file)?)),
        "mysql" | "mariadb" => Ok(BackendUrl::MySql(secured(url, ca_file)?)),
        other => Err(format!("there is no back end {other}://: use sqlite://, postgres:// or mysql://")),
    }
}

/// A server's URL with the authority. What it says about TLS must make sense.
fn secured(url: &str, ca_file: Option<&Path>) -> Result<String, String> {
    // A ? begins the parameters. One in a password would make a host of the login, and a parameter of the rest.
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    if rest.split_once('?').is_some_and(|(address, query)| !address.contains('@') && query.contains('@')) {
        return Err("it has an @ only behind a ?: in a password write ? as %3F and @ as %40".to_owned());
    }
    let url = ca_file.map_or_else(|| url.to_owned(), |file| with_authority(url, file));
    TlsParameters::take("the URL", &url).map_err(|error| error.to_string())?;
    Ok(url)
}

/// The URL without its password, also where it stands among the parameters.
///
/// Split by hand, as in all of this file: a URL parser refuses what the drivers accept (several hosts, a password with a `?`
/// or an `@`), and a URL that does not parse must not be shown either.
pub(super) fn mask_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    // The last @ ends the user info: a password may hold one that was not encoded, and a ? too.
    let (user_info, rest) = match rest.rsplit_once('@') {
        Some((user_info, rest)) => (Some(user_info), rest),
        None => (None, rest),
    };
    let user_info = match user_info {
        None => String::new(),
        // The @ may just as well be in a password among the parameters, which then goes on behind it.
        Some(text) if text.contains('?') && text.to_ascii_lowercase().contains("password") => {
            return format!("{scheme}://****");
        }
        Some(text) => match text.split_once(':') {
            Some((user, _)) if !user.contains('?') => format!("{user}:****@"),
            None if !text.contains('?') => format!("{text}@"),
            _ => "****@".to_owned(),
        },
    };
    let (address, query) = match rest.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (rest, None),
    };
    let query = query.map(|query| {
        let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if name.to_ascii_lowercase().contains("password") => format!("{name}=****"),
            _ => parameter.to_owned(),
        });
        format!("?{}", parameters.collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{user_info}{address}{}", query.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_masked_wherever_they_stand() {
        for (url, masked) in [
            ("postgres://u:s3cret@h:5432/db", "postgres://u:****@h:5432/db"),
            (
                "postgres://u:s3@cret@h1:1,h2:2/db?target_session_attrs=read-write",
                "postgres://u:****@h1:1,h2:2/db?target_session_attrs=read-write",
            ),
            ("postgres://h/db?user=u&password=s3cret", "postgres://h/db?user=u&password=****"),
            ("postgres://u@h/db", "postgres://u@h/db"),
            ("mysql://u:s3cret@h/db?require_ssl=true", "mysql://u:****@h/db?require_ssl=true"),
            ("sqlite://a/b.db", "sqlite://a/b.db"),
            ("s3cret", "…"),
            ("postgres://u:s3?cret@h/db", "postgres://u:****@h/db"),
            ("mysql://u:s3?c@re?t@h/db?require_ssl=true", "mysql://u:****@h/db?require_ssl=true"),
            ("postgres://s3?cret@h/db", "postgres://****@h/db"),
            ("postgres://h/db?password=s3@cret", "postgres://****"),
            ("postgres://u@h/db?password=s3:c@ret", "postgres://****"),
        ] {
            assert_eq!(mask_url(url), masked);
        }
    }

    #[test]
    fn a_password_with_a_question_mark_is_refused_and_not_repeated() {
        for url in [
            "postgres://u:s3?cret@h/db",
            "postgresql://u:s3?cret@h/db?sslmode=verify-full",
            "mysql://u:s3?cret@h/db",
            "mariadb://u:?s3cret@h/db",
        ] {
            let Err(problem) = parse_url(url, None) else { panic!("{url} was taken") };
            assert!(problem.contains("%3F") && problem.contains("%40"), "{problem}");
            assert!(!problem.contains("s3") && !problem.contains("cret"), "{problem}");
        }
        for url in ["postgres://u:s3%3Fcret@h/db?connect_timeout=1", "postgres://u@h/db?application_name=a@b"]
        {
            assert!(parse_url(url, None).is_ok(), "{url}");
        }
        assert!(matches!(parse_url("sqlite://a@b.db", None), Ok(BackendUrl::Sqlite(_))));
    }

    #[test]
    fn a_url_stays_here_only_if_every_host_in_it_does() {
        for url in [
            "postgres://u:p@127.0.0.1:5432/db",
            "postgres:///db?host=/run/postgresql,localhost",
            "postgres:///db?hostaddr=127.0.0.1,::1",
            "postgres:///db?host=%2Frun%2Fpostgresql",
            "mysql://u@[::1]:3306/db",
        ] {
            assert!(stays_here(url), "{url}");
        }
        for url in [
            "postgres://u@db.example/db",
            "postgres://u@localhost,db.example/db",
            "postgres:///db?host=db.example",
            "postgres:///db?host=localhost,db.example",
            "postgres://u@localhost/db?hostaddr=10.1.2.3",
            "postgres:///db?hostaddr=127.0.0.1%2C10.1.2.3",
        ] {
            assert!(!stays_here(url), "{url}");
        }
    }

    #[test]
    fn sqlite_urls_name_a_file() {
        for (url, path) in [("sqlite://a/b.db", "a/b.db"), ("sqlite:///tmp/x.db", "/tmp/x.db")] {
            assert!(
                matches!(parse_url(url, None), Ok(BackendUrl::Sqlite(found)) if found.as_os_str() == path)
            );
        }
        for url in [
            "sqlite://",
            "sqlite://folder/",
            "sqlite://:memory:",
            "sqlite://a.db?mode=ro",
            "a.db",
            "redis://x",
        ] {
            assert!(parse_url(url, None).is_err(), "{url}");
        }
    }
}
