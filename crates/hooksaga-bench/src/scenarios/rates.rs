//! What a delivery costs at light, middle and full load: CPU time, commits and bytes of server and database, and how long it
//! takes to arrive.

use super::Scenarios;
use crate::{
    error::BenchResult,
    measure::{MeasureContext, Steady},
    meter::Cost,
    millis,
    server::Server,
    targets::{LIGHT, Yardstick},
    workspace::Workspace,
};
use std::slice;

const EVENT_TYPE: &str = "bench.rates";
/// Connections, plans and what is known of the endpoint warm up at this rate, for a second.
const WARM_UP: u32 = 300;
/// Below this part of a rate it was not reached: the figures are then those of full load.
const REACHED: f64 = 0.97;

impl Scenarios<'_> {
    pub(super) async fn rates(&mut self) -> BenchResult {
        let workspace = self.workspaces.workspace().await?;
        let bench = self.bench(self.plan.payload_bytes).await?;
        let (server, _) = workspace.start().await?;
        bench.subscribe(&server, EVENT_TYPE, 1).await?;
        bench.steady(&server, EVENT_TYPE, WARM_UP, 1).await?;
        let mut repeats = 0;
        for rate in &self.plan.rates {
            let (steady, cost) = at(&bench, &workspace, &server, *rate, self.plan.rate_seconds).await?;
            repeats += steady.repeats;
            self.add_rate(*rate, steady, &cost);
        }
        self.add_repeats("rates", repeats);
        server.stop().await;
        self.workspaces.remove(workspace).await
    }

    fn add_rate(&mut self, rate: u32, steady: Steady, cost: &Cost) {
        let (targets, light) = (self.targets(), rate == LIGHT);
        let unit = if steady.per_second < f64::from(rate) * REACHED {
            "deliveries/s, rate NOT reached"
        } else {
            "deliveries/s"
        };
        let mut add = |what: &str, value: Option<f64>, unit, target| {
            if let Some(value) = value {
                self.report.hold(format!("{rate}/s: {what}"), value, unit, target);
            }
        };
        let none = Yardstick::default();
        add("delivered", Some(steady.per_second), unit, none);
        add("p50", Some(millis(steady.latency.p50)), "ms", targets.p50.only_goal().when(light));
        add("p99", Some(millis(steady.latency.p99)), "ms", targets.p99.only_goal().when(light));
        add("CPU per delivery", cost.cpu(), "ms", targets.light_cpu.when(light));
        // An embedded database is a part of the server.
        if cost.database.is_none_or(|database| database > 0.0) {
            add("CPU per delivery, server alone", Some(cost.server), "ms", none);
        }
        add("commits per delivery", cost.commits, "", targets.light_commits.when(light));
        add("log flushes per delivery", cost.syncs, "", targets.light_syncs.when(light));
        add("log bytes per delivery", cost.log, "bytes", none);
        add("bytes to disk per delivery", cost.written, "bytes", targets.light_bytes.when(light));
    }
}

/// Deliveries at one rate, and what each of them cost. The database's own counts are complete only a while after the load;
/// what it does while it idles is then among them.
async fn at(
    bench: &MeasureContext<'_>,
    workspace: &Workspace,
    server: &Server,
    rate: u32,
    seconds: u32,
) -> BenchResult<(Steady, Cost)> {
    let servers = slice::from_ref(server);
    workspace.settle(server).await?;
    tokio::time::sleep(workspace.counts_after()).await;
    let before = (workspace.used(servers), workspace.counts().await?);
    let steady = bench.steady(server, EVENT_TYPE, rate, seconds).await?;
    let used = workspace.used(servers);
    tokio::time::sleep(workspace.counts_after()).await;
    let after = (used, workspace.counts().await?);
    Ok((steady, Cost::between(before, after, steady.deliveries)))
}
