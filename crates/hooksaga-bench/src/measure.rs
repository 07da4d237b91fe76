//! The measurements: each a small story with the servers, the clients and the receiver.

use super::{
    ProgressDisplay,
    ceiling::Sending,
    error::{BenchError, BenchResult},
    load::{self, Aim, OnTime},
    receiver::{Receiver, Tally, payload},
    server::Server,
    workspace::Workspace,
};
use serde_json::json;
use std::{slice, sync::Arc, time::Duration};

/// If nothing arrives for this long, something is lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long clients may post a round of the usual size. On a machine that is busy with other things, the round is then
/// shorter, and the figure is still one.
const LONGEST_ROUND: Duration = Duration::from_secs(60);
const USUAL_ROUND: u64 = 25_000;

/// What all measurements share.
pub(super) struct MeasureContext<'a> {
    pub(super) progress: &'a dyn ProgressDisplay,
    pub(super) receiver: Arc<Receiver>,
    pub(super) clients: usize,
    pub(super) payload_bytes: usize,
}

/// Deliveries under load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throughput {
    pub(super) per_second: f64,
    /// CPU time of the servers and, where it can be seen, of the database server, per delivery.
    pub(super) cpu: Option<Duration>,
    /// Of the database server alone.
    pub(super) database_cpu: Option<Duration>,
    pub(super) repeats: u64,
}

/// Times from post to arrival, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    pub(super) p50: u64,
    pub(super) p95: u64,
    pub(super) p99: u64,
    /// From post to answer.
    pub(super) answer_p95: u64,
}

impl Latency {
    fn of(posts: &OnTime, tally: &Tally) -> Self {
        let sorted = load::latencies(&posts.posted, tally);
        let at = |share| load::percentile(&sorted, share);
        let answer_p95 = load::percentile(&posts.answers, 0.95);
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99), answer_p95 }
    }
}

/// Deliveries at a fixed rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    pub(super) latency: Latency,
    /// What was reached of the rate.
    pub(super) per_second: f64,
    pub(super) deliveries: u64,
    pub(super) repeats: u64,
}

fn failed(error: String) -> BenchError {
    BenchError::new(error)
}

/// How long clients may post this many events.
fn longest_round(events: u64) -> Duration {
    LONGEST_ROUND * u32::try_from(events.div_ceil(USUAL_ROUND)).unwrap_or(u32::MAX).max(1)
}

/// How long clients may post at a fixed rate: a server that cannot keep up need not be waited for to tell so.
fn longest_steady(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into()) * 3 / 2 + Duration::from_secs(1)
}

impl<'a> MeasureContext<'a> {
    /// With a receiver of its own.
    pub(super) async fn open(
        progress: &'a dyn ProgressDisplay,
        clients: usize,
        payload_bytes: usize,
    ) -> BenchResult<Self> {
        let receiver = Receiver::open().await?;
        Ok(Self { progress, receiver, clients, payload_bytes })
    }

    /// Requests a second that HTTP alone reaches here.
    pub(super) async fn ceiling(&self, requests: u64) -> BenchResult<f64> {
        let tally = Tally::new(requests, 1);
        self.receiver.count_for(&tally);
        let sending = Sending {
            url: self.receiver.url("/ok/0"),
            requests,
            clients: self.clients,
            payload_bytes: self.payload_bytes,
        };
        let longest = longest_round(requests);
        let late = |_| BenchError::new(format!("the ceiling took longer than {} s", longest.as_secs()));
        tokio::time::timeout(longest, sending.measure(&tally)).await.map_err(late)?.map_err(failed)
    }

    /// Subscribes `count` endpoints that answer at once to an event type.
    pub(super) async fn subscribe(&self, server: &Server, event_type: &str, count: usize) -> BenchResult {
        for number in 0..count {
            server.subscribe(event_type, &self.receiver.url(&format!("/ok/{number}"))).await?;
        }
        Ok(())
    }

    fn aim(&self, server: &Server, event_type: &str) -> BenchResult<Aim> {
        let address = server.url.trim_start_matches("http://").parse();
        Ok(Aim {
            address: address.map_err(|_| BenchError::new(format!("{} is no address", server.url)))?,
            path: "/v1/events".to_owned(),
            key: server.key.clone(),
            event_type: event_type.to_owned(),
            payload_bytes: self.payload_bytes,
        })
    }

    /// Waits until all that is posted has arrived, in bounded time. Posting itself ends after `longest`.
    async fn delivered<T>(
        &self,
        tally: &Tally,
        longest: Duration,
        posting: impl Future<Output = Result<T, String>>,
        posted: impl Fn(&T) -> u64,
    ) -> BenchResult<T> {
        let limit = longest + PATIENCE;
        let posting = async {
            let late = |_| BenchError::new(format!("a post was not answered within {} s", limit.as_secs()));
            let ended = tokio::time::timeout(limit, posting).await.map_err(late)?.map_err(failed)?;
            tally.expect(posted(&ended));
            Ok::<T, BenchError>(ended)
        };
        let arriving = tokio::time::timeout(
            limit * 2,
            tally.complete(PATIENCE, |count| self.progress.show(count, tally.expected())),
        );
        let arriving = async {
            if arriving.await.unwrap_or(false) {
                return Ok(());
            }
            let (arrived, expected) = (tally.count(), tally.expected());
            Err(BenchError::new(format!("only {arrived} of {expected} deliveries arrived")))
        };
        // A failure of either ends both.
        let ended = tokio::try_join!(posting, arriving);
        self.progress.clear();
        ended.map(|(ended, ())| ended)
    }

    /// Single-event posts from every client, until all is delivered.
    pub(super) async fn throughput(
        &self,
        workspace: &Workspace,
        server: &Server,
        event_type: &str,
        fan_out: usize,
        events: u64,
    ) -> BenchResult<Throughput> {
        self.throughput_of(workspace, slice::from_ref(server), event_type, fan_out, events).await
    }

    /// The same with several servers, which the clients are spread over.
    pub(super) async fn throughput_of(
        &self,
        workspace: &Workspace,
        servers: &[Server],
        event_type: &str,
        fan_out: usize,
        events: u64,
    ) -> BenchResult<Throughput> {
        let (tally, longest) = (Tally::new(events, fan_out), longest_round(events));
        self.receiver.count_for(&tally);
        let aims: Vec<Aim> =
            servers.iter().map(|server| self.aim(server, event_type)).collect::<BenchResult<_>>()?;
        let before = workspace.used(servers);
        let posting = load::closed_loop(&aims, &tally, events, self.clients, longest);
        self.delivered(&tally, longest, posting, load::count).await?;
        let after = workspace.used(servers);
        let each = |time: Duration| time / u32::try_from(tally.count()).unwrap_or(u32::MAX).max(1);
        let database =
            before.database.zip(after.database).map(|(before, after)| after.saturating_sub(before));
        let servers = after.server.saturating_sub(before.server);
        Ok(Throughput {
            per_second: tally.per_second(),
            cpu: database.map(|database| each(servers + database)),
            database_cpu: database.map(each),
            repeats: tally.repeats(),
        })
    }

    /// Posts at a fixed rate, and how long each took to arrive.
    pub(super) async fn latency(
        &self,
        server: &Server,
        event_type: &str,
        rate: u32,
        seconds: u32,
    ) -> BenchResult<Latency> {
        Ok(self.steady(server, event_type, rate, seconds).await?.latency)
    }

    /// The same, with what was reached of the rate.
    pub(super) async fn steady(
        &self,
        server: &Server,
        event_type: &str,
        rate: u32,
        seconds: u32,
    ) -> BenchResult<Steady> {
        let events = u64::from(rate) * u64::from(seconds);
        let (tally, longest) = (Tally::new(events, 1), longest_steady(seconds));
        self.receiver.count_for(&tally);
        let aim = self.aim(server, event_type)?;
        let posting = load::open_loop(&aim, &tally, rate, events, self.clients, longest);
        let posts = self.delivered(&tally, longest, posting, |posts| load::count(&posts.posted)).await?;
        Ok(Steady {
            latency: Latency::of(&posts, &tally),
            per_second: tally.per_second(),
            deliveries: tally.count(),
            repeats: tally.repeats(),
        })
    }

    /// Endpoints that never answer, with deliveries waiting for them.
    pub(super) async fn hang(
        &self,
        server: &Server,
        endpoints: usize,
        waiting: usize,
    ) -> BenchResult<Vec<i64>> {
        let event_type = |number: usize| format!("bench.hang{endpoints}.{number}");
        let mut subscriptions = Vec::new();
        for number in 0..endpoints {
            let url = self.receiver.url(&format!("/hang/{endpoints}/{number}"));
            subscriptions.push(server.subscribe(&event_type(number), &url).await?);
        }
        let event = |number: usize| {
            let text = payload(u64::MAX, self.payload_bytes);
            let payload: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            json!({"event_type": event_type(number % endpoints), "payload": payload})
        };
        let events: Vec<_> = (0..waiting).map(event).collect();
        for batch in events.chunks(1000) {
            server.post_batch(batch).await?;
        }
        Ok(subscriptions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_an_end() {
        assert_eq!(longest_round(100), LONGEST_ROUND);
        assert_eq!(longest_round(USUAL_ROUND), LONGEST_ROUND);
        assert_eq!(longest_round(10 * USUAL_ROUND), LONGEST_ROUND * 10);
        assert_eq!(longest_steady(10), Duration::from_secs(16));
    }
}
