//! Every configuration key with the environment variable that overrides it.

use hooksaga_store::Role;

const KEYS: &[(&str, &str)] = &[
    ("database.url", "HOOKSAGA_DATABASE_URL"),
    ("database.roles", "HOOKSAGA_DATABASE_ROLES"),
    ("database.ca_file", "HOOKSAGA_DATABASE_CA_FILE"),
    ("server.listen", "HOOKSAGA_LISTEN"),
    ("server.max_payload_bytes", "HOOKSAGA_MAX_PAYLOAD_BYTES"),
    ("server.max_batch_bytes", "HOOKSAGA_MAX_BATCH_BYTES"),
    ("server.shutdown_grace", "HOOKSAGA_SHUTDOWN_GRACE"),
    ("server.metrics_listen", "HOOKSAGA_METRICS_LISTEN"),
    ("server.public_url", "HOOKSAGA_PUBLIC_URL"),
    ("server.tls_cert", "HOOKSAGA_TLS_CERT"),
    ("server.tls_key", "HOOKSAGA_TLS_KEY"),
    ("server.requests_per_second", "HOOKSAGA_REQUESTS_PER_SECOND"),
    ("auth.root_key", "HOOKSAGA_ROOT_KEY"),
    ("secrets.key", "HOOKSAGA_SECRET_KEY"),
    ("secrets.old_key", "HOOKSAGA_SECRET_OLD_KEY"),
    ("retry.base_delay", "HOOKSAGA_RETRY_BASE_DELAY"),
    ("retry.max_delay", "HOOKSAGA_RETRY_MAX_DELAY"),
    ("retry.max_retry_limit", "HOOKSAGA_RETRY_MAX_RETRY_LIMIT"),
    ("worker.concurrency", "HOOKSAGA_WORKER_CONCURRENCY"),
    ("worker.http_timeout", "HOOKSAGA_WORKER_HTTP_TIMEOUT"),
    ("worker.lease_duration", "HOOKSAGA_WORKER_LEASE_DURATION"),
    ("cleaner.interval", "HOOKSAGA_CLEANER_INTERVAL"),
    ("callbacks.allow_http", "HOOKSAGA_CALLBACKS_ALLOW_HTTP"),
    ("callbacks.allow_networks", "HOOKSAGA_CALLBACKS_ALLOW_NETWORKS"),
    ("callbacks.deny_networks", "HOOKSAGA_CALLBACKS_DENY_NETWORKS"),
    ("callbacks.proxy", "HOOKSAGA_CALLBACKS_PROXY"),
    ("callbacks.ca_file", "HOOKSAGA_CALLBACKS_CA_FILE"),
    ("callbacks.disable_after", "HOOKSAGA_CALLBACKS_DISABLE_AFTER"),
    ("callbacks.catch_up", "HOOKSAGA_CALLBACKS_CATCH_UP"),
    ("callbacks.allow_trusted", "HOOKSAGA_CALLBACKS_ALLOW_TRUSTED"),
    ("retention.finished", "HOOKSAGA_RETENTION_FINISHED"),
    ("retention.dead_letters", "HOOKSAGA_RETENTION_DEAD_LETTERS"),
    ("retention.archive", "HOOKSAGA_RETENTION_ARCHIVE"),
    ("portal.name", "HOOKSAGA_PORTAL_NAME"),
    ("portal.color", "HOOKSAGA_PORTAL_COLOR"),
    ("portal.frame_ancestors", "HOOKSAGA_PORTAL_FRAME_ANCESTORS"),
    ("log.format", "HOOKSAGA_LOG_FORMAT"),
    ("log.level", "HOOKSAGA_LOG_LEVEL"),
    ("log.deliveries", "HOOKSAGA_LOG_DELIVERIES"),
];

/// The keys whose values are secrets: each has a variable that names a file with the value, too.
const SECRET_KEYS: &[&str] = &["database.url", "auth.root_key", "secrets.key", "secrets.old_key"];

const FILE_SUFFIX: &str = "_FILE";

/// Variables of the client commands: no configuration of the server, and no mistake beside it.
const CLIENT_VARIABLES: &[&str] = &["HOOKSAGA_URL", "HOOKSAGA_API_KEY", "HOOKSAGA_API_KEY_FILE"];

const PREFIX: &str = "HOOKSAGA_";
const ROLE_URL_KEY: &str = "database.role_urls.";
const ROLE_URL_VARIABLE: &str = "HOOKSAGA_DATABASE_URL_";

/// The caretaker's role has the longest name that fits on MySQL; the name that it would have otherwise is accepted, too.
const CARETAKER_ALIAS: &str = "subscription_caretaker";
const CARETAKER: &str = "endpoint_caretaker";

/// What an environment variable is to the configuration.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Variable {
    /// It overrides this key.
    Key(String),
    /// It names a file that holds the value of this key, which the other variable would give itself.
    FileOf { key: String, direct: String },
    /// Not ours, or a client's.
    Other,
    /// It looks like ours, and is not.
    Unknown,
}

/// Sorts an environment variable by its name.
pub(super) fn variable(name: &str) -> Variable {
    if !name.starts_with(PREFIX) || CLIENT_VARIABLES.contains(&name) {
        return Variable::Other;
    }
    if let Some((key, _)) = KEYS.iter().find(|(_, variable)| *variable == name) {
        return Variable::Key((*key).to_owned());
    }
    let role = name.strip_prefix(ROLE_URL_VARIABLE).and_then(|suffix| {
        let mut names = Role::ALL.iter().map(|role| role.as_str()).chain([CARETAKER_ALIAS]);
        names.find(|role| role.to_ascii_uppercase() == suffix)
    });
    if let Some(role) = role {
        return Variable::Key(meant(format!("{ROLE_URL_KEY}{role}")));
    }
    match name.strip_suffix(FILE_SUFFIX).map(|direct| (direct, variable(direct))) {
        Some((direct, Variable::Key(key))) if is_secret(&key) => {
            Variable::FileOf { key, direct: direct.to_owned() }
        }
        _ => Variable::Unknown,
    }
}

/// Whether the value of this key is a secret, or may hold one.
fn is_secret(key: &str) -> bool {
    SECRET_KEYS.contains(&key) || key.starts_with(ROLE_URL_KEY)
}

/// The key of a role's own login.
pub(super) fn role_url(role: Role) -> String {
    format!("{ROLE_URL_KEY}{role}")
}

/// The key that a name stands for.
pub(super) fn meant(key: String) -> String {
    let alias = key.strip_prefix(ROLE_URL_KEY).is_some_and(|role| role == CARETAKER_ALIAS);
    if alias { format!("{ROLE_URL_KEY}{CARETAKER}") } else { key }
}

/// Whether there is such a key.
pub(super) fn exists(key: &str) -> bool {
    KEYS.iter().any(|(known, _)| *known == key)
        || key.strip_prefix(ROLE_URL_KEY).is_some_and(|role| role.parse::<Role>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_map_to_existing_keys() {
        for (key, name) in KEYS {
            assert_eq!(variable(name), Variable::Key((*key).to_owned()));
            assert!(exists(key));
        }
        assert_eq!(
            variable("HOOKSAGA_DATABASE_URL_JOB_WORKER"),
            Variable::Key("database.role_urls.job_worker".to_owned())
        );
        assert!(exists("database.role_urls.job_worker"));
        assert_eq!(
            variable("HOOKSAGA_DATABASE_URL_SUBSCRIPTION_CARETAKER"),
            variable("HOOKSAGA_DATABASE_URL_ENDPOINT_CARETAKER")
        );
        assert_eq!(
            variable("HOOKSAGA_DATABASE_URL_SUBSCRIPTION_CARETAKER"),
            Variable::Key("database.role_urls.endpoint_caretaker".to_owned())
        );
    }

    #[test]
    fn every_key_is_in_the_documentation_and_in_what_is_printed() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md"))
                .expect("is there");
        let rows: Vec<Vec<&str>> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
            .collect();
        let documented: Vec<(&str, &str)> = rows
            .iter()
            .filter(|row| row[1].starts_with(PREFIX))
            .flat_map(|row| row[0].split("`, `").zip(row[1].split("`, `")))
            .collect();
        for (key, name) in KEYS {
            assert!(
                documented.contains(&(*key, *name)),
                "{key} and {name} are no row of docs/CONFIGURATION.md"
            );
        }
        for (key, name) in documented.iter().filter(|(key, _)| !key.starts_with(ROLE_URL_KEY)) {
            assert!(KEYS.contains(&(*key, *name)), "{key} and {name} are documented and do not exist");
        }
        let printed = crate::config::from_flags(&[], false).expect("the default").show();
        let mut table = "";
        let mut shown = Vec::new();
        for line in printed.lines() {
            if let Some(name) = line.strip_prefix('[') {
                table = name.trim_end_matches(']');
            } else if let Some(key) = line.trim_start_matches("# ").split([' ', '=']).next() {
                shown.push(format!("{table}.{key}"));
            }
        }
        for (key, _) in KEYS {
            assert!(shown.iter().any(|printed| printed == key), "{key} is not in {printed}");
        }
    }

    #[test]
    fn every_secret_has_a_variable_for_a_file_and_nothing_else_has() {
        for (name, key) in [
            ("HOOKSAGA_ROOT_KEY_FILE", "auth.root_key"),
            ("HOOKSAGA_SECRET_KEY_FILE", "secrets.key"),
            ("HOOKSAGA_SECRET_OLD_KEY_FILE", "secrets.old_key"),
            ("HOOKSAGA_DATABASE_URL_FILE", "database.url"),
            ("HOOKSAGA_DATABASE_URL_JOB_WORKER_FILE", "database.role_urls.job_worker"),
        ] {
            let direct = name.trim_end_matches("_FILE").to_owned();
            assert_eq!(variable(name), Variable::FileOf { key: key.to_owned(), direct });
        }
        assert_eq!(variable("HOOKSAGA_LISTEN_FILE"), Variable::Unknown);
        assert_eq!(variable("HOOKSAGA_ROOT_KEY_FILE_FILE"), Variable::Unknown);
    }

    #[test]
    fn strangers_with_our_prefix_are_unknown_and_all_others_are_none_of_our_business() {
        for name in [
            "HOOKSAGA_LISTEM",
            "HOOKSAGA_DATABASE_URL_NOBODY",
            "HOOKSAGA_DATABASE_URL_job_worker",
            "HOOKSAGA_",
        ] {
            assert_eq!(variable(name), Variable::Unknown, "{name}");
        }
        for name in ["PATH", "HOOKSAGA_URL", "HOOKSAGA_API_KEY", "HOOKSAGA_API_KEY_FILE", "hooksaga_listen"] {
            assert_eq!(variable(name), Variable::Other, "{name}");
        }
        assert!(!exists("database.role_urls.nobody"));
    }
}
