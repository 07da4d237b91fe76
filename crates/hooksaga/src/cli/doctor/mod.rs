//! `hooksaga doctor`: looks at everything that an installation needs, and says what is wrong and what to do.
//!
//! It changes nothing, needs no running server, and ends within a minute, whatever hangs.

mod certificates;
mod database;
mod finding;
mod host;
mod settings;
mod signing_key;
mod validity;

use super::options::ConfigOptions;
use crate::{
    config::Config,
    error::{CliError, CliResult},
    output::{self, Now, Painter, Table, rfc3339},
};
use clap::Args;
use finding::{Finding, Verdict};
use hooksaga_store::LivingWorker;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  hooksaga doctor
  hooksaga doctor --config /etc/hooksaga/hooksaga.toml
  hooksaga doctor --json

Run it as the user, and with the configuration, that the server has. It changes nothing. It ends with 1 if there is a
problem; warnings alone end with 0.";

/// Check configuration, database, roles, disk and workers, and suggest fixes
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Doctor {
    #[command(flatten)]
    options: ConfigOptions,

    /// Print JSON, for scripts
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(super) async fn run(self) -> CliResult {
        let (findings, workers) = match self.options.load(Vec::new(), false) {
            Ok(config) => examine(&config).await,
            // Nothing else can be known then.
            Err(error) => (vec![wrong_configuration(&error)], Vec::new()),
        };
        if self.json {
            print_json(&findings, &workers)
        } else {
            print(&findings, &workers)
        }
        end(&findings)
    }
}

async fn examine(config: &Config) -> (Vec<Finding>, Vec<LivingWorker>) {
    let mut findings = settings::configuration(config);
    let (found, workers) = Box::pin(database::database(config)).await;
    findings.extend(found);
    findings.push(settings::tls(config));
    findings.push(certificates::listener(&config.server).await);
    findings.push(certificates::callbacks(&config.callbacks).await);
    findings.push(settings::lease(&config.worker, config.cleaner.interval));
    findings.push(settings::retention(&config.retention, &config.database));
    findings.extend(host::places(config).await);
    findings.push(host::descriptors(config.worker.concurrency));
    (findings, workers)
}

fn wrong_configuration(error: &CliError) -> Finding {
    let line = error.to_string();
    let line = line.strip_prefix("configuration: ").unwrap_or(&line);
    Finding::problem(
        "configuration",
        line,
        "correct it, then run `hooksaga doctor` again for the other checks",
    )
}

fn print(findings: &[Finding], workers: &[LivingWorker]) {
    let painter = Painter::for_stdout();
    findings.iter().flat_map(|finding| finding.lines(painter)).for_each(output::line);
    if workers.is_empty() {
        return;
    }
    output::line("");
    let now = Now::local();
    let mut table = Table::new(&["WORKER", "SLOTS", "VERSION", "STARTED", "LAST SEEN"]);
    for worker in workers {
        table.row(vec![
            worker.worker_id.into(),
            worker.slots.into(),
            (&worker.version).into(),
            now.both(&rfc3339(worker.started_at.as_micros())).into(),
            now.relative(&rfc3339(worker.seen_at.as_micros())).into(),
        ]);
    }
    table.print();
}

fn print_json(findings: &[Finding], workers: &[LivingWorker]) {
    let workers: Vec<_> = workers
        .iter()
        .map(|worker| {
            json!({
                "worker_id": worker.worker_id,
                "slots": worker.slots,
                "version": worker.version,
                "started_at": rfc3339(worker.started_at.as_micros()),
                "seen_at": rfc3339(worker.seen_at.as_micros()),
            })
        })
        .collect();
    let report = json!({
        "checks": findings,
        "problems": number(findings, Verdict::Problem),
        "warnings": number(findings, Verdict::Warning),
        "workers": workers,
    });
    output::line(report.to_string());
}

fn number(findings: &[Finding], verdict: Verdict) -> usize {
    findings.iter().filter(|finding| finding.verdict == verdict).count()
}

fn end(findings: &[Finding]) -> CliResult {
    let mut names: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Problem)
        .map(|finding| finding.check)
        .collect();
    let problems = names.len() as u64;
    names.dedup();
    match problems {
        0 => Ok(()),
        _ => Err(CliError::new(format!(
            "doctor found {} ({}): see what to do above",
            output::count(problems, "problem"),
            names.join(", ")
        ))),
    }
}
