//! The effective configuration as TOML, for `serve --print-config`. Secrets are masked.

use super::{Config, database, show_duration};
use std::fmt::{Display, Write};

const MASK: &str = "****";

pub(super) fn show(config: &Config) -> String {
    let mut page = Page(String::new());
    if config.dev {
        page.0.push_str("# --dev: http and loopback callbacks are allowed\n\n");
    }

    let database = &config.database;
    page.table("database");
    page.text("url", &database.masked_url());
    page.text("roles", if database.roles { "on" } else { "off" });
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

    page.table("auth");
    page.secret("root_key", config.auth.root_key.is_some());
    page.table("secrets");
    page.secret("key", config.secrets.key.is_some());

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
    let networks: Vec<String> = callbacks.allow_networks.iter().map(|net| quoted(&net.to_string())).collect();
    page.table("callbacks");
    page.plain("allow_http", callbacks.allow_http);
    page.plain("allow_networks", format!("[{}]", networks.join(", ")));
    match &callbacks.ca_file {
        Some(path) => page.text("ca_file", &path.display().to_string()),
        None => page.unset("ca_file"),
    }

    page.table("log");
    page.text("format", config.log.format.as_str());
    page.text("level", config.log.level_name());
    page.text("deliveries", config.log.deliveries.as_str());
    page.0
}

struct Page(String);

impl Page {
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
