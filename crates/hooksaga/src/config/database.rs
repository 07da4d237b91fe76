//! `database.*`: which database, and how its roles are used.

use super::{ConfigError, keys, settings::Settings};
use hooksaga_store::Role;
use std::{collections::BTreeMap, fmt, path::PathBuf};

const DEFAULT_URL: &str = "sqlite://hooksaga-data/hooksaga.db";

/// Which back end, and where.
#[derive(Clone)]
pub(crate) enum Backend {
    /// Embedded: the database file.
    Sqlite(PathBuf),
    /// A PostgreSQL URL.
    Postgres(String),
    /// A MySQL or MariaDB URL.
    MySql(String),
}

impl Backend {
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
    pub(crate) backend: Backend,
    /// A login per role, where one is configured.
    pub(crate) role_urls: BTreeMap<Role, String>,
    /// Whether connections switch to the component's role (`database.roles = "off"`: they do not).
    pub(crate) roles: bool,
    /// Root certificates (PEM) for the connection to the database server.
    pub(crate) ca_file: Option<PathBuf>,
    /// As configured; may hold a password.
    url: String,
}

impl DatabaseConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let url = settings.text("database.url")?.unwrap_or_else(|| DEFAULT_URL.to_owned());
        let backend = parse_url(&url).map_err(|problem| settings.complain("database.url", &problem))?;
        let roles = settings.word("database.roles", &[("on", true), ("off", false)])?.unwrap_or(true);
        let mut role_urls = BTreeMap::new();
        for role in Role::ALL {
            let key = keys::role_url(*role);
            let Some(url) = settings.text(&key)? else { continue };
            match (&backend, parse_url(&url)) {
                (_, Err(problem)) => return Err(settings.complain(&key, &problem)),
                (Backend::Postgres(_), Ok(Backend::Postgres(_)))
                | (Backend::MySql(_), Ok(Backend::MySql(_))) => role_urls.insert(*role, url),
                (Backend::Sqlite(_), _) => {
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
        let ca_file = settings.text("database.ca_file")?.map(PathBuf::from);
        if ca_file.is_some() {
            let reason = match backend {
                Backend::Sqlite(_) => {
                    "SQLite has no connection to secure: remove it, or set database.url to a database server"
                }
                // Better refused than ignored: whoever sets it relies on it.
                Backend::Postgres(_) | Backend::MySql(_) => {
                    "private authorities are not supported yet: remove it, and use a certificate of a public authority \
                     with sslmode=require (MySQL: require_ssl=true)"
                }
            };
            return Err(settings.complain("database.ca_file", reason));
        }
        Ok(Self { backend, role_urls, roles, ca_file, url })
    }

    /// What the URL lacks, if the connection crosses a network and the server at its other end could be anybody: no
    /// certificate is checked.
    pub(super) fn unchecked(&self) -> Option<&'static str> {
        let needed = match &self.backend {
            Backend::Sqlite(_) => return None,
            Backend::Postgres(_) => "sslmode=require",
            Backend::MySql(_) => "require_ssl=true",
        };
        let (_, rest) = self.url.split_once("://")?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let given = |parameter: &str| query.split('&').any(|pair| pair.eq_ignore_ascii_case(parameter));
        let checked = given(needed) && !given("verify_ca=false") && !given("verify_identity=false");
        let address = address.rsplit_once('@').map_or(address, |(_, hosts)| hosts);
        let hosts = address.split('/').next().unwrap_or(address);
        (!checked && !hosts.split(',').all(is_this_machine)).then_some(needed)
    }

    /// The URL with its password masked.
    pub(super) fn masked_url(&self) -> String {
        mask_url(&self.url)
    }
}

impl fmt::Debug for DatabaseConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roles: Vec<&Role> = self.role_urls.keys().collect();
        f.debug_struct("DatabaseConfig").field("url", &self.masked_url()).field("role_urls", &roles).finish()
    }
}

/// A host and port of a URL that lead no further: none at all, a socket's folder, loopback.
fn is_this_machine(host: &str) -> bool {
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.is_empty()
        || host.to_ascii_lowercase().starts_with("%2f")
        || host.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn parse_url(url: &str) -> Result<Backend, String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(
            "this is not a database URL: it begins with sqlite://, postgres:// or mysql://".to_owned()
        );
    };
    match scheme {
        "sqlite" if rest.is_empty() || rest.ends_with('/') => {
            Err("the file is missing: write it like sqlite://hooksaga-data/hooksaga.db".to_owned())
        }
        "sqlite" if rest.contains('?') || rest.starts_with(':') => {
            Err("only the path of a file can follow sqlite://, without parameters".to_owned())
        }
        "sqlite" => Ok(Backend::Sqlite(PathBuf::from(rest))),
        "postgres" | "postgresql" => Ok(Backend::Postgres(url.to_owned())),
        "mysql" | "mariadb" => Ok(Backend::MySql(url.to_owned())),
        other => Err(format!("there is no back end {other}://: use sqlite://, postgres:// or mysql://")),
    }
}

/// The URL without its password, also where it stands among the parameters.
pub(super) fn mask_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    let (address, query) = match rest.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (rest, None),
    };
    // The last @ ends the user info: a password may hold one that was not encoded.
    let address = match address.rsplit_once('@') {
        Some((user_info, host)) => match user_info.split_once(':') {
            Some((user, _)) => format!("{user}:****@{host}"),
            None => format!("{user_info}@{host}"),
        },
        None => address.to_owned(),
    };
    let query = query.map(|query| {
        let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if name.to_ascii_lowercase().contains("password") => format!("{name}=****"),
            _ => parameter.to_owned(),
        });
        format!("?{}", parameters.collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{address}{}", query.unwrap_or_default())
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
        ] {
            assert_eq!(mask_url(url), masked);
        }
    }

    #[test]
    fn sqlite_urls_name_a_file() {
        for (url, path) in [("sqlite://a/b.db", "a/b.db"), ("sqlite:///tmp/x.db", "/tmp/x.db")] {
            assert!(matches!(parse_url(url), Ok(Backend::Sqlite(found)) if found.as_os_str() == path));
        }
        for url in [
            "sqlite://",
            "sqlite://folder/",
            "sqlite://:memory:",
            "sqlite://a.db?mode=ro",
            "a.db",
            "redis://x",
        ] {
            assert!(parse_url(url).is_err(), "{url}");
        }
    }
}
