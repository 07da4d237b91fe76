//! Tests of `load.rs`.

use super::*;
use hooksaga_store::Role;
use std::time::Duration;

fn with(
    file: &str,
    environment: &[(&str, &str)],
    flags: &[(&str, &str)],
    dev: bool,
) -> Result<Config, ConfigError> {
    let mut settings = Settings::default();
    settings.add_file(Path::new("hooksaga.toml"), file)?;
    settings.add_environment(environment.iter().map(|(k, v)| (k.into(), v.into())))?;
    let flags: Vec<_> = flags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    settings.add_flags(&flags)?;
    build(&settings, dev)
}

fn refused(file: &str, environment: &[(&str, &str)]) -> String {
    let text = with(file, environment, &[], false).expect_err("should be refused").to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    text
}

#[test]
fn the_caretakers_login_has_two_names() {
    let login = |host: &str| format!("mysql://c:x@{host}/db");
    for name in ["endpoint_caretaker", "subscription_caretaker"] {
        let file = format!(
            "[database]\nurl = \"mysql://a@h/db\"\n[database.role_urls]\n{name} = \"{}\"",
            login("h")
        );
        let config = with(&file, &[], &[], false).expect(name);
        let urls = &config.database.role_urls;
        assert_eq!(urls.get(&Role::EndpointCaretaker), Some(&login("h")), "{name}");
        let overridden =
            with(&file, &[("HOOKSAGA_DATABASE_URL_ENDPOINT_CARETAKER", &login("other"))], &[], false);
        let urls = overridden.expect(name).database.role_urls;
        assert_eq!(urls.get(&Role::EndpointCaretaker), Some(&login("other")), "{name}");
    }
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let config = with("", &[], &[], false).expect("defaults are valid");
    let shown = config.show();
    for line in [
        "url = \"sqlite://hooksaga-data/hooksaga.db\"",
        "listen = \"127.0.0.1:8080\"",
        "max_payload_bytes = 1048576",
        "max_batch_bytes = 8388608",
        "shutdown_grace = \"20s\"",
        "# root_key is not set",
        "base_delay = \"30s\"",
        "max_delay = \"1h\"",
        "max_retry_limit = 5",
        "concurrency = 512",
        "http_timeout = \"15s\"",
        "lease_duration = \"60s\"",
        "interval = \"5s\"",
        "allow_http = false",
        "allow_networks = []",
        "deny_networks = []",
        "# proxy is not set",
        "disable_after = \"120h\"",
        "catch_up = \"24h\"",
        "allow_trusted = false",
        "finished = \"off\"",
        "dead_letters = \"off\"",
        "# archive is not set",
        "requests_per_second = \"off\"",
        "# metrics_listen is not set",
        "# public_url is not set",
        "# tls_cert is not set",
        "# old_key is not set",
        "name = \"Webhooks\"",
        "frame_ancestors = []",
        "level = \"info\"",
        "deliveries = \"all\"",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is missing in\n{shown}");
    }
}

#[test]
fn the_environment_overrides_the_file_and_flags_override_both() {
    let file = "[worker]\nconcurrency = 1\n[retry]\nmax_retry_limit = 2\nbase_delay = \"1s\"";
    let environment = [("HOOKSAGA_WORKER_CONCURRENCY", "3"), ("HOOKSAGA_RETRY_MAX_RETRY_LIMIT", "4")];
    let config = with(file, &environment, &[("worker.concurrency", "5")], false).expect("valid");
    assert_eq!(config.worker.concurrency, 5);
    assert_eq!(config.retry.max_retry_limit, 4);
    assert_eq!(config.retry.policy.base_delay, Duration::from_secs(1));
}

#[test]
fn a_complaint_names_the_key_and_where_it_was_set() {
    for (file, key) in [
        ("[worker]\nconcurency = 1", "worker.concurency"),
        ("colour = 1", "colour"),
        ("[worker]\nconcurrency = 0", "worker.concurrency"),
        ("[worker]\nhttp_timeout = 15", "worker.http_timeout"),
        ("[worker]\nhttp_timeout = \"59501ms\"", "worker.http_timeout"),
        ("[worker]\nlease_duration = \"15s\"", "worker.lease_duration"),
        ("[retry]\nbase_delay = \"0ms\"", "retry.base_delay"),
        ("[retry]\nmax_retry_limit = 101", "retry.max_retry_limit"),
        ("[callbacks]\nallow_networks = [\"10.0.0.0/33\"]", "callbacks.allow_networks"),
        ("[callbacks]\ndeny_networks = \"10.0.0.1/8/8\"", "callbacks.deny_networks"),
        ("[callbacks]\nproxy = \"proxy:3128\"", "callbacks.proxy"),
        ("[callbacks]\nallow_http = \"yes\"", "callbacks.allow_http"),
        ("[server]\nlisten = \"8080\"", "server.listen"),
        ("[server]\nmax_payload_bytes = \"1MB\"", "server.max_payload_bytes"),
        ("[server]\nmax_batch_bytes = -1", "server.max_batch_bytes"),
        ("[database]\nurl = \"oracle://h/db\"", "database.url"),
        ("[database]\nroles = \"maybe\"", "database.roles"),
        ("[database.role_urls]\nnobody = \"x\"", "database.role_urls.nobody"),
        ("[database.role_urls]\njob_worker = \"postgres://h/db\"", "database.role_urls.job_worker"),
        ("[secrets]\nkey = \"c2hvcnQ=\"", "secrets.key"),
        ("[auth]\nroot_key = \"two words\"", "auth.root_key"),
        ("[auth]\nroot_key = \"\"", "auth.root_key"),
        ("[server]\nlisten = \"0.0.0.0:1\"\n[auth]\nroot_key = \"only-23-characters-long\"", "auth.root_key"),
        (
            "[server]\npublic_url = \"https://hooks.example.com\"\n[auth]\nroot_key = \"only-23-characters-long\"",
            "auth.root_key",
        ),
        (
            "[server]\ntls_cert = \"c.pem\"\ntls_key = \"k.pem\"\n[auth]\nroot_key = \"short\"",
            "auth.root_key",
        ),
        ("[secrets]\nold_key = \"c2hvcnQ=\"", "secrets.old_key"),
        ("[server]\nmetrics_listen = \"9090\"", "server.metrics_listen"),
        ("[server]\nmetrics_listen = \"127.0.0.1:8080\"", "server.metrics_listen"),
        ("[server]\npublic_url = \"example.com\"", "server.public_url"),
        ("[server]\ntls_cert = \"a.pem\"", "server.tls_cert"),
        ("[server]\ntls_key = \"a.pem\"", "server.tls_key"),
        ("[server]\nrequests_per_second = 0", "server.requests_per_second"),
        ("[server]\nshutdown_grace = \"off\"", "server.shutdown_grace"),
        ("[callbacks]\ndisable_after = \"1ms\"", "callbacks.disable_after"),
        ("[callbacks]\ncatch_up = \"soon\"", "callbacks.catch_up"),
        ("[callbacks]\nallow_trusted = 1", "callbacks.allow_trusted"),
        ("[retention]\nfinished = \"59s\"", "retention.finished"),
        ("[retention]\nfinished = \"2d\"\ndead_letters = \"1d\"", "retention.dead_letters"),
        ("[retention]\ndead_letters = \"1d\"", "retention.dead_letters"),
        ("[retention]\narchive = \"\"", "retention.archive"),
        ("[portal]\nname = \"\"", "portal.name"),
        ("[portal]\ncolor = \"blue\"", "portal.color"),
        ("[portal]\nframe_ancestors = [\"*\"]", "portal.frame_ancestors"),
        ("[database]\nca_file = \"ca.pem\"", "database.ca_file"),
        ("[log]\nlevel = \"loud\"", "log.level"),
        ("worker = 5", "worker"),
    ] {
        let error = refused(file, &[]);
        assert!(error.contains(key) && error.contains("hooksaga.toml"), "{file}: {error}");
    }
}

#[test]
fn a_password_in_the_proxy_s_address_is_not_repeated() {
    let error = refused("", &[("HOOKSAGA_CALLBACKS_PROXY", "http://u:hunter2@proxy:3128")]);
    assert!(error.contains("callbacks.proxy") && !error.contains("hunter2"), "{error}");
}

#[test]
fn a_broken_file_is_named_with_its_line() {
    let error = refused("[worker]\nconcurrency = = 3\n", &[]);
    assert!(error.contains("hooksaga.toml line 2"), "{error}");
}

#[test]
fn unknown_variables_stop_the_start_and_those_of_clients_do_not() {
    assert!(refused("", &[("HOOKSAGA_LISTEM", "x")]).contains("HOOKSAGA_LISTEM"));
    let client = [("HOOKSAGA_URL", "http://x"), ("HOOKSAGA_API_KEY", "k"), ("PATH", "/bin")];
    assert!(with("", &client, &[], false).is_ok());
}

#[test]
fn a_bad_secret_is_not_repeated_in_the_complaint() {
    let error =
        refused("", &[("HOOKSAGA_SECRET_KEY", "hunter2hunter2"), ("HOOKSAGA_DATABASE_URL", "sqlite://x.db")]);
    assert!(error.contains("HOOKSAGA_SECRET_KEY") && !error.contains("hunter2"), "{error}");
    let error = refused("", &[("HOOKSAGA_DATABASE_URL", "redis://u:hunter2@h")]);
    assert!(error.contains("database.url") && !error.contains("hunter2"), "{error}");
}

#[test]
fn development_mode_needs_a_loopback_listener_and_opens_loopback_callbacks() {
    let config = with("", &[], &[], true).expect("the default listener is loopback");
    assert!(config.callbacks.allow_http);
    let networks: Vec<String> = config.callbacks.allow_networks.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["127.0.0.0/8", "::1/128"]);
    let error = with("", &[("HOOKSAGA_LISTEN", "0.0.0.0:8080")], &[], true).expect_err("not loopback");
    assert!(error.to_string().contains("HOOKSAGA_LISTEN"), "{error}");
}

#[test]
fn shown_configuration_masks_secrets_and_reads_back() {
    let key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let environment = [
        ("HOOKSAGA_DATABASE_URL", "postgres://u:hunter2@h/db"),
        ("HOOKSAGA_DATABASE_URL_JOB_WORKER", "postgres://w:hunter2@h/db"),
        ("HOOKSAGA_ROOT_KEY", "hunter2hunter2hunter2hunter2"),
        ("HOOKSAGA_SECRET_KEY", key),
        ("HOOKSAGA_CALLBACKS_ALLOW_NETWORKS", "10.0.0.0/8, fd00::/8"),
        ("HOOKSAGA_CALLBACKS_DENY_NETWORKS", "10.1.0.0/16,fd00:1::/32"),
        ("HOOKSAGA_CALLBACKS_PROXY", "http://proxy.example:3128"),
    ];
    let shown = with("", &environment, &[], false).expect("valid").show();
    assert!(!shown.contains("hunter2") && !shown.contains(key), "{shown}");
    // The secrets themselves have to be given again.
    let secrets = [("HOOKSAGA_SECRET_KEY", key), ("HOOKSAGA_ROOT_KEY", "hunter2hunter2hunter2hunter2")];
    let again = with(&shown, &secrets, &[], false).expect("it reads back");
    assert_eq!(again.show(), shown);
}

#[test]
fn every_new_setting_reads_back_as_it_is_shown() {
    let file = "[server]\nmetrics_listen = \"127.0.0.1:9090\"\npublic_url = \"https://h.example.com/\"\n\
        tls_cert = \"c.pem\"\ntls_key = \"k.pem\"\nrequests_per_second = 50\n\
        [callbacks]\ndisable_after = \"off\"\ncatch_up = \"off\"\nallow_trusted = true\n\
        [retention]\nfinished = \"7d\"\narchive = \"old\"\n\
        [portal]\nname = \"Hooks\"\ncolor = \"#ABCDEF\"\nframe_ancestors = [\"https://a.example.com\"]\n";
    let config = with(file, &[], &[], false).expect("valid");
    assert_eq!(config.callbacks.disable_after, None);
    assert_eq!(config.retention.dead_letters, Some(Duration::from_secs(7 * 86_400)), "as finished");
    assert_eq!(config.server.requests_per_second.map(u32::from), Some(50));
    let shown = config.show();
    assert_eq!(with(&shown, &[], &[], false).expect("it reads back").show(), shown);
}

#[test]
fn a_secret_may_be_in_a_file_that_a_variable_names() {
    let path = std::env::temp_dir().join(format!("hooksaga-secret-{}", hooksaga_pipeline::random_hex(8)));
    std::fs::write(&path, "a-root-key-of-24-characters\n").expect("a scratch file");
    let named = path.to_str().expect("ASCII");
    let config = with("", &[("HOOKSAGA_ROOT_KEY_FILE", named)], &[], false).expect("valid");
    assert_eq!(config.auth.root_key.as_deref(), Some("a-root-key-of-24-characters"), "without the newline");

    let both =
        [("HOOKSAGA_ROOT_KEY_FILE", named), ("HOOKSAGA_ROOT_KEY", "another-root-key-of-24-characters")];
    let error = refused("", &both);
    assert!(error.contains("HOOKSAGA_ROOT_KEY and HOOKSAGA_ROOT_KEY_FILE"), "{error}");

    let error = refused("", &[("HOOKSAGA_SECRET_KEY_FILE", named)]);
    assert!(error.contains("secrets.key") && error.contains("HOOKSAGA_SECRET_KEY_FILE"), "{error}");
    assert!(!error.contains("a-root-key"), "{error}");
    std::fs::remove_file(&path).expect("it was there");
    let error = refused("", &[("HOOKSAGA_ROOT_KEY_FILE", named)]);
    assert!(error.contains("HOOKSAGA_ROOT_KEY_FILE") && error.contains(named), "{error}");
}

#[test]
fn a_missing_file_matters_only_when_it_was_asked_for() {
    let sources = Sources { file: Some("does-not-exist.toml".into()), ..Sources::default() };
    let error = load(&sources).expect_err("it was asked for");
    assert!(error.to_string().contains("does-not-exist.toml"), "{error}");
}
