//! `hooksaga bench`: how fast it is, here.

use super::options::ConfigOptions;
use crate::{
    config, descriptors,
    error::{CliError, CliResult},
    output, signals,
};
use clap::{Args, builder::PossibleValuesParser};
use hooksaga_bench::{Backend, Comparison, Plan, Report, Scenario, Sending};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  hooksaga bench                                   throughput, latency, idle, on the configured back end
  hooksaga bench --events 100000 --clients 128     a longer run
  hooksaga bench --history 5000000                 beside five million finished deliveries, too
  hooksaga bench --scenario hanging                a healthy endpoint beside ones that hang, and nothing else
  hooksaga bench --check                           everything, and exit code 1 when a bar is missed
  hooksaga bench --against ./hooksaga-before       this program and another one, measured in turn

It runs in a scratch folder, or in a scratch database that it creates and drops on the configured server (or in
an empty database named with --database-url and --given); never in the live tables. Everything shares this
machine: compare ratios, not absolute figures. Interrupted, it still removes what it made.";

/// Measure deliveries per second and latency, in a scratch database
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Bench {
    /// Events per round of a throughput measurement
    #[arg(long, default_value_t = 25_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    events: u64,
    /// Connections that post
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Size of a payload in bytes
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    payload_bytes: u32,
    /// Endpoints per event in the fan-out measurement; 0 leaves it out
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=100))]
    fan_out: u16,
    /// Events a second in the latency measurements; 0 leaves them out
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    rate: u32,
    /// Length of a latency measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Measure beside so many finished deliveries, too [with --check: 5000000]
    #[arg(long, value_name = "DELIVERIES")]
    history: Option<u64>,
    /// Measure beside so many waiting deliveries, too [with --check: 500000]
    #[arg(long, value_name = "DELIVERIES")]
    backlog: Option<u64>,
    /// Measure beside so many hanging endpoints, too; can be repeated [with --check: 1 and 50]
    #[arg(long, value_name = "ENDPOINTS")]
    hanging: Vec<usize>,
    /// Deliveries that wait for the hanging endpoints
    #[arg(long, default_value_t = 20_000)]
    hanging_backlog: usize,
    /// Only measure isolation: a healthy endpoint beside others in this state; can be repeated [with --check: all,
    /// after everything else]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Scenario::ALL.map(Scenario::name)))]
    scenario: Vec<String>,
    /// Measure throughput, latency and idling of this program and of that one, in turn
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["scenario", "history", "backlog", "hanging", "given"])]
    against: Option<PathBuf>,
    /// Print JSON, for scripts
    #[arg(long)]
    json: bool,
    /// Measure everything that has a bar, and fail when one is missed
    #[arg(long)]
    check: bool,
    /// The database is an empty one, made for this: nothing is created or dropped
    #[arg(long)]
    given: bool,
    /// Only send payloads there: the other process of the ceiling's measurement
    #[arg(long, hide = true, value_name = "URL")]
    send_to: Option<String>,
    #[command(flatten)]
    options: ConfigOptions,
}

impl Bench {
    pub(super) async fn run(self) -> CliResult {
        if let Some(url) = self.send_to {
            let (clients, payload_bytes) = (self.clients.into(), self.payload_bytes as usize);
            let sending = Sending { url, requests: self.events, clients, payload_bytes };
            return sending.send().await.map_err(CliError::new);
        }
        let config = self.options.load(Vec::new(), false)?;
        let backend = match &config.database.backend {
            config::Backend::Sqlite(_) => Backend::Sqlite,
            config::Backend::Postgres(url) => Backend::Postgres(url.clone()),
            config::Backend::MySql(url) => Backend::MySql(url.clone()),
        };
        // Endpoints that hang hold their connections.
        descriptors::raise_limit();
        let (plan, interrupted) = (self.plan(), signals::first());
        let missed = match &self.against {
            Some(other) => {
                let other = other.canonicalize().map_err(|error| {
                    CliError::new(format!("{}: {error}: name another hooksaga program", other.display()))
                })?;
                let compared =
                    Box::pin(hooksaga_bench::compare(&plan, &backend, &other, &Deliveries, interrupted))
                        .await?;
                print_comparison(&compared, self.json);
                compared.missed().join(", ")
            }
            None => {
                let report = Box::pin(hooksaga_bench::run(&plan, &backend, &Deliveries, interrupted)).await?;
                print(&report, self.json);
                report.missed().join(", ")
            }
        };
        if self.check && !missed.is_empty() {
            return Err(CliError::new(format!("missed: {missed}")));
        }
        Ok(())
    }

    fn plan(&self) -> Plan {
        let checked = |value: Option<u64>, full| value.unwrap_or(if self.check { full } else { 0 });
        let hanging = match self.hanging.as_slice() {
            [] if self.check => vec![1, 50],
            given => given.iter().copied().filter(|endpoints| *endpoints > 0).collect(),
        };
        let named = |scenario: &Scenario| self.scenario.iter().any(|name| name == scenario.name());
        let all = self.check && self.scenario.is_empty();
        Plan {
            events: self.events,
            clients: usize::from(self.clients),
            payload_bytes: self.payload_bytes as usize,
            fan_out: usize::from(self.fan_out),
            rate: self.rate,
            seconds: self.seconds,
            history: checked(self.history, 5_000_000),
            backlog: checked(self.backlog, 500_000),
            hanging,
            hanging_backlog: self.hanging_backlog,
            speed: self.scenario.is_empty(),
            scenarios: Scenario::ALL.into_iter().filter(|scenario| all || named(scenario)).collect(),
            given: self.given,
        }
    }
}

/// Deliveries that have arrived, on a person's terminal.
struct Deliveries;

impl hooksaga_bench::Reporter for Deliveries {
    fn show(&self, done: u64, total: u64) {
        output::ProgressBar::new(Some(total)).show(done, "delivered");
    }

    fn clear(&self) {
        output::ProgressBar::new(None).clear();
    }
}

fn print_comparison(comparison: &Comparison, json: bool) {
    if json {
        output::line(serde_json::to_string_pretty(comparison).unwrap_or_default());
    } else {
        output::table(&comparison.rows()).into_iter().for_each(output::line);
    }
}

fn print(report: &Report, json: bool) {
    if json {
        output::line(serde_json::to_string_pretty(report).unwrap_or_default());
    } else {
        output::table(&report.rows()).into_iter().for_each(output::line);
    }
}
