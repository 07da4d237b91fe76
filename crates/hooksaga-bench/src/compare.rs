//! Two programs, measured alternately: the machine's own speed changes from minute to minute, so that figures from two
//! runs cannot be compared.
//!
//! Each has a workspace of its own, prepared by its own `migrate`: their schemas may differ. A round measures both, one
//! right after the other, and who goes first changes from round to round.

use super::{
    FAN_OUT, Plan, ProgressDisplay, SINGLE,
    error::BenchResult,
    measure::MeasureContext,
    millis,
    report::{Bar, number},
    server::Server,
    workspace::Workspace,
    workspaces::Workspaces,
};
use serde::Serialize;
use std::{path::Path, sync::Arc, time::Duration};

/// Rounds of every measurement; the middle one counts.
const ROUNDS: usize = 5;
/// What is left to noise: a program that reaches so much of the other's speed is as fast.
const AS_FAST: f64 = 0.95;
const IDLE: Duration = Duration::from_secs(10);

/// One figure of both programs.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    pub name: String,
    pub unit: &'static str,
    /// The middle value of each.
    pub other: f64,
    pub this: f64,
    /// The middle one of the rounds' ratios, this ÷ other.
    pub ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
    pub reached: bool,
}

/// All figures of both programs.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub database: &'static str,
    pub figures: Vec<Compared>,
}

impl Comparison {
    /// The names of the bars that are missed.
    pub fn missed(&self) -> Vec<&str> {
        self.figures.iter().filter(|figure| !figure.reached).map(|figure| figure.name.as_str()).collect()
    }

    /// As the rows of a table for people.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["", "other", "this", "", "this ÷ other", ""].map(str::to_owned).to_vec()];
        rows.extend(self.figures.iter().map(|figure| {
            let verdict = match (figure.bar, figure.reached) {
                (None, _) => "",
                (_, true) => "ok",
                (_, false) => "MISSED",
            };
            let (other, this) = (number(figure.other), number(figure.this));
            let ratio = format!("{:.3}", figure.ratio);
            [figure.name.clone(), other, this, figure.unit.to_owned(), ratio, verdict.to_owned()].to_vec()
        }));
        rows
    }

    fn add(&mut self, name: impl Into<String>, unit: &'static str, rounds: &[Round], bar: Option<Bar>) {
        let middle = |value: fn(&Round) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(value).collect();
            values.sort_unstable_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(0.0)
        };
        let ratio = middle(|round| round.this / round.other);
        let reached = bar.is_none_or(|bar| bar.is_reached(ratio));
        let (other, this) = (middle(|round| round.other), middle(|round| round.this));
        self.figures.push(Compared { name: name.into(), unit, other, this, ratio, bar, reached });
    }
}

/// One measurement of both.
#[derive(Clone, Copy)]
struct Round {
    other: f64,
    this: f64,
}

/// One of the two.
struct Side {
    workspace: Arc<Workspace>,
    server: Server,
}

/// The values of one measurement.
type Values<const N: usize> = [f64; N];

pub(super) async fn measure(
    plan: &Plan,
    workspaces: &Workspaces,
    other: &Path,
    progress: &dyn ProgressDisplay,
) -> BenchResult<Comparison> {
    let bench = MeasureContext::open(progress, plan.clients, plan.payload_bytes).await?;
    let sides = [
        start(&bench, workspaces.workspace_for(other).await?, plan.fan_out).await?,
        start(&bench, workspaces.workspace().await?, plan.fan_out).await?,
    ];
    let mut comparison = Comparison { database: workspaces.database(), figures: Vec::new() };
    throughput(plan, &bench, &sides, &mut comparison, ("single events", SINGLE, 1, plan.events)).await?;
    if plan.fan_out > 0 {
        let name = format!("fan-out {}", plan.fan_out);
        let what = (name.as_str(), FAN_OUT, plan.fan_out, plan.events / 2);
        throughput(plan, &bench, &sides, &mut comparison, what).await?;
    }
    if plan.rate > 0 {
        latency(plan, &bench, &sides, &mut comparison).await?;
    }
    idle(&sides, &mut comparison).await?;
    #[expect(clippy::cast_precision_loss, reason = "bytes of memory")]
    let [other, this] =
        [0, 1].map(|side: usize| sides[side].server.peak_memory() as f64 / f64::from(1 << 20));
    comparison.add("peak memory", "MiB", &[Round { other, this }], None);
    for side in sides {
        side.server.stop().await;
    }
    Ok(comparison)
}

async fn start(bench: &MeasureContext<'_>, workspace: Arc<Workspace>, fan_out: usize) -> BenchResult<Side> {
    let (server, _) = workspace.start().await?;
    bench.subscribe(&server, SINGLE, 1).await?;
    bench.subscribe(&server, FAN_OUT, fan_out).await?;
    Ok(Side { workspace, server })
}

/// Measures both alternately, `ROUNDS` times.
async fn in_turn<const N: usize>(
    sides: &[Side; 2],
    measure: impl AsyncFn(&Side) -> BenchResult<Values<N>>,
) -> BenchResult<[Vec<Round>; N]> {
    let mut rounds = [const { Vec::new() }; N];
    for round in 0..ROUNDS {
        let first = round % 2;
        let one = measure(&sides[first]).await?;
        let two = measure(&sides[1 - first]).await?;
        let (other, this) = if first == 0 { (one, two) } else { (two, one) };
        for (figure, rounds) in rounds.iter_mut().enumerate() {
            rounds.push(Round { other: other[figure], this: this[figure] });
        }
    }
    Ok(rounds)
}

async fn throughput(
    plan: &Plan,
    bench: &MeasureContext<'_>,
    sides: &[Side; 2],
    comparison: &mut Comparison,
    (name, event_type, fan_out, events): (&str, &str, usize, u64),
) -> BenchResult {
    for side in sides {
        // Connections, plans and what is known of the endpoints warm up.
        bench.throughput(&side.workspace, &side.server, event_type, fan_out, plan.events / 10).await?;
    }
    let [speeds, cpu] = in_turn(sides, async |side: &Side| {
        let measured = bench.throughput(&side.workspace, &side.server, event_type, fan_out, events).await?;
        Ok([measured.per_second, measured.cpu.unwrap_or_default().as_secs_f64() * 1e3])
    })
    .await?;
    comparison.add(name, "deliveries/s", &speeds, Some(Bar::AtLeast(AS_FAST)));
    if cpu.iter().all(|round| round.other > 0.0) {
        comparison.add(format!("{name}: CPU per delivery"), "ms", &cpu, None);
    }
    Ok(())
}

async fn latency(
    plan: &Plan,
    bench: &MeasureContext<'_>,
    sides: &[Side; 2],
    comparison: &mut Comparison,
) -> BenchResult {
    for side in sides {
        side.workspace.settle(&side.server).await?;
    }
    let figures = in_turn(sides, async |side: &Side| {
        let measured = bench.latency(&side.server, SINGLE, plan.rate, plan.seconds).await?;
        Ok([measured.p50, measured.p95, measured.p99].map(millis))
    })
    .await?;
    for (name, rounds) in ["p50", "p95", "p99"].iter().zip(&figures) {
        comparison.add(format!("post to arrival at {}/s, {name}", plan.rate), "ms", rounds, None);
    }
    Ok(())
}

async fn idle(sides: &[Side; 2], comparison: &mut Comparison) -> BenchResult {
    // PostgreSQL's sessions report what they have done up to ten seconds later.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let before = [looked_at(&sides[0]).await?, looked_at(&sides[1]).await?];
    tokio::time::sleep(IDLE).await;
    let after = [looked_at(&sides[0]).await?, looked_at(&sides[1]).await?];
    let rate = |side: usize, figure: usize| (after[side][figure] - before[side][figure]) / IDLE.as_secs_f64();
    let round = |figure| [Round { other: rate(0, figure), this: rate(1, figure) }];
    comparison.add("idle: CPU", "ms/s", &round(0), None);
    if sides[1].workspace.is_server() {
        comparison.add("idle: transactions", "/s", &round(1), None);
    }
    Ok(())
}

/// CPU time in milliseconds, and transactions.
async fn looked_at(side: &Side) -> BenchResult<[f64; 2]> {
    #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
    let transactions = side.workspace.transactions().await?.unwrap_or(0) as f64;
    Ok([side.server.cpu().as_secs_f64() * 1e3, transactions])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_ratio_counts_not_the_ratio_of_the_middles() {
        let rounds = [(100.0, 90.0), (50.0, 50.0), (200.0, 100.0)].map(|(other, this)| Round { other, this });
        let mut comparison = Comparison { database: "SQLite", figures: Vec::new() };
        comparison.add("speed", "/s", &rounds, Some(Bar::AtLeast(AS_FAST)));
        let figure = &comparison.figures[0];
        let close = |value: f64, to: f64| (value - to).abs() < 1e-9;
        assert!(close(figure.other, 100.0) && close(figure.this, 90.0) && close(figure.ratio, 0.9));
        assert_eq!(comparison.missed(), ["speed"]);
        assert!(comparison.rows().concat().join(" ").contains("MISSED"));
    }
}
