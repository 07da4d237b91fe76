//! Minutes of load with retention so short that history is removed meanwhile, at the rate that it comes in.

use super::{Scenarios, middle};
use crate::{
    ROUNDS,
    error::{BenchError, BenchResult},
    measure::{MeasureContext, Steady},
    millis,
    report::TablesOfMinute,
    server::Server,
    workspace::Workspace,
};
use std::time::{Duration, Instant};

const EVENT_TYPE: &str = "bench.sustained";
const RETENTION: &str = "HOOKSAGA_RETENTION_FINISHED";
const REMOVED: &str = r#"hooksaga_retention_removed_total{kind="events"}"#;
/// It begins when its server does.
const UNTIL_IT_REMOVES: Duration = Duration::from_secs(30);
/// What came in the last minute has grown old then, and keeps the janitor busy in every round.
const UNTIL_OLD: Duration = Duration::from_secs(60);

/// What a sustained load runs on.
struct Ground<'a> {
    bench: MeasureContext<'a>,
    workspace: &'a Workspace,
    events: u64,
    /// Deliveries that came more than once.
    repeats: u64,
}

impl Scenarios<'_> {
    pub(super) async fn sustained(&mut self) -> BenchResult {
        let workspace = self.workspaces.workspace().await?;
        let bench = self.bench(self.plan.payload_bytes).await?;
        let mut ground = Ground { bench, workspace: &workspace, events: self.plan.events, repeats: 0 };
        let minutes = self.plan.minutes;
        let settings = [(RETENTION, retention(minutes))];

        let (server, _) = workspace.start().await?;
        ground.bench.subscribe(&server, EVENT_TYPE, 1).await?;
        ground.speed(&server, ground.events / 10).await?;
        let mut full = Vec::new();
        for _ in 0..ROUNDS {
            full.push(ground.speed(&server, ground.events).await?);
        }
        server.stop().await;

        let (server, _) = workspace.start_with(&settings).await?;
        let rate = half(middle(full));
        for minute in 1..=minutes {
            let steady = ground.bench.steady(&server, EVENT_TYPE, rate, 60).await?;
            ground.repeats += steady.repeats;
            let database_bytes = workspace.bytes().await?;
            self.add_minute(minute, rate, &steady, database_bytes);
            let tables = workspace.tables().await?;
            if !tables.is_empty() {
                self.report.tables.push(TablesOfMinute { minute, database_bytes, tables });
            }
        }
        let removed = server.api.metric(REMOVED).await?;
        server.stop().await;
        self.report.add("sustained: events removed meanwhile", removed, "", None);

        tokio::time::sleep(UNTIL_OLD).await;
        let (ratio, removed) = ground.beside_janitor(&settings).await?;
        let target = self.targets().beside_janitor;
        self.report.hold("full load beside the janitor ÷ without it", ratio, "", target);
        self.report.add("… events removed by it", removed, "/s", None);
        self.add_repeats("sustained", ground.repeats);
        drop(ground);
        self.workspaces.remove(workspace).await
    }

    fn add_minute(&mut self, minute: u32, rate: u32, steady: &Steady, bytes: u64) {
        let name = |what: &str| format!("minute {minute} at {rate}/s: {what}");
        self.report.add(name("delivered"), steady.per_second, "deliveries/s", None);
        self.report.add(name("p99"), millis(steady.latency.p99), "ms", None);
        #[expect(clippy::cast_precision_loss, reason = "bytes of a database")]
        let mebibytes = bytes as f64 / f64::from(1 << 20);
        self.report.add(name("size of the database"), mebibytes, "MiB", None);
    }
}

impl Ground<'_> {
    async fn speed(&mut self, server: &Server, events: u64) -> BenchResult<f64> {
        let measured = self.bench.throughput(self.workspace, server, EVENT_TYPE, 1, events).await?;
        self.repeats += measured.repeats;
        Ok(measured.per_second)
    }

    /// The speed at full load while the janitor removes, as a part of the speed without it, measured alternately; and
    /// what it removes a second meanwhile. The minutes before have left enough that is old.
    async fn beside_janitor(&mut self, settings: &[(&str, &str)]) -> BenchResult<(f64, f64)> {
        let (mut ratios, mut removals) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (server, _) = self.workspace.start().await?;
            self.speed(&server, self.events / 10).await?;
            let without = self.speed(&server, self.events).await?;
            server.stop().await;
            let (server, _) = self.workspace.start_with(settings).await?;
            self.speed(&server, self.events / 10).await?;
            until_it_removes(&server).await?;
            let (before, began) = (server.api.metric(REMOVED).await?, Instant::now());
            let beside = self.speed(&server, self.events).await?;
            let removed = server.api.metric(REMOVED).await? - before;
            removals.push(removed / began.elapsed().as_secs_f64());
            ratios.push(beside / without);
            server.stop().await;
        }
        Ok((middle(ratios), middle(removals)))
    }
}

async fn until_it_removes(server: &Server) -> BenchResult {
    let began = Instant::now();
    while server.api.metric(REMOVED).await? <= 0.0 {
        if began.elapsed() > UNTIL_IT_REMOVES {
            return Err(BenchError::new("the janitor removed nothing"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Half of a speed, as a rate.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a speed of some thousands")]
fn half(per_second: f64) -> u32 {
    (per_second / 2.0).clamp(1.0, 100_000.0) as u32
}

/// The shortest retention that there is, so that a few minutes see removal; five minutes in a long run.
fn retention(minutes: u32) -> &'static str {
    if minutes < 15 { "1m" } else { "5m" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_any_speed_is_a_rate() {
        assert_eq!([half(0.0), half(9001.0), half(1e9)], [1, 4500, 100_000]);
        assert_eq!([retention(3), retention(60)], ["1m", "5m"]);
    }
}
