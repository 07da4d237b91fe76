//! A server, a healthy endpoint, and a receiver for the endpoints that are not.

use super::Scenarios;
use crate::{
    error::BenchResult,
    measure::{Bench, Latency},
    receiver::{Receiver, payload},
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
    healthy: Bench<'a>,
    pub(super) others: Arc<Receiver>,
    name: String,
    rate: u32,
    alone_seconds: u32,
    /// What was made here; on a given database it is paused at the end.
    subscriptions: Vec<i64>,
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

    /// The healthy endpoint without the others, once connections and plans are warm.
    pub(super) async fn alone(&self) -> BenchResult<Latency> {
        self.latency(1).await?;
        self.latency(self.alone_seconds).await
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
        let event = |number: usize| {
            let text = payload(number as u64, self.healthy.payload_bytes);
            let payload: Value = serde_json::from_str(&text).unwrap_or_default();
            json!({"event_type": self.event_type(&what(number)), "payload": payload})
        };
        let events: Vec<_> = (0..count).map(event).collect();
        for batch in events.chunks(1000) {
            self.server.post_batch(batch).await?;
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
