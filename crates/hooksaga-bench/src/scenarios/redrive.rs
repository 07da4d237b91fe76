//! Thousands of old events are sent to a new endpoint, and live traffic hardly notices.

use super::Scenarios;
use crate::{
    error::{BenchError, BenchResult},
    receiver::Tally,
};
use serde_json::json;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(600);

impl Scenarios<'_> {
    pub(super) async fn redrive(&mut self) -> BenchResult {
        let waiting = self.plan.waiting;
        let mut setup = self.setup("redrive", &[]).await?;
        let alone = setup.alone().await?;
        // Nobody has subscribed to them yet.
        setup.post(waiting, |_| "n".to_owned()).await?;
        let tally = Tally::new(waiting as u64, 1);
        setup.others.count_for(&tally);
        let ids = setup.subscribe(std::iter::once(("n".to_owned(), "/ok/0".to_owned()))).await?;
        let id = ids.first().ok_or_else(|| BenchError::new("a subscription without an id"))?;
        let asked = json!({"kind": "events", "subscription_id": id, "since": "2000-01-01T00:00:00Z"});
        let began = Instant::now();
        let redrive = setup.server.api.post("/v1/redrives", &asked).await?;
        let beside = setup.latency(self.plan.seconds).await?;
        while tally.count() < tally.expected() {
            if began.elapsed() > PATIENCE {
                let status = setup.server.api.get(&format!("/v1/redrives/{}", redrive["id"])).await?;
                return Err(BenchError::new(format!(
                    "only {} of {waiting} old events arrived; the redrive: {status}",
                    tally.count()
                )));
            }
            self.progress.show(tally.count(), tally.expected());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.progress.clear();
        let took = began.elapsed();
        setup.end().await?;
        self.compare(&format!("a redrive of {waiting} events"), alone, beside);
        #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
        let speed = waiting as f64 / took.as_secs_f64();
        self.report.add(format!("redrive of {waiting} events: delivered"), speed, "deliveries/s", None);
        self.add_repeats("redrive", tally.repeats());
        Ok(())
    }
}
