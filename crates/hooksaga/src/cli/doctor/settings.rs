//! What the configuration says by itself.

use super::finding::{Finding, Verdict};
use crate::config::{BackendUrl, Config, DatabaseConfig, RetentionConfig, WorkerConfig, show_duration};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A lease that leaves less than this beside the timeout runs out whenever the database or the CPU is slow for a moment, and
/// the delivery is sent twice.
const COMFORT: Duration = Duration::from_secs(5);

/// The jobs of a crashed worker wait for this long.
const LONG_LEASE: Duration = Duration::from_secs(15 * 60);

pub(super) fn configuration(config: &Config) -> Vec<Finding> {
    const CHECK: &str = "configuration";
    let database = config.database_warning();
    let warnings: Vec<Finding> = config
        .warnings()
        .iter()
        .filter(|line| Some(*line) != database.as_ref())
        .map(|line| Finding::from_line(CHECK, Verdict::Warning, line))
        .collect();
    if warnings.is_empty() { vec![Finding::ok(CHECK, "every key is known and valid")] } else { warnings }
}

/// What database.url says about the way to the server.
pub(super) fn tls(config: &Config) -> Finding {
    const CHECK: &str = "database TLS";
    if let BackendUrl::Sqlite(_) = config.database.backend {
        return Finding::ok(CHECK, "not needed: the database is a file");
    }
    match config.database_warning() {
        Some(line) => Finding::from_line(CHECK, Verdict::Warning, &line),
        None if config.database.is_on_this_machine() => {
            Finding::ok(CHECK, "not needed: database.url stays on this machine")
        }
        None => Finding::ok(CHECK, "database.url asks for TLS and for the server's certificate"),
    }
}

pub(super) fn lease(worker: &WorkerConfig, cleaner_interval: Duration) -> Finding {
    const CHECK: &str = "lease";
    let [timeout, lease, interval] =
        [worker.http_timeout, worker.lease_duration, cleaner_interval].map(show_duration);
    let found = format!("worker.http_timeout is {timeout}, worker.lease_duration {lease}");
    if worker.lease_duration < worker.http_timeout + COMFORT {
        let wanted = show_duration(worker.http_timeout + COMFORT);
        return Finding::warning(
            CHECK,
            format!(
                "{found}: a delivery to a slow endpoint may be sent twice when the database is slow for a moment"
            ),
            format!("set worker.lease_duration to {wanted} or more"),
        );
    }
    if worker.lease_duration > LONG_LEASE {
        return Finding::warning(
            CHECK,
            format!("{found}: what a worker held when it was killed waits so long"),
            "set worker.lease_duration to a few times worker.http_timeout",
        );
    }
    Finding::ok(CHECK, format!("{found}; expired leases are looked for every {interval}"))
}

pub(super) fn retention(retention: &RetentionConfig, database: &DatabaseConfig) -> Finding {
    const CHECK: &str = "retention";
    let Some(finished) = retention.finished else {
        let per_million = match database.backend {
            BackendUrl::Sqlite(_) => "0.8 GB",
            BackendUrl::Postgres(_) | BackendUrl::MySql(_) => "1.6 GB",
        };
        return Finding::ok(
            CHECK,
            format!(
                "off: history is kept for good; plan about {per_million} of disk for a million deliveries with payloads of \
                 400 bytes, or set retention.finished"
            ),
        );
    };
    let shown = show_duration(finished);
    if finished < DAY {
        return Finding::warning(
            CHECK,
            format!(
                "retention.finished is {shown}: an event that is sent twice further apart is delivered twice, and nobody can \
                 look up what happened yesterday"
            ),
            "set retention.finished to 1d or more",
        );
    }
    let letters = match retention.dead_letters {
        Some(kept) => show_duration(kept),
        None => "for good, each with its whole event: the database grows with them".to_owned(),
    };
    let archive = if retention.archive.is_some() { "archived, then removed" } else { "removed" };
    Finding::ok(CHECK, format!("finished events are {archive} after {shown}; dead letters stay {letters}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::from_flags;

    fn config(flags: &[(&str, &str)]) -> Config {
        let flags: Vec<_> =
            flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        from_flags(&flags, false).expect("valid")
    }

    #[test]
    fn a_hazard_of_the_configuration_has_its_line_and_the_databases_is_told_once() {
        let clean = configuration(&config(&[]));
        assert_eq!((clean.len(), clean[0].verdict), (1, Verdict::Ok));
        let open =
            config(&[("server.listen", "0.0.0.0:8080"), ("database.url", "postgres://u:hush@db.example/d")]);
        let found = configuration(&open);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].verdict == Verdict::Warning && found[0].found.contains("no TLS"), "{found:?}");
        let advice = found[1].advice.as_deref().unwrap_or_default();
        assert!(found[1].found.contains("metrics") && advice.contains("server.metrics_listen"), "{found:?}");
        let tls = tls(&open);
        assert!(tls.verdict == Verdict::Warning && !format!("{tls:?}").contains("hush"), "{tls:?}");
    }

    #[test]
    fn tls_is_judged_by_the_url() {
        for (url, verdict) in [
            ("sqlite://x/y.db", Verdict::Ok),
            ("postgres://u@127.0.0.1/d", Verdict::Ok),
            ("postgres://u@127.0.0.1/d?hostaddr=192.0.2.1", Verdict::Warning),
            ("postgres:///d?host=/run/postgresql,db.example", Verdict::Warning),
            ("postgres://u@db.example/d?sslmode=require", Verdict::Ok),
            ("postgres://u@db.example/d", Verdict::Warning),
            ("mysql://u@db.example/d", Verdict::Warning),
        ] {
            assert_eq!(tls(&config(&[("database.url", url)])).verdict, verdict, "{url}");
        }
    }

    #[test]
    fn leases_are_neither_tight_nor_endless() {
        for (timeout, lease_duration, verdict) in
            [("15s", "60s", Verdict::Ok), ("15s", "16s", Verdict::Warning), ("15s", "1h", Verdict::Warning)]
        {
            let flags = [("worker.http_timeout", timeout), ("worker.lease_duration", lease_duration)];
            let config = config(&flags);
            assert_eq!(lease(&config.worker, config.cleaner.interval).verdict, verdict, "{flags:?}");
        }
    }

    #[test]
    fn retention_off_is_planned_for_and_too_short_is_warned_of() {
        let judged = |flags: &[(&str, &str)]| {
            let config = config(flags);
            retention(&config.retention, &config.database)
        };
        let off = judged(&[]);
        assert!(off.verdict == Verdict::Ok && off.found.contains("plan about"), "{off:?}");
        assert_eq!(judged(&[("retention.finished", "23h")]).verdict, Verdict::Warning);
        let month = judged(&[("retention.finished", "30d"), ("retention.dead_letters", "off")]);
        assert!(
            month.verdict == Verdict::Ok
                && month.found.contains("stay for good, each with its whole event: the database grows"),
            "{month:?}"
        );
    }
}
