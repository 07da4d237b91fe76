//! Speeds: single events and fan-out at full load, latency, idling, and the same beside history, backlog and endpoints that
//! hang.

use super::{
    FAN_OUT, Plan, ProgressDisplay, ROUNDS, SINGLE,
    error::{BenchError, BenchResult},
    measure::{Latency, MeasureContext},
    millis,
    pace::Pace,
    report::{Bar, Report},
    scratch::Filling,
    server::Server,
    targets::{LIGHT, Targets},
    workspace::Workspace,
    workspaces::Workspaces,
};
use std::time::Duration;

/// More requests tell no more about the ceiling.
const LONGEST_CEILING: u64 = 1_000_000;

/// Speeds in one workspace. Those beside history or backlog are compared with a second one, which stays empty.
pub(super) async fn measure(
    plan: &Plan,
    workspaces: &Workspaces,
    progress: &dyn ProgressDisplay,
    report: &mut Report,
) -> BenchResult {
    let workspace = workspaces.workspace().await?;
    let beside = !plan.given && (plan.history > 0 || plan.backlog > 0);
    let empty = if beside { Some(workspaces.workspace().await?) } else { None };
    let bench = MeasureContext::open(progress, plan.clients, plan.payload_bytes).await?;
    let targets = Targets::of(workspaces.database());
    let run =
        Run { plan, workspace: &workspace, empty: empty.as_deref(), bench, targets, report, repeats: 0 };
    Box::pin(run.measure()).await?;
    for workspace in empty.into_iter().chain([workspace]) {
        workspaces.remove(workspace).await?;
    }
    Ok(())
}

/// One run of a plan.
struct Run<'a> {
    plan: &'a Plan,
    workspace: &'a Workspace,
    /// Another one, which stays empty.
    empty: Option<&'a Workspace>,
    bench: MeasureContext<'a>,
    targets: &'static Targets,
    report: &'a mut Report,
    /// Deliveries under load that came more than once.
    repeats: u64,
}

/// What speeds beside history or backlog are compared with: the same on empty tables.
struct Baseline<'a> {
    /// The workspace that stays empty, and its server.
    empty: Option<(&'a Workspace, Server)>,
    at_first: Pace,
    /// What the history and the backlog are of.
    subscription: i64,
}

impl<'a> Run<'a> {
    async fn measure(mut self) -> BenchResult {
        let (server, start) = self.workspace.start().await?;
        let bar = (!self.workspace.is_server()).then_some(Bar::AtMost(200.0));
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
        let beside = Baseline { empty: self.start_empty().await?, at_first: empty, subscription: waiting };
        self.beside_history(&beside).await?;
        self.beside_backlog(&beside).await?;
        if let Some((_, server)) = beside.empty {
            server.stop().await;
        }
        #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
        self.report.add("delivered more than once", self.repeats as f64, "", Some(Bar::AtMost(0.0)));
        Ok(())
    }

    async fn single(&mut self, server: &Server) -> BenchResult<Pace> {
        let before = self.workspace.bytes().await?;
        let pace = self.warm_pace(server).await?;
        let (measured, targets) = (pace.reached, self.targets);
        self.report.add("bare HTTP ceiling", pace.ceiling, "requests/s", None);
        let speed = measured.per_second;
        self.report.hold("single events: delivered", speed, "deliveries/s", targets.single);
        self.report.hold("single events ÷ ceiling", pace.share(), "", targets.single_to_ceiling);
        let peer = self.plan.peer.single;
        self.report.hold(format!("single events ÷ {peer}/s"), speed / peer, "", targets.single_to_peer);
        if let Some(cpu) = measured.cpu {
            let millis = cpu.as_secs_f64() * 1e3;
            self.report.hold("CPU per delivery, with database", millis, "ms", targets.saturated_cpu);
        }
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        {
            let events = self.plan.events * ROUNDS as u64 + self.plan.events / 10;
            let bytes = self.workspace.bytes().await?.saturating_sub(before) as f64 / events as f64;
            self.report.add("disk per delivery", bytes, "bytes", None);
        }
        Ok(pace)
    }

    /// Deliveries of single events, after a short run that warms connections, plans and windows up, as those of any
    /// server that is in use are.
    async fn warm_pace(&mut self, server: &Server) -> BenchResult<Pace> {
        self.bench.throughput(self.workspace, server, SINGLE, 1, self.plan.events / 10).await?;
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
            let reached = self.bench.throughput(self.workspace, server, event_type, fan_out, events).await?;
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
        let (usual, peer) = (endpoints == 10, self.plan.peer.fan_out);
        let target = self.targets.fan_out_to_ceiling.when(usual);
        self.report.hold(format!("fan-out {endpoints} ÷ ceiling"), pace.share(), "", target);
        let target = self.targets.fan_out_to_peer.when(usual);
        self.report.hold(format!("fan-out {endpoints} ÷ {peer}/s"), speed / peer, "", target);
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
        self.workspace.settle(server).await?;
        let measured = self.bench.latency(server, SINGLE, rate, seconds).await?;
        let targets = [("p50", measured.p50, self.targets.p50), ("p99", measured.p99, self.targets.p99)];
        for (name, micros, target) in targets {
            let name = format!("post to arrival at {rate}/s, {name}");
            self.report.hold(name, millis(micros), "ms", target.when(rate == LIGHT));
        }
        Ok(Some(measured))
    }

    async fn idle(&mut self, server: &Server) -> BenchResult {
        const LONG: Duration = Duration::from_secs(10);
        // PostgreSQL's sessions report what they have done up to ten seconds later.
        tokio::time::sleep(Duration::from_secs(12)).await;
        let before = (server.cpu(), self.workspace.transactions().await?);
        tokio::time::sleep(LONG).await;
        let after = (server.cpu(), self.workspace.transactions().await?);
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
            (server, _) = self.workspace.start().await?;
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

    /// Starts a server on the workspace that stays empty.
    async fn start_empty(&self) -> BenchResult<Option<(&'a Workspace, Server)>> {
        let Some(workspace) = self.empty else { return Ok(None) };
        let (server, _) = workspace.start().await?;
        self.bench.subscribe(&server, SINGLE, 1).await?;
        Ok(Some((workspace, server)))
    }

    /// A server's speed as a part of an empty one's. The two are measured alternately: the machine's own speed changes from
    /// minute to minute, and not for all of its work by the same part. Without an empty one, shares of the ceiling are
    /// compared.
    async fn against_empty(&mut self, server: &Server, beside: &Baseline<'_>) -> BenchResult<f64> {
        let Some((workspace, empty)) = &beside.empty else {
            return Ok(self.warm_pace(server).await?.share() / beside.at_first.share());
        };
        let mut rounds = Vec::new();
        // The first, short ones only warm up.
        for events in std::iter::once(self.plan.events / 10).chain([self.plan.events; ROUNDS]) {
            let there = self.bench.throughput(workspace, empty, SINGLE, 1, events).await?;
            let reached = self.bench.throughput(self.workspace, server, SINGLE, 1, events).await?;
            self.repeats += there.repeats + reached.repeats;
            rounds.push(Pace { ceiling: there.per_second, reached });
        }
        let pace = Pace::middle(rounds.split_off(1));
        Ok(pace.ok_or_else(|| BenchError::new("nothing was measured"))?.share())
    }

    async fn beside_history(&mut self, beside: &Baseline<'_>) -> BenchResult {
        if self.plan.history == 0 {
            return Ok(());
        }
        self.workspace.fill(Filling::Finished, self.plan.history, beside.subscription).await?;
        let (server, _) = self.workspace.start().await?;
        let ratio = self.against_empty(&server, beside).await?;
        let name = format!("beside {} finished ÷ empty", self.plan.history);
        self.report.add(name, ratio, "", Some(Bar::AtLeast(0.9)));
        server.stop().await;
        Ok(())
    }

    async fn beside_backlog(&mut self, beside: &Baseline<'_>) -> BenchResult {
        if self.plan.backlog == 0 {
            return Ok(());
        }
        self.workspace.fill(Filling::Waiting, self.plan.backlog, beside.subscription).await?;
        let (server, _) = self.workspace.start().await?;
        let ratio = self.against_empty(&server, beside).await?;
        let name = format!("beside {} waiting ÷ empty", self.plan.backlog);
        self.report.add(name, ratio, "", Some(Bar::AtLeast(0.8)));
        self.memory(&server, "peak memory beside what waits");
        server.stop().await;
        Ok(())
    }
}
