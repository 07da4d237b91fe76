//! Payloads of several sizes: posts that are delivered per second.

use super::{Scenarios, middle};
use crate::{ROUNDS, error::BenchResult, targets::LARGE_PAYLOAD};

const EVENT_TYPE: &str = "bench.payloads";
/// A round moves no more than that, so that large payloads fill no disk.
const MOST_BYTES: u64 = 256 << 20;

impl Scenarios<'_> {
    pub(super) async fn payloads(&mut self) -> BenchResult {
        let workspace = self.workspaces.workspace().await?;
        let mut bench = self.bench(self.plan.payload_bytes).await?;
        let (server, _) = workspace.start().await?;
        bench.subscribe(&server, EVENT_TYPE, 1).await?;
        let mut repeats = 0;
        for size in &self.plan.sizes {
            bench.payload_bytes = *size;
            let events = events(self.plan.events, *size);
            let mut rounds = Vec::new();
            // The first, short one only warms up.
            for events in [events / 10 + 1].into_iter().chain([events; ROUNDS]) {
                rounds.push(bench.throughput(&workspace, &server, EVENT_TYPE, 1, events).await?);
            }
            repeats += rounds.iter().map(|round| round.repeats).sum::<u64>();
            let rounds = rounds.split_off(1);
            let (name, target) = (name(*size), self.targets().large_payloads.when(*size == LARGE_PAYLOAD));
            let speed = middle(rounds.iter().map(|round| round.per_second).collect());
            self.report.hold(format!("payloads of {name}: delivered"), speed, "deliveries/s", target);
            let cpu: Option<Vec<f64>> =
                rounds.iter().map(|round| Some(round.cpu?.as_secs_f64() * 1e3)).collect();
            if let Some(cpu) = cpu.map(middle) {
                self.report.add(format!("payloads of {name}: CPU per delivery"), cpu, "ms", None);
            }
        }
        self.add_repeats("payloads", repeats);
        server.stop().await;
        self.workspaces.remove(workspace).await
    }
}

/// How many events of this size make a round.
fn events(most: u64, size: usize) -> u64 {
    most.min(MOST_BYTES / (size as u64).max(1)).max(1)
}

/// A size as people say it.
fn name(size: usize) -> String {
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    match size {
        whole if whole >= MIB && whole % MIB == 0 => format!("{} MiB", whole / MIB),
        whole if whole >= KIB && whole % KIB == 0 => format!("{} KiB", whole / KIB),
        whole if whole >= 1000 && whole % 1000 == 0 => format!("{} KB", whole / 1000),
        other => format!("{other} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_of_large_payloads_is_short() {
        assert_eq!(events(25_000, 1000), 25_000);
        assert_eq!(events(25_000, 1 << 20), 256);
        assert_eq!(events(25_000, usize::MAX), 1);
    }

    #[test]
    fn sizes_have_names() {
        let names = [1000, 10_000, 100 << 10, 1 << 20, 1500].map(name);
        assert_eq!(names.each_ref().map(String::as_str), ["1 KB", "10 KB", "100 KiB", "1 MiB", "1500 bytes"]);
    }
}
