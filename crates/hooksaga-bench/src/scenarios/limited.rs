//! An endpoint with a rate limit and a long backlog gets exactly its rate, and nobody else notices.

use super::Scenarios;
use crate::{
    error::{BenchError, BenchResult},
    receiver::Tally,
    report::Bar,
};
use std::time::{Duration, Instant};

/// Attempts a second.
const LIMIT: u32 = 500;
/// The limit allows a small burst at the beginning.
const BURST: Duration = Duration::from_secs(2);

impl Scenarios<'_> {
    pub(super) async fn limited(&mut self) -> BenchResult {
        let waiting = self.plan.waiting;
        let mut setup = self.setup("limited", &[]).await?;
        let ids = setup.subscribe(std::iter::once(("n".to_owned(), "/ok/0".to_owned()))).await?;
        for id in &ids {
            setup.server.limit(*id, LIMIT).await?;
        }
        let alone = setup.alone().await?;
        let tally = Tally::new(waiting as u64, 1);
        setup.others.count_for(&tally);
        setup.post(waiting, |_| "n".to_owned()).await?;
        tokio::time::sleep(BURST).await;
        let (before, began) = (tally.count(), Instant::now());
        let beside = setup.latency(self.plan.seconds).await?;
        let (after, took) = (tally.count(), began.elapsed());
        setup.end().await?;
        if after >= tally.expected() {
            return Err(BenchError::new(format!(
                "{waiting} deliveries were not enough to measure a rate with"
            )));
        }
        self.compare(&format!("{waiting} waiting for an endpoint with a limit of {LIMIT}/s"), alone, beside);
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let reached = (after - before) as f64 / took.as_secs_f64();
        self.report.add(format!("limit of {LIMIT}/s: delivered"), reached, "deliveries/s", None);
        let off = (reached / f64::from(LIMIT) - 1.0).abs() * 100.0;
        self.report.add(format!("limit of {LIMIT}/s: off its rate"), off, "%", Some(Bar::AtMost(2.0)));
        self.add_repeats("limited", tally.repeats());
        Ok(())
    }
}
