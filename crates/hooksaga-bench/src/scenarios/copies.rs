//! Several servers on one database: a second copy must not make it slower.

use super::{Scenarios, middle};
use crate::{
    ROUNDS,
    error::{BenchError, BenchResult},
    measure::Throughput,
    server::Server,
    targets::Yardstick,
    workspace::Workspace,
};

const EVENT_TYPE: &str = "bench.copies";

impl Scenarios<'_> {
    pub(super) async fn copies(&mut self) -> BenchResult {
        let workspace = self.workspaces.workspace().await?;
        if !workspace.is_server() {
            // An embedded database has one server.
            return self.workspaces.remove(workspace).await;
        }
        let bench = self.bench(self.plan.payload_bytes).await?;
        let counts = counts(&self.plan.copies);
        let mut rounds: Vec<Vec<Throughput>> = Vec::new();
        let (server, _) = workspace.start().await?;
        bench.subscribe(&server, EVENT_TYPE, 1).await?;
        server.stop().await;
        // In turn: the machine's own speed changes from minute to minute.
        for _ in 0..ROUNDS {
            let mut round = Vec::new();
            for count in &counts {
                let servers = start(&workspace, *count).await?;
                let events = self.plan.events;
                bench.throughput_of(&workspace, &servers, EVENT_TYPE, 1, events / 10).await?;
                round.push(bench.throughput_of(&workspace, &servers, EVENT_TYPE, 1, events).await?);
                for server in servers {
                    server.stop().await;
                }
            }
            rounds.push(round);
        }
        for (index, count) in counts.into_iter().enumerate() {
            let summary = Summary::of(&rounds, index)
                .ok_or_else(|| BenchError::new("nothing was measured of the copies"))?;
            self.add_copies(count, summary);
        }
        self.add_repeats("copies", rounds.iter().flatten().map(|round| round.repeats).sum());
        self.workspaces.remove(workspace).await
    }

    fn add_copies(&mut self, count: usize, summary: Summary) {
        let name = if count == 1 { "1 copy".to_owned() } else { format!("{count} copies") };
        let none = Yardstick::default();
        self.report.hold(format!("{name}: delivered"), summary.per_second, "deliveries/s", none);
        if let Some(cpu) = summary.database_cpu {
            self.report.hold(format!("{name}: the database's CPU per delivery"), cpu, "ms", none);
        }
        if count > 1 {
            // With more than a handful the machine's two or three cores are what is measured.
            let target = self.targets().copies.when(count <= 3);
            self.report.hold(format!("{name} ÷ 1"), summary.to_one, "", target);
        }
    }
}

async fn start(workspace: &Workspace, count: usize) -> BenchResult<Vec<Server>> {
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(workspace.start().await?.0);
    }
    Ok(servers)
}

/// The numbers of copies, in order, each once, and one copy first: what the others are compared with.
fn counts(asked: &[usize]) -> Vec<usize> {
    let mut counts: Vec<usize> = asked.iter().copied().filter(|count| *count > 1).chain([1]).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// All rounds of one number of copies: the middle values.
#[derive(Clone, Copy, Debug)]
struct Summary {
    per_second: f64,
    /// In milliseconds.
    database_cpu: Option<f64>,
    /// As a part of the same round's speed with one copy.
    to_one: f64,
}

impl Summary {
    /// Each round begins with one copy.
    fn of(rounds: &[Vec<Throughput>], index: usize) -> Option<Self> {
        let pairs: Option<Vec<_>> =
            rounds.iter().map(|round| Some((*round.first()?, *round.get(index)?))).collect();
        let pairs = pairs.filter(|pairs| !pairs.is_empty())?;
        let cpu: Option<Vec<f64>> =
            pairs.iter().map(|(_, it)| Some(it.database_cpu?.as_secs_f64() * 1e3)).collect();
        Some(Self {
            per_second: middle(pairs.iter().map(|(_, it)| it.per_second).collect()),
            database_cpu: cpu.map(middle),
            to_one: middle(pairs.iter().map(|(one, it)| it.per_second / one.per_second).collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_copy_is_always_measured_and_comes_first() {
        assert_eq!(counts(&[3, 2, 3, 0]), [1, 2, 3]);
        assert_eq!(counts(&[]), [1]);
    }

    #[test]
    fn copies_are_compared_within_a_round() {
        let at = |per_second, micros| Throughput {
            per_second,
            cpu: None,
            database_cpu: Some(Duration::from_micros(micros)),
            repeats: 0,
        };
        // The machine was half as fast in the second round: the ratio does not show it.
        let rounds = [
            vec![at(100.0, 50), at(90.0, 60)],
            vec![at(50.0, 50), at(45.0, 70)],
            vec![at(100.0, 50), at(80.0, 80)],
        ];
        let summary = Summary::of(&rounds, 1).expect("three rounds");
        assert!((summary.to_one - 0.9).abs() < 1e-9, "{summary:?}");
        assert!((summary.per_second - 80.0).abs() < 1e-9, "{summary:?}");
        assert!(summary.database_cpu.is_some_and(|cpu| (cpu - 0.07).abs() < 1e-9), "{summary:?}");
        assert!(Summary::of(&rounds, 2).is_none() && Summary::of(&[], 0).is_none());
    }
}
