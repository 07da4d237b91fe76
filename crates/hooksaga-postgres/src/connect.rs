//! Opens one connection: tries the hosts in order, each with a time limit that includes the handshake, and sets the session up.
//!
//! The driver's own limit covers the socket alone: a server that accepts and never responds would keep it from the next host
//! forever.
//!
//! What a session is set up with travels in the startup message's `options`. A pooler may drop that: PgBouncer does so when
//! told to ignore it, and refuses the connection otherwise. So every session carries a mark; where it is missing the
//! settings are made one by one. That needs a session that stays ours, which a pooler in transaction mode does not give:
//! [`refuse_shared_sessions`] finds out.

use crate::{
    error::checked,
    options::SessionOptions,
    pool::{Commits, connect_once},
};
use deadpool_postgres::Connect;
use hooksaga_store::{StoreError, StoreResult};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_postgres::{
    Client, Config, Connection, Error, SimpleQueryMessage, Socket,
    config::{Host, LoadBalanceHosts},
    tls::MakeTlsConnect,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long one host may take, its handshake included, unless the URL says otherwise (`connect_timeout`).
pub(crate) const HOST_TIMEOUT: Duration = Duration::from_secs(5);

/// A session whose `options` arrived has this setting.
pub(crate) const MARK: (&str, &str) = ("hooksaga.session", "on");

/// As the pool wants it.
type Connecting<'a> = Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + 'a>>;
/// What a session is read from and written to.
pub(crate) type SessionStream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// Connects host by host, beginning with the one that was right last time.
#[derive(Clone)]
pub(crate) struct HostByHost {
    tls: MakeRustlsConnect,
    last_right: Arc<AtomicUsize>,
}

impl HostByHost {
    pub(crate) fn new(tls: MakeRustlsConnect) -> Self {
        Self { tls, last_right: Arc::default() }
    }

    pub(crate) async fn open(
        &self,
        config: &Config,
    ) -> Result<(Client, Connection<Socket, SessionStream>), Error> {
        let hosts = config.get_hosts().len().max(config.get_hostaddrs().len()).max(1);
        let limit = config.get_connect_timeout().copied().unwrap_or(HOST_TIMEOUT);
        // Spread at random, if the URL asks for it: by where it begins.
        let first = match config.get_load_balance_hosts() {
            LoadBalanceHosts::Random => random_below(hosts),
            _ => self.last_right.load(Ordering::Relaxed),
        };
        let mut failure = None;
        for index in (0..hosts).map(|step| (first + step) % hosts) {
            let one = only_host(config, index);
            let connecting = one.connect(self.tls.clone());
            match tokio::time::timeout(limit, connecting).await {
                Ok(Ok(connected)) => {
                    self.last_right.store(index, Ordering::Relaxed);
                    return Ok(connected);
                }
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(failure.unwrap_or_else(Error::__private_api_timeout)),
            }
        }
        Err(failure.unwrap_or_else(Error::__private_api_timeout))
    }
}

impl Connect for HostByHost {
    fn connect(&self, config: &Config) -> Connecting<'_> {
        let config = config.clone();
        Box::pin(async move {
            let (client, connection) = self.open(&config).await?;
            let driving = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a database connection ended");
                }
            });
            Ok((client, driving))
        })
    }
}

fn random_below(count: usize) -> usize {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let drawn = RandomState::new().build_hasher().finish();
    usize::try_from(drawn % count as u64).unwrap_or(0)
}

/// The same configuration with one of its hosts.
fn only_host(config: &Config, index: usize) -> Config {
    let mut one = Config::new();
    if let Some(host) = config.get_hosts().get(index) {
        match host {
            Host::Tcp(name) => one.host(name),
            Host::Unix(folder) => one.host_path(folder),
        };
    }
    if let Some(address) = config.get_hostaddrs().get(index) {
        one.hostaddr(*address);
    }
    if let Some(port) = config.get_ports().get(index).or_else(|| config.get_ports().first()) {
        one.port(*port);
    }
    if let Some(user) = config.get_user() {
        one.user(user);
    }
    if let Some(password) = config.get_password() {
        one.password(password);
    }
    if let Some(name) = config.get_dbname() {
        one.dbname(name);
    }
    if let Some(options) = config.get_options() {
        one.options(options);
    }
    if let Some(name) = config.get_application_name() {
        one.application_name(name);
    }
    if let Some(limit) = config.get_connect_timeout() {
        one.connect_timeout(*limit);
    }
    if let Some(limit) = config.get_tcp_user_timeout() {
        one.tcp_user_timeout(*limit);
    }
    one.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    if let Some(interval) = config.get_keepalives_interval() {
        one.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one
}

/// Sees to it that a new session has the settings of its `options`, and commits as it should.
pub(crate) async fn set_up(client: &Client, options: &str, commits: Commits) -> Result<(), Error> {
    let (mark, on) = MARK;
    let sql = format!("SELECT current_setting('{mark}', true); {}", commits.setting());
    let marked = client.simple_query(&sql).await?.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0) == Some(on)),
        _ => None,
    });
    if marked != Some(true) {
        client.batch_execute(&as_sql(options)).await?;
    }
    Ok(())
}

/// The settings of a startup message's `options`, as a statement that makes them in the same order, and one more that says
/// how they were made. What is not `-c name=value` or `--name=value` is left out.
fn as_sql(options: &str) -> String {
    let literal = |text: &str| format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let mut words = words(options).into_iter();
    let mut calls = vec!["set_config('hooksaga.by_hand', 'on', false)".to_owned()];
    while let Some(word) = words.next() {
        let setting = match word.strip_prefix("-c") {
            Some("") => words.next(),
            Some(rest) => Some(rest.to_owned()),
            None => word.strip_prefix("--").map(str::to_owned),
        };
        if let Some((name, value)) = setting.as_deref().and_then(|setting| setting.split_once('=')) {
            calls.push(format!("set_config({}, {}, false)", literal(name), literal(value)));
        }
    }
    format!("SELECT {}", calls.join(", "))
}

/// Splits at blanks, unless a backslash stands before them, as the server does.
fn words(options: &str) -> Vec<String> {
    let (mut words, mut open, mut escaped) = (Vec::new(), String::new(), false);
    for c in options.chars() {
        if escaped || (c != '\\' && !c.is_whitespace()) {
            open.push(c);
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if !open.is_empty() {
            words.push(std::mem::take(&mut open));
        }
    }
    words.extend(Some(open).filter(|word| !word.is_empty()));
    words
}

/// If this session's settings had to be made by hand, there is a pooler in between: makes sure that sessions are not shared.
/// In transaction mode the next transaction runs wherever there is room, with the settings of whoever was there before:
/// roles, time limits and isolation would be anybody's.
pub(crate) async fn refuse_shared_sessions(client: &Client, session: &SessionOptions) -> StoreResult<()> {
    let by_hand = "SELECT current_setting('hooksaga.by_hand', true) IS NOT DISTINCT FROM 'on'";
    let by_hand: bool = checked(checked(client.query_one(by_hand, &[]).await)?.try_get(0))?;
    if !by_hand {
        return Ok(());
    }
    let other = connect_once(session).await?;
    for _ in 0..3 {
        for (client, name) in [(client, "one"), (&other, "two")] {
            checked(
                client.batch_execute(&format!("SELECT set_config('hooksaga.whose', '{name}', false)")).await,
            )?;
        }
        for (client, name) in [(client, "one"), (&other, "two")] {
            let rows = checked(client.simple_query("SELECT current_setting('hooksaga.whose', true)").await)?;
            let own = rows
                .iter()
                .any(|row| matches!(row, SimpleQueryMessage::Row(row) if row.get(0) == Some(name)));
            if !own {
                return Err(StoreError::Setup(
                    "a connection pooler between hooksaga and PostgreSQL shares sessions (PgBouncer: pool_mode = \
                     transaction or statement): hooksaga needs pool_mode = session, or database.url to name \
                     PostgreSQL itself"
                        .to_owned(),
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_statements_in_their_order() {
        let sql = as_sql(r"-c jit=off -c a.b=read\ committed --x=it's  -cy=\\z -B 5");
        assert_eq!(
            sql,
            r"SELECT set_config('hooksaga.by_hand', 'on', false), set_config(E'jit', E'off', false), set_config(E'a.b', E'read committed', false), set_config(E'x', E'it\'s', false), set_config(E'y', E'\\z', false)"
        );
    }

    #[test]
    fn one_host_keeps_everything_else() {
        let url = "postgres://u:p@a:1,b:2/db?connect_timeout=3&target_session_attrs=read-write&options=-c%20jit%3Doff";
        let config: Config = url.parse().expect("a URL");
        let one = only_host(&config, 1);
        assert_eq!((one.get_hosts().len(), one.get_ports()), (1, &[2][..]));
        assert!(matches!(&one.get_hosts()[0], Host::Tcp(name) if name == "b"));
        assert_eq!(
            (one.get_user(), one.get_dbname(), one.get_options()),
            (Some("u"), Some("db"), Some("-c jit=off"))
        );
        assert_eq!(one.get_password(), config.get_password());
        assert_eq!(one.get_connect_timeout(), config.get_connect_timeout());
        assert_eq!(one.get_target_session_attrs(), config.get_target_session_attrs());
    }
}
