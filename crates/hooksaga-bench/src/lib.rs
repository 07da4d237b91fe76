//! What `hooksaga bench` measures: deliveries per second and latency of the product as it is, through its public API, with
//! default settings, beside the bare HTTP ceiling of the same machine in the same run.
//!
//! Everything runs on a scratch folder or database that is removed at the end. Compare ratios, not absolute
//! figures: the clients, the receiver, the server and the database share the machine.

mod against;
mod api;
mod ceiling;
mod database;
mod error;
mod isolation;
mod load;
mod measure;
mod pace;
mod place;
mod receiver;
mod report;
mod scratch;
mod site;
mod usage;

pub use against::{Compared, Comparison};
pub use ceiling::Sending;
pub use error::{BenchError, BenchResult};
pub use isolation::Scenario;
pub use report::{Bar, Figure, Report};

use isolation::Isolation;
use measure::{Bench, Latency};
use pace::Pace;
use place::{Place, Server};
use receiver::Receiver;
use site::Site;
use std::{path::Path, time::Duration};

/// Where the configured database is; measurements never touch it.
#[derive(Clone)]
pub enum Backend {
    /// The embedded one: a scratch file stands for it.
    Sqlite,
    /// A PostgreSQL URL.
    Postgres(String),
    /// A MySQL or MariaDB URL.
    MySql(String),
}

/// Told how far a measurement is.
pub trait Reporter: Sync {
    /// So many deliveries of the total have arrived.
    fn show(&self, done: u64, total: u64);
    /// The measurement is over.
    fn clear(&self);
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    pub events: u64,
    pub clients: usize,
    pub payload_bytes: usize,
    /// Endpoints per event in the fan-out measurement; 0 leaves it out.
    pub fan_out: usize,
    /// Events a second in the latency measurements; 0 leaves them out.
    pub rate: u32,
    pub seconds: u32,
    /// Finished deliveries to measure beside; 0 leaves it out.
    pub history: u64,
    /// Waiting deliveries to measure beside; 0 leaves it out.
    pub backlog: u64,
    /// Numbers of hanging endpoints to measure beside.
    pub hanging: Vec<usize>,
    /// Deliveries that wait for the hanging endpoints.
    pub hanging_backlog: usize,
    /// Throughput, latency and what the fields above name.
    pub speed: bool,
    /// What is measured of isolation.
    pub scenarios: Vec<Scenario>,
    /// The database is an empty one that was named for this.
    pub given: bool,
}

/// The event types of the measurements.
const SINGLE: &str = "bench.single";
const FAN_OUT: &str = "bench.fan_out";
/// Events a second for the healthy endpoint, where the plan names no rate.
const DEFAULT_RATE: u32 = 300;
/// A speed is measured so often, each time right after the ceiling; the middle one counts.
const ROUNDS: usize = 3;
/// More requests tell no more about the ceiling.
const LONGEST_CEILING: u64 = 1_000_000;

/// Runs the plan beside the configured database. Once `interrupted` is ready the run ends; what it made is removed
/// all the same.
pub async fn run(
    plan: &Plan,
    backend: &Backend,
    progress: &dyn Reporter,
    interrupted: impl Future<Output = ()>,
) -> BenchResult<Report> {
    let site = Site::new(backend, plan.given);
    on_site(&site, interrupted, Box::pin(measure(plan, &site, progress))).await
}

/// Measures this program and another one in turn, each beside the configured database. `interrupted` as in [`run`].
pub async fn compare(
    plan: &Plan,
    backend: &Backend,
    other: &Path,
    progress: &dyn Reporter,
    interrupted: impl Future<Output = ()>,
) -> BenchResult<Comparison> {
    if plan.given {
        return Err(BenchError::new("two programs need a database each: leave --given out"));
    }
    let site = Site::new(backend, false);
    on_site(&site, interrupted, Box::pin(against::measure(plan, &site, other, progress))).await
}

/// Measures, and removes everything that was made for it. An interrupted measurement is dropped, and its servers with it.
async fn on_site<T>(
    site: &Site,
    interrupted: impl Future<Output = ()>,
    measuring: impl Future<Output = BenchResult<T>>,
) -> BenchResult<T> {
    let measured = tokio::select! {
        measured = measuring => measured,
        () = interrupted => Err(BenchError::new("interrupted: what was made for the measurement is removed")),
    };
    let removed = site.remove_all().await;
    let figures = measured?;
    removed?;
    Ok(figures)
}

async fn measure(plan: &Plan, site: &Site, progress: &dyn Reporter) -> BenchResult<Report> {
    let mut report = Report::default();
    if plan.speed {
        report = speed(plan, site, progress).await?;
    }
    let mut isolation = Isolation {
        site,
        progress,
        clients: plan.clients,
        payload_bytes: plan.payload_bytes,
        rate: if plan.rate == 0 { DEFAULT_RATE } else { plan.rate },
        report: &mut report,
    };
    for scenario in &plan.scenarios {
        Box::pin(isolation.measure(*scenario)).await?;
    }
    Ok(report)
}

/// Speeds in a place and, for those beside history or backlog, in another one that stays empty.
async fn speed(plan: &Plan, site: &Site, progress: &dyn Reporter) -> BenchResult<Report> {
    let place = site.place().await?;
    let beside = !plan.given && (plan.history > 0 || plan.backlog > 0);
    let empty = if beside { Some(site.place().await?) } else { None };
    let report = Box::pin(Run::new(plan, &place, empty.as_deref(), progress).await?.measure()).await?;
    for place in empty.into_iter().chain([place]) {
        site.remove(place).await?;
    }
    Ok(report)
}

/// One run of a plan.
struct Run<'a> {
    plan: &'a Plan,
    place: &'a Place,
    /// Another one, which stays empty.
    empty: Option<&'a Place>,
    bench: Bench<'a>,
    report: Report,
    /// Deliveries under load that came more than once.
    repeats: u64,
}

/// What speeds beside history or backlog are compared with.
struct Beside<'a> {
    /// A place that stays empty, and its server.
    empty: Option<(&'a Place, Server)>,
    at_first: Pace,
    /// What the history and the backlog are of.
    subscription: i64,
}

impl<'a> Run<'a> {
    async fn new(
        plan: &'a Plan,
        place: &'a Place,
        empty: Option<&'a Place>,
        progress: &'a dyn Reporter,
    ) -> BenchResult<Self> {
        let receiver = Receiver::start().await;
        let receiver =
            receiver.map_err(|error| BenchError::new(format!("cannot open a receiver: {error}")))?;
        let database = place.database();
        Ok(Self {
            plan,
            place,
            empty,
            bench: Bench { progress, receiver, clients: plan.clients, payload_bytes: plan.payload_bytes },
            report: Report { database, figures: Vec::new() },
            repeats: 0,
        })
    }

    async fn measure(mut self) -> BenchResult<Report> {
        let (server, start) = self.place.start().await?;
        let bar = (!self.place.is_server()).then_some(Bar::AtMost(200.0));
        self.report.add("start to ready", start.as_secs_f64() * 1e3, "ms", bar);
        self.bench.subscribe(&server, SINGLE, 1).await?;
        let waiting = server.subscribe("bench.filling", &self.bench.receiver.url("/ok/0")).await?;

        let empty = self.single(&server).await?;
        self.fan_out(&server).await?;
        self.memory(&server, "peak memory at full load");
        let alone = self.alone(&server).await?;
        self.idle(&server).await?;
        let server = self.hanging(server, alone).await?;
        server.stop().await;
        let beside = Beside { empty: self.start_empty().await?, at_first: empty, subscription: waiting };
        self.beside_history(&beside).await?;
        self.beside_backlog(&beside).await?;
        if let Some((_, server)) = beside.empty {
            server.stop().await;
        }
        #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
        self.report.add("delivered more than once", self.repeats as f64, "", Some(Bar::AtMost(0.0)));
        Ok(self.report)
    }

    async fn single(&mut self, server: &Server) -> BenchResult<Pace> {
        let before = self.place.bytes().await?;
        let pace = self.warm_pace(server).await?;
        let measured = pace.reached;
        let (least, most) = match self.place.database() {
            "SQLite" => (0.15, None),
            "PostgreSQL" => (0.10, Some(0.20)),
            _ => (0.05, None),
        };
        self.report.add("bare HTTP ceiling", pace.ceiling, "requests/s", None);
        self.report.add("single events: delivered", measured.per_second, "deliveries/s", None);
        self.report.add("single events ÷ ceiling", pace.share(), "", Some(Bar::AtLeast(least)));
        if let Some(cpu) = measured.cpu {
            let bar = most.map(Bar::AtMost);
            self.report.add("CPU per delivery, with database", cpu.as_secs_f64() * 1e3, "ms", bar);
        }
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        {
            let events = self.plan.events * ROUNDS as u64 + self.plan.events / 10;
            let bytes = self.place.bytes().await?.saturating_sub(before) as f64 / events as f64;
            self.report.add("disk per delivery", bytes, "bytes", None);
        }
        Ok(pace)
    }

    /// Deliveries of single events, after a short run that warms connections, plans and windows up, as those of any
    /// server that is in use are.
    async fn warm_pace(&mut self, server: &Server) -> BenchResult<Pace> {
        self.bench.throughput(self.place, server, SINGLE, 1, self.plan.events / 10).await?;
        self.pace(server, SINGLE, 1, self.plan.events).await
    }

    async fn pace(
        &mut self,
        server: &Server,
        event_type: &str,
        fan_out: usize,
        events: u64,
    ) -> BenchResult<Pace> {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let ceiling = self.bench.ceiling((self.plan.events * 3).min(LONGEST_CEILING)).await?;
            let reached = self.bench.throughput(self.place, server, event_type, fan_out, events).await?;
            rounds.push(Pace { ceiling, reached });
        }
        let pace = Pace::middle(rounds).ok_or_else(|| BenchError::new("nothing was measured"))?;
        self.repeats += pace.reached.repeats;
        Ok(pace)
    }

    async fn fan_out(&mut self, server: &Server) -> BenchResult {
        let endpoints = self.plan.fan_out;
        if endpoints == 0 {
            return Ok(());
        }
        self.bench.subscribe(server, FAN_OUT, endpoints).await?;
        let events = self.plan.events / 2;
        let pace = self.pace(server, FAN_OUT, endpoints, events).await?;
        let speed = pace.reached.per_second;
        self.report.add(format!("fan-out {endpoints}: delivered"), speed, "deliveries/s", None);
        let bar = (self.place.database() == "PostgreSQL" && endpoints == 10).then_some(Bar::AtLeast(0.22));
        self.report.add(format!("fan-out {endpoints} ÷ ceiling"), pace.share(), "", bar);
        Ok(())
    }

    fn memory(&mut self, server: &Server, name: &str) {
        #[expect(clippy::cast_precision_loss, reason = "bytes of memory")]
        let mebibytes = server.peak_memory() as f64 / f64::from(1 << 20);
        self.report.add(name, mebibytes, "MiB", Some(Bar::AtMost(100.0)));
    }

    async fn alone(&mut self, server: &Server) -> BenchResult<Option<Latency>> {
        let (rate, seconds) = (self.plan.rate, self.plan.seconds);
        if rate == 0 {
            return Ok(None);
        }
        // What the load before has left to be written is not this measurement's.
        self.place.settle(server).await?;
        let measured = self.bench.latency(server, SINGLE, rate, seconds).await?;
        for (name, micros, most) in [("p50", measured.p50, 2.5), ("p99", measured.p99, 10.0)] {
            let name = format!("post to arrival at {rate}/s, {name}");
            self.report.add(name, millis(micros), "ms", Some(Bar::AtMost(most)));
        }
        Ok(Some(measured))
    }

    async fn idle(&mut self, server: &Server) -> BenchResult {
        const LONG: Duration = Duration::from_secs(10);
        // PostgreSQL's sessions report what they have done up to ten seconds later.
        tokio::time::sleep(Duration::from_secs(12)).await;
        let before = (server.cpu(), self.place.transactions().await?);
        tokio::time::sleep(LONG).await;
        let after = (server.cpu(), self.place.transactions().await?);
        let share = after.0.saturating_sub(before.0).as_secs_f64() / LONG.as_secs_f64() * 100.0;
        self.report.add("idle: CPU", share, "% of a core", Some(Bar::AtMost(1.0)));
        if let (Some(before), Some(after)) = (before.1, after.1) {
            #[expect(clippy::cast_precision_loss, reason = "a small count")]
            let rate = (after - before) as f64 / LONG.as_secs_f64();
            self.report.add("idle: transactions", rate, "/s", Some(Bar::AtMost(10.0)));
        }
        Ok(())
    }

    /// The latency of a healthy endpoint beside ones that hang to the timeout. A server whose windows have
    /// learnt nothing yet: the hard case.
    async fn hanging(&mut self, mut server: Server, alone: Option<Latency>) -> BenchResult<Server> {
        let Some(alone) = alone else { return Ok(server) };
        for endpoints in self.plan.hanging.clone() {
            server.stop().await;
            (server, _) = self.place.start().await?;
            let hanging = self.bench.hang(&server, endpoints, self.plan.hanging_backlog).await?;
            let beside = self.bench.latency(&server, SINGLE, self.plan.rate, self.plan.seconds).await?;
            let most = if endpoints == 1 { 2.0 } else { 3.0 };
            self.report.add(format!("p95 beside {endpoints} hanging"), millis(beside.p95), "ms", None);
            let ratio = millis(beside.p95) / millis(alone.p95.max(1));
            self.report.add(
                format!("p95 beside {endpoints} hanging ÷ alone"),
                ratio,
                "",
                Some(Bar::AtMost(most)),
            );
            // What comes after is measured without them.
            for subscription in hanging {
                server.pause(subscription).await?;
            }
        }
        Ok(server)
    }

    /// A server on the place that stays empty.
    async fn start_empty(&self) -> BenchResult<Option<(&'a Place, Server)>> {
        let Some(place) = self.empty else { return Ok(None) };
        let (server, _) = place.start().await?;
        self.bench.subscribe(&server, SINGLE, 1).await?;
        Ok(Some((place, server)))
    }

    /// A server's speed as a part of an empty one's. The two are measured in turn: the machine's own speed changes from
    /// minute to minute, and not for all of its work by the same part. Without an empty one, shares of the ceiling are
    /// compared.
    async fn against_empty(&mut self, server: &Server, beside: &Beside<'_>) -> BenchResult<f64> {
        let Some((place, empty)) = &beside.empty else {
            return Ok(self.warm_pace(server).await?.share() / beside.at_first.share());
        };
        let mut rounds = Vec::new();
        // The first, short ones only warm up.
        for events in std::iter::once(self.plan.events / 10).chain([self.plan.events; ROUNDS]) {
            let there = self.bench.throughput(place, empty, SINGLE, 1, events).await?;
            let reached = self.bench.throughput(self.place, server, SINGLE, 1, events).await?;
            self.repeats += there.repeats + reached.repeats;
            rounds.push(Pace { ceiling: there.per_second, reached });
        }
        let pace = Pace::middle(rounds.split_off(1));
        Ok(pace.ok_or_else(|| BenchError::new("nothing was measured"))?.share())
    }

    async fn beside_history(&mut self, beside: &Beside<'_>) -> BenchResult {
        if self.plan.history == 0 {
            return Ok(());
        }
        self.place.add_finished(self.plan.history, beside.subscription).await?;
        let (server, _) = self.place.start().await?;
        let ratio = self.against_empty(&server, beside).await?;
        let name = format!("beside {} finished ÷ empty", self.plan.history);
        self.report.add(name, ratio, "", Some(Bar::AtLeast(0.9)));
        server.stop().await;
        Ok(())
    }

    async fn beside_backlog(&mut self, beside: &Beside<'_>) -> BenchResult {
        if self.plan.backlog == 0 {
            return Ok(());
        }
        self.place.add_waiting(self.plan.backlog, beside.subscription).await?;
        let (server, _) = self.place.start().await?;
        let ratio = self.against_empty(&server, beside).await?;
        let name = format!("beside {} waiting ÷ empty", self.plan.backlog);
        self.report.add(name, ratio, "", Some(Bar::AtLeast(0.8)));
        self.memory(&server, "peak memory beside what waits");
        server.stop().await;
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a run")]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1e3
}
