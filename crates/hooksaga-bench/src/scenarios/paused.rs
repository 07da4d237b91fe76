//! A paused subscription costs nothing, and goes on soon after it is resumed.

use super::{Scenarios, setup::Setup};
use crate::{
    error::{BenchError, BenchResult},
    receiver::Tally,
    report::Bar,
};
use std::time::{Duration, Instant};

const EVENTS: usize = 30_000;
/// When this many have arrived, hundreds of jobs are open.
const BEFORE: u64 = 5_000;
const LONG: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(30);

impl Scenarios<'_> {
    pub(super) async fn paused(&mut self) -> BenchResult {
        let mut setup = self.setup("paused", &[]).await?;
        let ids = setup.subscribe(std::iter::once(("n".to_owned(), "/ok/0".to_owned()))).await?;
        let subscription = *ids.first().ok_or_else(|| BenchError::new("a subscription without an id"))?;
        let tally = Tally::new(EVENTS as u64, 1);
        setup.others.count_for(&tally);
        setup.post(EVENTS, |_| "n".to_owned()).await?;
        until(|| tally.count() >= BEFORE, "the endpoint got too little before its pause").await?;
        setup.server.pause(subscription).await?;
        // What is in flight arrives, what is claimed is held, and gauges are read anew.
        tokio::time::sleep(LONG).await;
        let open = setup.server.api.metric(r#"hooksaga_queue_depth{queue="pending_jobs"}"#).await?;
        let before = work(&setup).await?;
        tokio::time::sleep(LONG).await;
        let grown = work(&setup).await? - before;
        // What was posted but not routed before the pause is for nobody: a paused subscription gets nothing new.
        let routed = setup.server.api.count("hooksaga_sagas_routed_total").await?;
        let (arrived, resumed) = (tally.count(), Instant::now());
        if arrived >= routed {
            return Err(BenchError::new("nothing was left to be paused"));
        }
        setup.server.resume(subscription).await?;
        until(|| tally.count() > arrived, "nothing arrived after the pause").await?;
        let after = resumed.elapsed();
        let all = || tally.count() >= routed;
        until(all, "not everything arrived after the pause").await?;
        setup.end().await?;
        self.report.add("paused: jobs held", open, "", None);
        let name = format!("paused: claims and hand-backs in {} s", LONG.as_secs());
        self.report.add(name, grown, "", Some(Bar::AtMost(0.0)));
        let bar = Bar::AtMost(1000.0);
        self.report.add("paused: resumed to arrival", after.as_secs_f64() * 1e3, "ms", Some(bar));
        self.add_repeats("paused", tally.repeats());
        Ok(())
    }
}

/// How many claims found something, and how many jobs were given back.
async fn work(setup: &Setup<'_>) -> BenchResult<f64> {
    let claims = setup.server.api.metric(r#"hooksaga_pass_seconds_count{stage="claim"}"#).await?;
    Ok(claims + setup.server.api.metric("hooksaga_jobs_handed_back_total").await?)
}

async fn until(reached: impl Fn() -> bool, or: &str) -> BenchResult {
    let began = Instant::now();
    while !reached() {
        if began.elapsed() > PATIENCE {
            return Err(BenchError::new(or));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}
