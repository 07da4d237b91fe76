//! Thousands of old events are sent to a new endpoint, or dead letters once more, and live traffic hardly notices.

use super::{Scenarios, setup::Setup};
use crate::{
    error::{BenchError, BenchResult},
    measure::Latency,
    receiver::Tally,
    scratch::Filling,
};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a redrive may take.
fn patience(waiting: usize) -> Duration {
    const AT_LEAST: Duration = Duration::from_secs(600);
    /// Deliveries a second that are fewer than those of any machine.
    const SLOWEST: u64 = 250;
    AT_LEAST + Duration::from_secs(waiting as u64 / SLOWEST)
}

/// A redrive and live traffic, until all that it sent has arrived.
struct Redrive<'a> {
    setup: &'a Setup<'a>,
    id: Value,
    tally: Arc<Tally>,
    began: Instant,
    patience: Duration,
}

impl Scenarios<'_> {
    pub(super) async fn redrive(&mut self) -> BenchResult {
        let waiting = self.plan.waiting;
        let mut setup = self.setup("redrive", &[]).await?;
        let alone = setup.alone().await?;
        // Nobody has subscribed to them yet.
        setup.post(waiting, |_| "n".to_owned()).await?;
        let id = setup.subscribe_one("n", "/ok/0").await?;
        let asked = json!({"kind": "events", "subscription_id": id, "since": "2000-01-01T00:00:00Z"});
        self.redriven(setup, alone, &asked, "events").await
    }

    pub(super) async fn redrive_letters(&mut self) -> BenchResult {
        let mut setup = self.setup("redrive_letters", &[]).await?;
        let id = setup.subscribe_one("n", "/ok/0").await?;
        let setup = setup.filled(Filling::Letters, self.plan.waiting as u64, id).await?;
        let alone = setup.alone().await?;
        let asked = json!({"kind": "dead_letters", "filter": {"tenant": "default"}});
        self.redriven(setup, alone, &asked, "dead letters").await
    }

    /// Starts what is asked for, and measures the healthy endpoint for as long as it takes.
    async fn redriven(&mut self, setup: Setup<'_>, alone: Latency, asked: &Value, of: &str) -> BenchResult {
        let waiting = self.plan.waiting;
        let tally = Tally::new(waiting as u64, 1);
        setup.others.count_for(&tally);
        let began = Instant::now();
        let started = setup.server.api.post("/v1/redrives", asked).await?;
        let id = started["id"].clone();
        let redrive =
            Redrive { setup: &setup, id, tally: Arc::clone(&tally), began, patience: patience(waiting) };
        let seconds = self.plan.seconds;
        let (created, beside) = tokio::try_join!(redrive.created(), redrive.beside(seconds))?;
        setup.end().await?;
        let what = format!("redrive of {waiting} {of}");
        self.compare(&format!("a {what}, in its worst {seconds} s"), alone, beside);
        #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
        let speed = waiting as f64 / created.as_secs_f64();
        self.report.add(format!("{what}: created"), speed, "deliveries/s", None);
        self.report.add(format!("{what}: delivered"), tally.pace(), "deliveries/s", None);
        self.add_repeats(&what, tally.repeats());
        Ok(())
    }
}

impl Redrive<'_> {
    fn missed(&self, redrive: &Value) -> BenchError {
        let (arrived, expected) = (self.tally.count(), self.tally.expected());
        BenchError::new(format!("only {arrived} of {expected} deliveries arrived; the redrive: {redrive}"))
    }

    fn is_late(&self) -> bool {
        self.began.elapsed() > self.patience
    }

    async fn shown(&self) -> BenchResult<Value> {
        self.setup.server.api.get(&format!("/v1/redrives/{}", self.id)).await
    }

    /// How long it took until every delivery was created.
    async fn created(&self) -> BenchResult<Duration> {
        loop {
            let redrive = self.shown().await?;
            let took = self.began.elapsed();
            if redrive["status"] != "running" || self.is_late() {
                let all = redrive["status"] == "done" && redrive["created"] == self.tally.expected();
                return if all { Ok(took) } else { Err(self.missed(&redrive)) };
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The healthy endpoint until everything has arrived: the worst of the measurements that follow each other.
    async fn beside(&self, seconds: u32) -> BenchResult<Latency> {
        let mut worst = self.setup.latency(seconds).await?;
        while self.tally.count() < self.tally.expected() {
            if self.is_late() {
                return Err(self.missed(&self.shown().await?));
            }
            let next = self.setup.latency(seconds).await?;
            if next.p95 > worst.p95 {
                worst = next;
            }
        }
        Ok(worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_redrive_may_take_longer() {
        assert_eq!(patience(1000), Duration::from_secs(604));
        assert_eq!(patience(1_000_000), Duration::from_secs(4600));
    }
}
