//! How to reach the database, and how every session is set up.

use crate::{
    connect::{HOST_TIMEOUT, MARK},
    error::from_url,
    tls,
};
use hooksaga_store::{Role, ServerOptions, StoreResult, database_tls::TlsParameters};
use std::time::Duration;
use tokio_postgres::{Config, config::TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Settings that the URL's own `options` may override.
const DEFAULTS: &[(&str, &str)] = &[
    ("statement_timeout", "30s"),
    ("lock_timeout", "10s"),
    ("idle_in_transaction_session_timeout", "30s"),
    // A pooled connection and a listener may be quiet for long.
    ("idle_session_timeout", "0"),
    // Compiling a plan costs more than any of these statements.
    ("jit", "off"),
];

/// How long ingestion waits for an `external_id` that an open transaction elsewhere is storing: its batch then goes on
/// without it.
const INGEST_LOCK_TIMEOUT: &str = "500ms";

/// How long the orchestrator waits for what somebody has locked: its batches are of many subscriptions, and what is locked for
/// longer is passed over.
const ORCHESTRATOR_LOCK_TIMEOUT: &str = "2s";

/// Settings that correctness rests on: they hold whatever the server's default is.
const FIXED: &[(&str, &str)] = &[("default_transaction_isolation", "read committed"), ("TimeZone", "UTC")];

/// For the roles whose statements run all the time and drive from a batch of keys: their plans are nested loops
/// over indexes at any table size. A plan cached while the tables were small would otherwise go on scanning
/// and hashing whole tables until the next ANALYZE. No statement of these roles joins two batches in SQL.
const KEYED_PLANS: &[(&str, &str)] = &[
    // Planned once: their plans do not depend on the parameters, and planning costs more than a small batch.
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    // Else a small table is kept in memory and compared row by row.
    ("enable_material", "off"),
    // A cache of what was looked up costs a small batch more than a second look by key.
    ("enable_memoize", "off"),
    // What these statements touch is in memory, and a descent of an index is cheap against reading rows: with the
    // default costs the plan for a table of a few dozen rows, too, scans all of it.
    ("seq_page_cost", "0.01"),
    ("random_page_cost", "0.01"),
    ("cpu_operator_cost", "0.0001"),
];

/// For the reader, whose statements join more freely, but never need a whole table. Where a list begins depends on what is
/// asked for (a tenant with ten rows, or with most of them), so each is planned for its own arguments. None takes longer
/// than [`hooksaga_store::QUERY_LIMIT`]. Compiling a plan would take longer than running it: the estimates are far too
/// high for statements that look into an index for each of a series of hours or minutes.
const READING: &[(&str, &str)] = &[
    ("enable_seqscan", "off"),
    ("plan_cache_mode", "force_custom_plan"),
    ("statement_timeout", "5s"),
    ("jit", "off"),
];

/// What a session is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SessionKind<'a> {
    /// Migrations, and a first look: as the login itself, and without time limits.
    Login,
    /// A component; `schema`: where the tables are, if that is known. It is named because `$user` in the
    /// search path means another schema after a switch of role.
    Component { role: Role, schema: Option<&'a str> },
}

/// How a session is opened.
#[derive(Clone)]
pub(crate) struct SessionOptions {
    pub(crate) config: Config,
    pub(crate) tls: MakeRustlsConnect,
}

impl SessionKind<'_> {
    /// How a session of this kind is opened.
    pub(crate) fn configuration(self, options: &ServerOptions) -> StoreResult<SessionOptions> {
        let Self::Component { role, schema } = self else {
            let mut session = parse("database.url", &options.url)?;
            let no_limits = [("statement_timeout", "0"), ("lock_timeout", "0"), ("jit", "off")];
            finish(&mut session.config, "hooksaga/migrate", &no_limits, FIXED.iter().copied());
            return Ok(session);
        };
        let mut fixed = FIXED.to_vec();
        fixed.extend_from_slice(planning(role));
        if options.shares_login(role) {
            fixed.extend(schema.map(|schema| ("search_path", schema)));
        }
        if options.switches(role) {
            fixed.push(("role", role.as_str()));
        }
        let (key, url) = options.url_of(role);
        let mut session = parse(&key, url)?;
        let mut defaults = DEFAULTS.to_vec();
        let lock_timeout = match role {
            Role::EventIngestWriter => Some(INGEST_LOCK_TIMEOUT),
            Role::SagaOrchestrator => Some(ORCHESTRATOR_LOCK_TIMEOUT),
            _ => None,
        };
        if let Some(lock_timeout) = lock_timeout {
            defaults.retain(|(name, _)| *name != "lock_timeout");
            defaults.push(("lock_timeout", lock_timeout));
        }
        finish(&mut session.config, &format!("hooksaga/{role}"), &defaults, fixed.into_iter());
        Ok(session)
    }
}

fn planning(role: Role) -> &'static [(&'static str, &'static str)] {
    match role {
        Role::EventIngestWriter
        | Role::SubscriptionVerifier
        | Role::RouterWorker
        | Role::SagaOrchestrator
        | Role::JobWorker
        | Role::LeaseCleaner
        | Role::DeadLetterOperator
        | Role::EndpointCaretaker
        | Role::HistoryJanitor
        | Role::ListIndexer => KEYED_PLANS,
        Role::ApiReader => READING,
        Role::SubscriptionAdmin | Role::KeyAdmin | Role::PortalKeyWriter | Role::KeyReader => &[],
    }
}

fn parse(key: &str, url: &str) -> StoreResult<SessionOptions> {
    let (parameters, url) = TlsParameters::take(key, url)?;
    let mut config: Config = url.parse().map_err(|error| from_url(key, &error))?;
    let tls = tls::apply(&parameters, &mut config)?;
    Ok(SessionOptions { config, tls })
}

/// Settings travel in the start-up message: no round trip, and `RESET` leads back to them.
fn finish<'a>(
    config: &mut Config,
    name: &str,
    defaults: &[(&str, &str)],
    fixed: impl Iterator<Item = (&'a str, &'a str)>,
) {
    let mut options: Vec<String> = defaults.iter().map(|(key, value)| setting(key, value)).collect();
    options.push(setting(MARK.0, MARK.1));
    options.extend(config.get_options().map(str::to_owned));
    options.extend(fixed.map(|(key, value)| setting(key, value)));
    config.options(options.join(" "));
    config.application_name(name);
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(HOST_TIMEOUT);
    }
    // Nothing here works on a standby: of several hosts, the one that takes writes is meant.
    if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    // A server that vanished without a word must not hold a component for the kernel's two hours.
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(30));
    }
    config.keepalives_idle(Duration::from_secs(30)).keepalives_interval(Duration::from_secs(10));
}

/// One `-c key=value`; the server splits at blanks unless a backslash stands before them.
fn setting(key: &str, value: &str) -> String {
    let escaped: String = value
        .chars()
        .flat_map(|c| (c == '\\' || c.is_whitespace()).then_some('\\').into_iter().chain([c]))
        .collect();
    format!("-c {key}={escaped}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_store::RoleMode;

    fn options(url: &str) -> ServerOptions {
        let role_urls = [(Role::KeyAdmin, "postgres://keys@h/db".to_owned())].into();
        ServerOptions { role_urls, roles: RoleMode::Switch, ..ServerOptions::login(url) }
    }

    fn session_options(options: &ServerOptions, role: Role) -> String {
        let session = SessionKind::Component { role, schema: Some("my schema") }.configuration(options);
        session.ok().and_then(|session| session.config.get_options().map(str::to_owned)).unwrap_or_default()
    }

    #[test]
    fn a_session_switches_role_after_the_urls_own_options() {
        let text = session_options(&options("postgres://u@h/db?options=-c%20jit%3Don"), Role::RouterWorker);
        let position = |part: &str| text.find(part);
        assert!(position("-c jit=off") < position("-c jit=on"), "{text}");
        assert!(position("-c jit=on") < position("-c role=router_worker"), "{text}");
        assert!(text.contains(r"-c default_transaction_isolation=read\ committed"), "{text}");
        assert!(text.contains(r"-c search_path=my\ schema"), "{text}");
        assert!(text.contains("-c enable_seqscan=off"), "{text}");
    }

    #[test]
    fn a_role_with_its_own_login_does_not_switch() {
        let text = session_options(&options("postgres://u@h/db"), Role::KeyAdmin);
        assert!(!text.is_empty() && !text.contains("role="), "{text}");
        let off = ServerOptions { roles: RoleMode::Off, ..options("postgres://u@h/db") };
        assert!(!session_options(&off, Role::ApiReader).contains("role="));
    }

    #[test]
    fn a_bad_url_is_named_by_its_key_and_not_shown() {
        let error =
            SessionKind::Login.configuration(&ServerOptions::login("postgres://u:hunter2@h:port/db")).err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("database.url") && !text.contains("hunter2"), "{text}");
    }
}
