//! What `hooksaga bench` measures: deliveries per second, latency and costs of the product as it is, through its public API,
//! with default settings, beside the bare HTTP ceiling of the same machine in the same run.
//!
//! Everything runs on a scratch folder or database that is removed at the end. Compare ratios, not absolute
//! figures: the clients, the receiver, the server and the database share the machine.

mod api;
mod ceiling;
mod compare;
mod database;
mod error;
mod load;
mod machine;
mod measure;
mod meter;
mod pace;
mod plan;
mod receiver;
mod report;
mod scenarios;
mod scratch;
mod server;
mod speed;
mod targets;
mod usage;
mod workspace;
mod workspaces;

pub use ceiling::Sending;
pub use compare::{Compared, Comparison};
pub use error::{BenchError, BenchResult};
pub use plan::{OtherProduct, Plan};
pub use receiver::LARGEST_PAYLOAD;
pub use report::{Bar, Failure, Figure, Report, TableState, TablesOfMinute, rows_of_tables};
pub use scenarios::Scenario;

use database::{ServerKind, is_empty};
use hooksaga_pipeline::random_hex;
use scenarios::Scenarios;
use scratch::Scratch;
use std::{path::Path, time::Instant};
use workspaces::Workspaces;

/// Where the configured database is; measurements never touch it.
#[derive(Clone)]
pub enum MeasuredBackend {
    /// The embedded one: a scratch file stands for it.
    Sqlite,
    /// A PostgreSQL URL.
    Postgres(String),
    /// A MySQL or MariaDB URL.
    MySql(String),
}

impl MeasuredBackend {
    fn name(&self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres(_) => "PostgreSQL",
            Self::MySql(_) => "MySQL",
        }
    }
}

/// Told how far a measurement is.
pub trait ProgressDisplay: Sync {
    /// How many deliveries of the total have arrived.
    fn show(&self, done: u64, total: u64);
    /// The measurement is over.
    fn clear(&self);
}

/// The event types of the measurements.
const SINGLE: &str = "bench.single";
const FAN_OUT: &str = "bench.fan_out";
/// A speed is measured this many times, and the median counts.
const ROUNDS: usize = 3;

/// Whether a run has to take the database that `backend` names as it is: the login may not create one beside it, and it is
/// empty.
pub async fn must_be_in_place(backend: &MeasuredBackend) -> bool {
    let name = format!("hooksaga_bench_{}", random_hex(6));
    let (scratch, is_empty) = match backend {
        MeasuredBackend::Sqlite => return false,
        MeasuredBackend::Postgres(url) => {
            (Scratch::postgres(url, &name).await, is_empty(ServerKind::Postgres, url))
        }
        MeasuredBackend::MySql(url) => (Scratch::mysql(url, &name).await, is_empty(ServerKind::MySql, url)),
    };
    match scratch {
        Ok(scratch) => {
            // One that stays harms nobody, and the next one will say why.
            let _ = scratch.drop().await;
            false
        }
        Err(_) => is_empty.await,
    }
}

/// Runs the plan beside the configured database. Once `interrupted` is ready the run ends; what it made is removed
/// all the same, and the report has the figures until then.
pub async fn run(
    plan: &Plan,
    backend: &MeasuredBackend,
    progress: &dyn ProgressDisplay,
    interrupted: impl Future<Output = ()>,
) -> (Report, BenchResult) {
    let workspaces = Workspaces::new(backend, plan.given);
    let mut report = Report::new(&workspaces.watch);
    let ended =
        in_workspaces(&workspaces, interrupted, Box::pin(measure(plan, &workspaces, progress, &mut report)))
            .await;
    report.close();
    (report, ended)
}

/// Measures this program and another one alternately, each beside the configured database. `interrupted` as in [`run`].
pub async fn compare(
    plan: &Plan,
    backend: &MeasuredBackend,
    other: &Path,
    progress: &dyn ProgressDisplay,
    interrupted: impl Future<Output = ()>,
) -> BenchResult<Comparison> {
    if plan.given {
        return Err(BenchError::new("two programs need a database each: leave --given out"));
    }
    let workspaces = Workspaces::new(backend, false);
    in_workspaces(&workspaces, interrupted, Box::pin(compare::measure(plan, &workspaces, other, progress)))
        .await
}

/// Measures, and removes everything that was made for it. An interrupted measurement is dropped, and its servers with it.
async fn in_workspaces<T>(
    workspaces: &Workspaces,
    interrupted: impl Future<Output = ()>,
    measuring: impl Future<Output = BenchResult<T>>,
) -> BenchResult<T> {
    let measured = tokio::select! {
        measured = measuring => measured,
        () = interrupted => Err(BenchError::new("interrupted: what was made for the measurement is removed")),
    };
    let removed = workspaces.remove_all().await;
    let figures = measured?;
    removed?;
    Ok(figures)
}

/// One part after the other. A part that fails is noted and leaves the others alone; so is one that the time is over for.
async fn measure(
    plan: &Plan,
    workspaces: &Workspaces,
    progress: &dyn ProgressDisplay,
    report: &mut Report,
) -> BenchResult {
    let began = Instant::now();
    report.database = workspaces.database();
    if plan.speed
        && let Err(error) = Box::pin(speed::measure(plan, workspaces, progress, report)).await
    {
        report.fail("speed", &error);
    }
    for scenario in &plan.scenarios {
        let measured = if began.elapsed() < plan.longest {
            let mut scenarios = Scenarios { plan, workspaces, progress, report };
            Box::pin(scenarios.measure(*scenario)).await
        } else {
            Err(BenchError::new("not measured: the time was over"))
        };
        if let Err(error) = measured {
            progress.clear();
            report.fail(scenario.name(), &error);
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a run")]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1e3
}
