//! The measurements: each a small story with the server, the clients and the receiver.

use super::{
    Reporter,
    ceiling::Sending,
    error::{BenchError, BenchResult},
    load::{self, Aim, OnTime},
    place::{Place, Server},
    receiver::{Receiver, Tally, payload},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// Nothing arriving for so long means that something is lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// What all measurements share.
pub(super) struct Bench<'a> {
    pub(super) progress: &'a dyn Reporter,
    pub(super) receiver: Arc<Receiver>,
    pub(super) clients: usize,
    pub(super) payload_bytes: usize,
}

/// Deliveries under load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throughput {
    pub(super) per_second: f64,
    /// CPU time of the server and, where it can be seen, of the database server, per delivery.
    pub(super) cpu: Option<Duration>,
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

fn failed(error: String) -> BenchError {
    BenchError::new(error)
}

impl Bench<'_> {
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
        sending.measure(&tally).await.map_err(failed)
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

    /// Single-event posts from every client, until all is delivered.
    pub(super) async fn throughput(
        &self,
        place: &Place,
        server: &Server,
        event_type: &str,
        fan_out: usize,
        events: u64,
    ) -> BenchResult<Throughput> {
        let (tally, total) = (Tally::new(events, fan_out), events * fan_out as u64);
        self.receiver.count_for(&tally);
        let aim = self.aim(server, event_type)?;
        let before = (server.cpu(), place.database_cpu());
        let posting = load::closed_loop(&aim, &tally, events, self.clients);
        let arriving = tally.complete(PATIENCE, |count| self.progress.show(count, total));
        let (posted, complete) = tokio::join!(posting, arriving);
        self.progress.clear();
        posted.map_err(failed)?;
        if !complete {
            return Err(BenchError::new(format!(
                "only {} of {} deliveries arrived",
                tally.count(),
                events * fan_out as u64
            )));
        }
        let after = (server.cpu(), place.database_cpu());
        let database = before.1.zip(after.1).map(|(before, after)| after.saturating_sub(before));
        let cpu = database.map(|database| {
            (after.0.saturating_sub(before.0) + database)
                / u32::try_from(tally.count()).unwrap_or(u32::MAX).max(1)
        });
        let per_second = tally.per_second();
        Ok(Throughput { per_second, cpu, repeats: tally.repeats() })
    }

    /// Posts at a fixed rate, and how long each took to arrive.
    pub(super) async fn latency(
        &self,
        server: &Server,
        event_type: &str,
        rate: u32,
        seconds: u32,
    ) -> BenchResult<Latency> {
        let events = u64::from(rate) * u64::from(seconds);
        let (tally, total) = (Tally::new(events, 1), events);
        self.receiver.count_for(&tally);
        let aim = self.aim(server, event_type)?;
        let posting = load::open_loop(&aim, &tally, rate, events, self.clients);
        let arriving = tally.complete(PATIENCE, |count| self.progress.show(count, total));
        let (posted, complete) = tokio::join!(posting, arriving);
        self.progress.clear();
        let posted = posted.map_err(failed)?;
        if !complete {
            return Err(BenchError::new(format!("only {} of {events} deliveries arrived", tally.count())));
        }
        Ok(Latency::of(&posted, &tally))
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
