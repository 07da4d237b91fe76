//! `hooksaga bench`: how fast it is, here.

use super::options::ConfigOptions;
use crate::{
    config, descriptors,
    error::{CliError, CliResult},
    output, signals,
};
use clap::{Args, builder::PossibleValuesParser};
use hooksaga_bench::{
    Comparison, LARGEST_PAYLOAD, MeasuredBackend, OtherProduct, Plan, Report, Scenario, Sending,
    rows_of_tables,
};
use std::{path::PathBuf, time::Duration};

const EXAMPLES: &str = "\
Examples:
  hooksaga bench                                   throughput, latency, idle, on the configured back end
  hooksaga bench --events 100000 --clients 128     a longer run
  hooksaga bench --history 5000000                 beside five million finished deliveries, too
  hooksaga bench --scenario hanging                only a healthy endpoint beside ones that hang
  hooksaga bench --scenario known-hanging          the same, beside ones that have answered before
  hooksaga bench --scenario rates                  CPU, commits, bytes and latency at 100 to 6000 events a second
  hooksaga bench --scenario copies --copies 2,3,5  several servers on the configured database server
  hooksaga bench --scenario sustained --minutes 60 an hour of half the full load, with history being removed
  hooksaga bench --check                           everything, and exit code 1 when a bar is missed
  hooksaga bench --against ./hooksaga-before       this program and another one, measured alternately

It runs in a scratch folder, or in a scratch database that it creates and drops on the configured server; never in the
live tables. If the login may not create databases, it runs in the one that --database-url names, which has to be
empty, and leaves its tables there; --given asks for that. Everything shares this
machine: compare ratios, not absolute figures; the last column is the part of the machine's CPU time that other processes
used meanwhile. A missed goal is shown and fails nothing; a missed bar fails --check. If interrupted, it still prints its
figures so far and removes what it created.";

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
    #[arg(long, default_value_t = 400, value_parser = size())]
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
    /// Also measure beside this many finished deliveries [with --check: 5000000]
    #[arg(long, value_name = "DELIVERIES")]
    history: Option<u64>,
    /// Also measure beside this many waiting deliveries [with --check: 500000]
    #[arg(long, value_name = "DELIVERIES")]
    backlog: Option<u64>,
    /// Also measure beside this many hanging endpoints; can be repeated [with --check: 1 and 50]
    #[arg(long, value_name = "ENDPOINTS")]
    hanging: Vec<usize>,
    /// Deliveries that wait for the hanging endpoints
    #[arg(long, default_value_t = 20_000)]
    hanging_backlog: usize,
    /// Only measure this; can be repeated [with --check: all, after everything else]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Scenario::ALL.map(Scenario::name)))]
    scenario: Vec<String>,
    /// Events a second in the scenario rates
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', default_values_t = [100, 300, 1000, 3000, 6000],
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rates: Vec<u32>,
    /// Seconds that each of them takes
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    rate_seconds: u32,
    /// Servers on one database in the scenario copies
    #[arg(long, value_name = "COPIES,…", value_delimiter = ',', default_values_t = [1, 2, 3],
          value_parser = clap::value_parser!(u16).range(1..=16))]
    copies: Vec<u16>,
    /// Sizes in bytes in the scenario payloads
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_values_t = [1000, 10_000, 100 << 10, 1 << 20],
          value_parser = size())]
    sizes: Vec<u32>,
    /// Length of the scenario sustained; events stay for a minute, in 15 minutes and more for five
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=240))]
    minutes: u32,
    /// Deliveries that wait, and events and dead letters that are sent again, in the scenarios limited, redrive and
    /// redrive-letters
    #[arg(long, value_name = "DELIVERIES", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1000..=5_000_000))]
    waiting: u32,
    /// Deliveries a second of another product on this machine, with one endpoint and with ten, to compare with
    #[arg(long, value_name = "SINGLE,FAN_OUT", default_value = "1027,3194", value_parser = peer)]
    peer: OtherProduct,
    /// No scenario begins after this many minutes; what is left out counts as missed
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1440))]
    longest: u32,
    /// Measure throughput, latency and idling of this program and of another, alternately
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
            config::BackendUrl::Sqlite(_) => MeasuredBackend::Sqlite,
            config::BackendUrl::Postgres(url) => MeasuredBackend::Postgres(url.clone()),
            config::BackendUrl::MySql(url) => MeasuredBackend::MySql(url.clone()),
        };
        // Endpoints that hang hold their connections.
        descriptors::raise_limit();
        let (mut plan, interrupted) = (self.plan(), signals::first());
        if !plan.given && self.against.is_none() && self.options.names_database() {
            plan.given = hooksaga_bench::must_be_in_place(&backend).await;
            if plan.given {
                output::note(
                    "this login may not create a database: it runs in the empty one that --database-url names, and its \
                     tables stay there",
                );
            }
        }
        let missed = match &self.against {
            Some(other) => {
                let other = other.canonicalize().map_err(|error| {
                    CliError::new(format!("{}: {error}: name another hooksaga program", other.display()))
                })?;
                let compared = Box::pin(hooksaga_bench::compare(
                    &plan,
                    &backend,
                    &other,
                    &DeliveryProgress,
                    interrupted,
                ))
                .await?;
                print_comparison(&compared, self.json);
                compared.missed().join(", ")
            }
            None => {
                let (report, ended) =
                    Box::pin(hooksaga_bench::run(&plan, &backend, &DeliveryProgress, interrupted)).await;
                print(&report, self.json);
                ended?;
                if !self.check && !report.failures.is_empty() {
                    return Err(CliError::new("some measurements gave no figures"));
                }
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
            rates: self.rates.clone(),
            rate_seconds: self.rate_seconds,
            copies: self.copies.iter().copied().map(usize::from).collect(),
            sizes: self.sizes.iter().map(|size| *size as usize).collect(),
            minutes: self.minutes,
            waiting: self.waiting as usize,
            peer: self.peer,
            longest: Duration::from_secs(u64::from(self.longest) * 60),
            given: self.given,
        }
    }
}

/// Two speeds with a comma between them.
fn peer(text: &str) -> Result<OtherProduct, String> {
    let speed = |text: &str| text.trim().parse().ok().filter(|speed: &u32| *speed > 0).map(f64::from);
    let speeds = text.split_once(',').and_then(|(single, fan_out)| Some((speed(single)?, speed(fan_out)?)));
    let (single, fan_out) = speeds.ok_or("two whole numbers above 0, such as 1027,3194")?;
    Ok(OtherProduct { single, fan_out })
}

/// Sizes of payloads that a server takes by default.
fn size() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(64..=i64::try_from(LARGEST_PAYLOAD).expect("a mebibyte fits"))
}

/// Deliveries that have arrived, on a person's terminal.
struct DeliveryProgress;

impl hooksaga_bench::ProgressDisplay for DeliveryProgress {
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
        return;
    }
    output::table(&report.rows()).into_iter().for_each(output::line);
    output::table(&rows_of_tables(&report.tables)).into_iter().for_each(output::line);
    for failure in &report.failures {
        output::line(format!("no figures of {}: {}", failure.name, failure.reason));
    }
    let goals = report.missed_goals();
    if !goals.is_empty() {
        output::line(format!("goals missed, which fails nothing: {}", goals.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_two_speeds() {
        let read = peer("1027, 3194").map(|peer| (peer.single, peer.fan_out));
        assert_eq!(read, Ok((1027.0, 3194.0)));
        for wrong in ["", "1027", "0,1", "1,-1", "1,2,3", "a,b"] {
            assert!(peer(wrong).is_err(), "{wrong}");
        }
    }
}
