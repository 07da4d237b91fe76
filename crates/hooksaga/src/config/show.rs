//! The effective configuration as TOML, for `serve --print-config`. Secrets are masked.

use super::{Config, database, show_duration};
use std::{
    fmt::{Display, Write},
    path::Path,
    time::Duration,
};

const MASK: &str = "****";
const OFF: &str = "off";

pub(super) fn show(config: &Config) -> String {
    let mut page = ConfigText(String::new());
    if config.dev {
        page.0.push_str("# --dev: http and loopback callbacks are allowed\n\n");
    }

    let database = &config.database;
    page.table("database");
    page.text("url", &database.masked_url());
    page.text("roles", if database.roles { "on" } else { "off" });
    page.path("ca_file", database.ca_file.as_deref());
    if !database.role_urls.is_empty() {
        page.table("database.role_urls");
        for (role, url) in &database.role_urls {
            page.text(role.as_str(), &database::mask_url(url));
        }
    }

    page.table("server");
    page.text("listen", &config.server.listen.to_string());
    page.plain("max_payload_bytes", config.server.max_payload_bytes);
    page.plain("max_batch_bytes", config.server.max_batch_bytes);
    page.text("shutdown_grace", &show_duration(config.server.shutdown_grace));

    let server = &config.server;
    page.maybe("metrics_listen", server.metrics_listen.map(|address| address.to_string()).as_deref());
    page.maybe("public_url", server.public_url.as_deref());
    page.path("tls_cert", server.tls.as_ref().map(|tls| tls.certificate.as_path()));
    page.path("tls_key", server.tls.as_ref().map(|tls| tls.key.as_path()));
    match server.requests_per_second {
        Some(number) => page.plain("requests_per_second", number),
        None => page.text("requests_per_second", OFF),
    }

    page.table("auth");
    page.secret("root_key", config.auth.root_key.is_some());
    page.table("secrets");
    page.secret("key", config.secrets.key.is_some());
    page.secret("old_key", config.secrets.old_key.is_some());

    page.table("retry");
    page.text("base_delay", &show_duration(config.retry.policy.base_delay));
    page.text("max_delay", &show_duration(config.retry.policy.max_delay));
    page.plain("max_retry_limit", config.retry.max_retry_limit);

    page.table("worker");
    page.plain("concurrency", config.worker.concurrency);
    page.text("http_timeout", &show_duration(config.worker.http_timeout));
    page.text("lease_duration", &show_duration(config.worker.lease_duration));
    page.table("cleaner");
    page.text("interval", &show_duration(config.cleaner.interval));

    let callbacks = &config.callbacks;
    page.table("callbacks");
    page.plain("allow_http", callbacks.allow_http);
    page.list("allow_networks", &callbacks.allow_networks);
    page.list("deny_networks", &callbacks.deny_networks);
    match &callbacks.proxy {
        Some(proxy) => page.text("proxy", &proxy.to_string()),
        None => page.unset("proxy"),
    }
    page.path("ca_file", callbacks.ca_file.as_deref());
    page.duration_or_off("disable_after", callbacks.disable_after);
    page.duration_or_off("catch_up", callbacks.catch_up);
    page.plain("allow_trusted", callbacks.allow_trusted);

    page.table("retention");
    page.duration_or_off("finished", config.retention.finished);
    page.duration_or_off("dead_letters", config.retention.dead_letters);
    page.path("archive", config.retention.archive.as_deref());

    page.table("portal");
    page.text("name", &config.portal.name);
    page.text("color", &config.portal.color);
    page.list("frame_ancestors", &config.portal.frame_ancestors);

    page.table("log");
    page.text("format", config.log.format.as_str());
    page.text("level", config.log.level_name());
    page.text("deliveries", config.log.deliveries.as_str());
    page.0
}

struct ConfigText(String);

impl ConfigText {
    fn table(&mut self, name: &str) {
        if self.0.lines().any(|line| line.starts_with('[')) {
            self.0.push('\n');
        }
        self.push(format_args!("[{name}]"));
    }

    fn text(&mut self, key: &str, value: &str) {
        self.push(format_args!("{key} = {}", quoted(value)));
    }

    fn plain(&mut self, key: &str, value: impl Display) {
        self.push(format_args!("{key} = {value}"));
    }

    fn secret(&mut self, key: &str, set: bool) {
        if set { self.text(key, MASK) } else { self.unset(key) }
    }

    fn maybe(&mut self, key: &str, value: Option<&str>) {
        match value {
            Some(value) => self.text(key, value),
            None => self.unset(key),
        }
    }

    fn path(&mut self, key: &str, value: Option<&Path>) {
        self.maybe(key, value.map(|path| path.display().to_string()).as_deref());
    }

    fn duration_or_off(&mut self, key: &str, value: Option<Duration>) {
        self.text(key, &value.map_or_else(|| OFF.to_owned(), show_duration));
    }

    fn list(&mut self, key: &str, items: &[impl Display]) {
        let items: Vec<String> = items.iter().map(|item| quoted(&item.to_string())).collect();
        self.plain(key, format!("[{}]", items.join(", ")));
    }

    fn unset(&mut self, key: &str) {
        self.push(format_args!("# {key} is not set"));
    }

    fn push(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("writing to a String cannot fail");
    }
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
