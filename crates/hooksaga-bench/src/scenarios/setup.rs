//! A server, a healthy endpoint, and a receiver for the endpoints that are not.

use super::Scenarios;
use crate::{
    error::{BenchError, BenchResult},
    measure::{Latency, MeasureContext},
    receiver::{Receiver, payload},
    scratch::Filling,
    server::Server,
    workspace::Workspace,
    workspaces::Workspaces,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Environment variables of a server.
type Environment = Vec<(&'static str, &'static str)>;

pub(super) struct Setup<'a> {
    workspaces: &'a Workspaces,
    workspace: Arc<Workspace>,
    settings: Environment,
    pub(super) server: Server,
    /// Measures the healthy endpoint, whose receiver has a port of its own.
    healthy: MeasureContext<'a>,
    pub(super) others: Arc<Receiver>,
    name: String,
    rate: u32,
    alone_seconds: u32,
    /// What was made here; on a given database it is paused at the end.
    subscriptions: Vec<i64>,
}

/// A healthy endpoint that gets an event now and then.
pub(super) struct Occasional<'a>(MeasureContext<'a>);

impl Occasional<'_> {
    const NAME: &'static str = "occasional";
    /// Events a second.
    const RATE: u32 = 10;
}

impl<'a> Setup<'a> {
    /// How long the healthy endpoint is measured alone, at most.
    const ALONE_SECONDS: u32 = 4;

    pub(super) async fn start(
        scenarios: &Scenarios<'a>,
        name: &str,
        settings: &[(&'static str, &'static str)],
    ) -> BenchResult<Self> {
        let (workspaces, plan) = (scenarios.workspaces, scenarios.plan);
        let workspace = workspaces.workspace().await?;
        let (server, _) = workspace.start_with(settings).await?;
        let mut setup = Self {
            workspaces,
            workspace,
            settings: settings.to_vec(),
            server,
            healthy: scenarios.bench(plan.payload_bytes).await?,
            others: Receiver::open().await?,
            name: name.replace('-', "_"),
            rate: plan.healthy_rate(),
            alone_seconds: plan.seconds.min(Self::ALONE_SECONDS),
            subscriptions: Vec::new(),
        };
        let url = setup.healthy.receiver.url("/ok/0");
        let id = setup.server.subscribe(&setup.healthy_type(), &url).await?;
        setup.subscriptions.push(id);
        Ok(setup)
    }

    fn healthy_type(&self) -> String {
        self.event_type("healthy")
    }

    /// An event type of this scenario only.
    pub(super) fn event_type(&self, what: &str) -> String {
        format!("bench.{}.{what}", self.name)
    }

    /// Subscribes other endpoints: event types and paths.
    pub(super) async fn subscribe(
        &mut self,
        endpoints: impl Iterator<Item = (String, String)>,
    ) -> BenchResult<Vec<i64>> {
        let endpoints: Vec<_> =
            endpoints.map(|(what, path)| (self.event_type(&what), self.others.url(&path))).collect();
        let ids = self.server.subscribe_all(endpoints.into_iter()).await?;
        self.subscriptions.extend(&ids);
        Ok(ids)
    }

    /// Subscribes another healthy endpoint, whose receiver has a port of its own.
    pub(super) async fn subscribe_occasional(&mut self) -> BenchResult<Occasional<'a>> {
        let healthy = &self.healthy;
        let context = MeasureContext::open(healthy.progress, healthy.clients, healthy.payload_bytes).await?;
        let event_type = self.event_type(Occasional::NAME);
        let id = self.server.subscribe(&event_type, &context.receiver.url("/ok/0")).await?;
        self.subscriptions.push(id);
        Ok(Occasional(context))
    }

    /// Subscribes one more.
    pub(super) async fn subscribe_one(&mut self, what: &str, path: &str) -> BenchResult<i64> {
        let ids = self.subscribe(std::iter::once((what.to_owned(), path.to_owned()))).await?;
        ids.first().copied().ok_or_else(|| BenchError::new("a subscription without an id"))
    }

    /// With rows of long ago, and a server that was started since.
    pub(super) async fn filled(self, filling: Filling, count: u64, subscription: i64) -> BenchResult<Self> {
        self.server.stop().await;
        self.workspace.fill(filling, count, subscription).await?;
        let (server, _) = self.workspace.start_with(&self.settings).await?;
        Ok(Self { server, ..self })
    }

    /// The healthy endpoint without the others, once connections and plans are warm.
    pub(super) async fn alone(&self) -> BenchResult<Latency> {
        self.latency(1).await?;
        self.latency(self.alone_seconds).await
    }

    /// The same, and one that gets an event now and then.
    pub(super) async fn both_alone(&self, occasional: &Occasional<'_>) -> BenchResult<[Latency; 2]> {
        self.latencies(occasional, 1).await?;
        self.latencies(occasional, self.alone_seconds).await
    }

    pub(super) async fn latencies(
        &self,
        occasional: &Occasional<'_>,
        seconds: u32,
    ) -> BenchResult<[Latency; 2]> {
        let event_type = self.event_type(Occasional::NAME);
        let other = occasional.0.latency(&self.server, &event_type, Occasional::RATE, seconds);
        tokio::try_join!(self.latency(seconds), other).map(Into::into)
    }

    pub(super) async fn latency(&self, seconds: u32) -> BenchResult<Latency> {
        self.healthy.latency(&self.server, &self.healthy_type(), self.rate, seconds).await
    }

    /// A new server, which knows nothing about the others yet: the hard case. It has seen the healthy endpoint answer; as
    /// long as it has not, nobody can tell a healthy endpoint from one that hangs.
    pub(super) async fn restart(self) -> BenchResult<Self> {
        self.server.stop().await;
        let (server, _) = self.workspace.start_with(&self.settings).await?;
        let setup = Self { server, ..self };
        setup.latency(1).await?;
        Ok(setup)
    }

    /// Posts `count` events, as fast as batches are answered: their types, by their number.
    pub(super) async fn post(&self, count: usize, what: impl Fn(usize) -> String) -> BenchResult {
        self.post_large(count, self.healthy.payload_bytes, what).await
    }

    /// The same with payloads of another size.
    pub(super) async fn post_large(
        &self,
        count: usize,
        payload_bytes: usize,
        what: impl Fn(usize) -> String,
    ) -> BenchResult {
        const BATCH_BYTES: usize = 4 * 1024 * 1024;
        let event = |number: usize| {
            let text = payload(number as u64, payload_bytes);
            let payload: Value = serde_json::from_str(&text).unwrap_or_default();
            json!({"event_type": self.event_type(&what(number)), "payload": payload})
        };
        let together = (BATCH_BYTES / payload_bytes.max(1)).clamp(1, 1000);
        for first in (0..count).step_by(together) {
            let batch: Vec<_> = (first..count.min(first + together)).map(&event).collect();
            self.server.post_batch(&batch).await?;
        }
        Ok(())
    }

    /// Ends the server and removes the workspace.
    pub(super) async fn end(self) -> BenchResult {
        if self.workspaces.given {
            for subscription in &self.subscriptions {
                self.server.pause(*subscription).await?;
            }
        }
        self.server.kill().await;
        self.workspaces.remove(self.workspace).await
    }
}
