//! Reads the layers, builds every section, and checks what only shows across sections.

use super::{
    AuthConfig, CallbacksConfig, CleanerConfig, Config, ConfigError, DatabaseConfig, LogConfig, RetryConfig,
    SecretsConfig, ServerConfig, WorkerConfig, settings::Settings,
};
use std::{
    ffi::OsString,
    io::ErrorKind,
    path::{Path, PathBuf},
};

const DEFAULT_FILE: &str = "hooksaga.toml";

/// Where the configuration comes from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// `--config`: must exist. Without it, `hooksaga.toml` is read if it is there.
    pub(crate) file: Option<PathBuf>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Keys set by flags.
    pub(crate) flags: Vec<(String, String)>,
    pub(crate) dev: bool,
}

/// The effective configuration.
pub(crate) fn load(sources: &Sources) -> Result<Config, ConfigError> {
    let mut settings = Settings::default();
    let path = sources.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => settings.add_file(path, &text)?,
        Err(error) if error.kind() == ErrorKind::NotFound && sources.file.is_none() => {}
        Err(error) => {
            let path = path.display();
            return Err(ConfigError::new(format!(
                "cannot read {path}: {error}; correct --config or the file"
            )));
        }
    }
    settings.add_environment(sources.environment.iter().cloned())?;
    settings.add_flags(&sources.flags)?;
    build(&settings, sources.dev)
}

/// A configuration of these keys alone: neither file nor environment has a say.
pub(crate) fn from_flags(flags: &[(String, String)], dev: bool) -> Result<Config, ConfigError> {
    let mut settings = Settings::default();
    settings.add_flags(flags)?;
    build(&settings, dev)
}

fn build(settings: &Settings, dev: bool) -> Result<Config, ConfigError> {
    let mut config = Config {
        database: DatabaseConfig::read(settings)?,
        server: ServerConfig::read(settings)?,
        auth: AuthConfig::read(settings)?,
        secrets: SecretsConfig::read(settings)?,
        retry: RetryConfig::read(settings)?,
        worker: WorkerConfig::read(settings)?,
        cleaner: CleanerConfig::read(settings)?,
        callbacks: CallbacksConfig::read(settings)?,
        log: LogConfig::read(settings)?,
        dev,
    };
    if dev {
        if !config.server.listen.ip().is_loopback() {
            return Err(settings.complain(
                "server.listen",
                "with --dev the listener must be a loopback address: use 127.0.0.1:8080, or leave --dev out",
            ));
        }
        config.callbacks.open_for_development();
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
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
            ("[log]\nlevel = \"loud\"", "log.level"),
            ("worker = 5", "worker"),
        ] {
            let error = refused(file, &[]);
            assert!(error.contains(key) && error.contains("hooksaga.toml"), "{file}: {error}");
        }
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
        let error = refused(
            "",
            &[("HOOKSAGA_SECRET_KEY", "hunter2hunter2"), ("HOOKSAGA_DATABASE_URL", "sqlite://x.db")],
        );
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
            ("HOOKSAGA_ROOT_KEY", "hunter2"),
            ("HOOKSAGA_SECRET_KEY", key),
            ("HOOKSAGA_CALLBACKS_ALLOW_NETWORKS", "10.0.0.0/8, fd00::/8"),
        ];
        let shown = with("", &environment, &[], false).expect("valid").show();
        assert!(!shown.contains("hunter2") && !shown.contains(key), "{shown}");
        let again = with(&shown, &[("HOOKSAGA_SECRET_KEY", key)], &[], false).expect("it reads back");
        assert_eq!(again.show(), shown);
    }

    #[test]
    fn a_missing_file_matters_only_when_it_was_asked_for() {
        let sources = Sources { file: Some("does-not-exist.toml".into()), ..Sources::default() };
        let error = load(&sources).expect_err("it was asked for");
        assert!(error.to_string().contains("does-not-exist.toml"), "{error}");
    }
}
