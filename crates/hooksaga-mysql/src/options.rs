//! How to reach the database, and how every session is set up.

use crate::{hosts::Hosts, rights::role_name, tls};
use hooksaga_store::{Role, ServerOptions, StoreError, StoreResult, database_tls::TlsParameters};
use mysql_async::{Opts, OptsBuilder, PoolConstraints, PoolOpts, UrlError};
use std::time::Duration;

/// Correctness needs these settings, whatever the server's defaults are: errors instead of silent changes of values, the
/// usual meaning of backslash and quotes, UTC, and results in utf8mb4. Each version comment is read by one of the two servers
/// only.
const SETTINGS: &str = "SET NAMES utf8mb4, autocommit = 1, time_zone = '+00:00', \
     sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO', \
     sql_safe_updates = 0, sql_select_limit = DEFAULT, group_concat_max_len = 1000000";
/// No statement waits or runs forever, and a process that is frozen in the middle of a transaction does not keep its locks:
/// the server ends the session. MySQL has no limit for idle transactions only; there the server ends every session that is
/// idle for this long, so idle connections are closed sooner ([`IDLE`]). If the server does not end a call,
/// [`crate::pool::ANSWER`] does.
const LIMITS: &str = "SET innodb_lock_wait_timeout = 5 \
     /*M!100100 , max_statement_time = 10, idle_transaction_timeout = 10 */ \
     /*!80000 , max_execution_time = 10000, wait_timeout = 60 */";
/// How long the pool keeps a connection that nobody uses.
const IDLE: Duration = Duration::from_secs(30);
/// The limits of ingestion, which never waits long for somebody else's key (`roles::ingest`).
const INGEST_LIMITS: &str = "SET innodb_lock_wait_timeout = 1";
/// The limits of the reader: [`hooksaga_store::QUERY_LIMIT`].
const READER_LIMITS: &str = "SET innodb_lock_wait_timeout = 5 \
     /*M!100100 , max_statement_time = 5 */ /*!80000 , max_execution_time = 5000 */";
/// With the default, REPEATABLE READ, a read before a lock would determine what the reads after it see.
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionKind {
    /// Migrations: as the login itself, and without time limits.
    Login,
    /// A session without a database.
    Server,
    Component(Role),
}

/// The database that `url` names.
pub(crate) fn database_of(options: &ServerOptions) -> StoreResult<String> {
    let hosts = Hosts::read(&options.url, |url| parse("database.url", url))?;
    database("database.url", hosts.first())
}

impl SessionKind {
    /// The configuration of a session, on each server that the URL names.
    pub(crate) fn configuration(self, options: &ServerOptions) -> StoreResult<Hosts> {
        let (key, url) = match self {
            Self::Component(role) => options.url_of(role),
            Self::Login | Self::Server => ("database.url".to_owned(), &*options.url),
        };
        Hosts::read(url, |url| self.on_one_host(options, &key, url))
    }

    fn on_one_host(self, options: &ServerOptions, key: &str, url: &str) -> StoreResult<Opts> {
        let opts = parse(key, url)?;
        let mut setup = vec![SETTINGS.to_owned(), ISOLATION.to_owned()];
        if self != Self::Server {
            let database = database(key, &opts)?;
            if let Self::Component(role) = self {
                setup.push(LIMITS.to_owned());
                if role == Role::EventIngestWriter {
                    setup.push(INGEST_LIMITS.to_owned());
                }
                if role == Role::ApiReader {
                    setup.push(READER_LIMITS.to_owned());
                }
                if options.switches(role) {
                    setup.push(format!("SET ROLE {}", literal(&role_name(&database, role))));
                }
            }
            // Not in the handshake: a login without rights of its own has some only after it has its role.
            setup.push(format!("USE {}", identifier(&database)));
        }
        let size = options.max_connections_per_role.max(1);
        let pool = PoolOpts::default()
            .with_constraints(PoolConstraints::new(0, size).unwrap_or_default())
            // A reset would take away the prepared statements and the set-up. Transactions that were not ended are
            // rolled back all the same.
            .with_reset_connection(false)
            .with_inactive_connection_ttl(IDLE)
            .with_ttl_check_interval(IDLE / 3);
        let name = match self {
            Self::Component(role) => format!("hooksaga/{role}"),
            Self::Login | Self::Server => "hooksaga/migrate".to_owned(),
        };
        Ok(OptsBuilder::from_opts(opts)
            .db_name(None::<String>)
            // One text, since the driver would run several in no order that it promises.
            .setup(vec![setup.join("; ")])
            .pool_opts(pool)
            .stmt_cache_size(128)
            // "Rows affected" are the rows that a guard let through.
            .client_found_rows(true)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(Duration::from_secs(30)))
            .prefer_socket(false)
            .connect_attribute("program_name", name)
            .into())
    }
}

fn parse(key: &str, url: &str) -> StoreResult<Opts> {
    let url = match url.strip_prefix("mariadb://") {
        Some(rest) => format!("mysql://{rest}"),
        None => url.to_owned(),
    };
    let (parameters, url) = TlsParameters::take(key, &url)?;
    let opts = Opts::from_url(&url).map_err(|error| {
        // What the parser names are keys; the values could be a password.
        let text = match error {
            UrlError::InvalidParamValue { param, .. } => format!("the value of {param} is not valid"),
            UrlError::UnknownParameter { param } => format!("there is no parameter {param}"),
            UrlError::Parse(error) => error.to_string(),
            _ => "write it like mysql://LOGIN:PASSWORD@HOST/DATABASE".to_owned(),
        };
        StoreError::Setup(format!(
            "{key} is not a usable MySQL URL ({text}): write it like mysql://LOGIN@HOST/DATABASE"
        ))
    })?;
    let ssl_opts = tls::ssl_opts(key, &parameters, &opts)?;
    Ok(OptsBuilder::from_opts(opts).ssl_opts(ssl_opts).into())
}

fn database(key: &str, opts: &Opts) -> StoreResult<String> {
    let name = opts.db_name().filter(|name| !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| {
        StoreError::Setup(format!("{key} names no database: write it like mysql://LOGIN@HOST/DATABASE"))
    })
}

pub fn identifier(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_store::RoleMode;

    fn options(url: &str) -> ServerOptions {
        let role_urls = [(Role::KeyAdmin, "mysql://keys@h/db".to_owned())].into();
        ServerOptions { role_urls, roles: RoleMode::Switch, ..ServerOptions::login(url) }
    }

    fn setup(options: &ServerOptions, role: Role) -> String {
        let hosts = SessionKind::Component(role).configuration(options).expect("usable");
        let opts = hosts.first();
        assert_eq!(opts.db_name(), None);
        opts.setup().join(";")
    }

    #[test]
    fn a_session_switches_role_before_it_enters_the_database() {
        for url in ["mysql://u@h/my%20db", "mariadb://u@h:3307/my%20db"] {
            let text = setup(&options(url), Role::RouterWorker);
            let position = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in {text}"));
            assert!(position("SET ROLE '") < position("USE `my db`"), "{text}");
            assert!(position("READ COMMITTED") > 0 && position("STRICT_ALL_TABLES") > 0);
        }
    }

    #[test]
    fn a_role_with_its_own_login_does_not_switch() {
        let text = setup(&options("mysql://u@h/db"), Role::KeyAdmin);
        assert!(text.contains("USE `db`") && !text.contains("SET ROLE"), "{text}");
        let off = ServerOptions { roles: RoleMode::Off, ..options("mysql://u@h/db") };
        assert!(!setup(&off, Role::ApiReader).contains("SET ROLE"));
    }

    #[test]
    fn a_bad_url_is_named_by_its_key_and_not_shown() {
        for url in [
            "mysql://u:hunter2@h:port/db",
            "mysql://u:hunter2@h",
            "mysql://u:hunter2@h/db?no=hunter2",
            "mysql://u:hunter2@h,i:port/db",
            "mysql://u:hunter2@h,/db",
        ] {
            let error = SessionKind::Login.configuration(&ServerOptions::login(url)).err();
            let text = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains("database.url") && !text.contains("hunter2"), "{url}: {text}");
        }
    }

    #[test]
    fn every_host_gets_the_same_session() {
        let options = options("mysql://u:p@one,two:3307/db");
        let hosts = SessionKind::Component(Role::ApiReader).configuration(&options).expect("usable");
        let (one, two) = (hosts.at(0), hosts.at(1));
        assert_eq!((hosts.count(), one.ip_or_hostname(), one.tcp_port()), (2, "one", 3306));
        assert_eq!((two.ip_or_hostname(), two.tcp_port()), ("two", 3307));
        assert_eq!((one.setup(), one.user(), one.pass()), (two.setup(), two.user(), two.pass()));
        assert_eq!(hosts.at(2).ip_or_hostname(), "one", "round and round");
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(identifier("a`b"), "`a``b`");
        assert_eq!(literal(r"o'h\ra"), r"'o''h\\ra'");
    }
}
