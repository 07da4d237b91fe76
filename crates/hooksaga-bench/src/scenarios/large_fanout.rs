//! An event type with thousands of subscribers is routed in bounded steps: posts of others are answered as soon as ever.
//!
//! For their arrival the bar of FB-1 is a goal only. Thousands of endpoints that all want something now are far more than the
//! worker slots, each is entitled to as much as the healthy one, and that is less than 300 deliveries a second.

use super::{Scenarios, beside_hanging::most};
use crate::{
    error::{BenchError, BenchResult},
    millis,
    receiver::Tally,
    report::Bar,
    targets::Yardstick,
};
use std::time::Duration;

const SUBSCRIBERS: usize = 10_000;
const EVENTS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(30);

impl Scenarios<'_> {
    pub(super) async fn many(&mut self) -> BenchResult {
        let mut setup = self.setup("many", &[]).await?;
        setup.subscribe((0..SUBSCRIBERS).map(|n| ("n".to_owned(), format!("/ok/{n}")))).await?;
        let alone = setup.alone().await?;
        let setup = setup.restart().await?;
        let tally = Tally::new(EVENTS as u64, SUBSCRIBERS);
        setup.others.count_for(&tally);
        setup.post(EVENTS, |_| "n".to_owned()).await?;
        let beside = setup.latency(8).await?;
        let complete = tally.complete(PATIENCE, |count| self.progress.show(count, tally.expected())).await;
        self.progress.clear();
        setup.end().await?;
        if !complete {
            let (count, all) = (tally.count(), tally.expected());
            return Err(BenchError::new(format!("only {count} of {all} deliveries to many arrived")));
        }
        let what = format!("{EVENTS} events with {SUBSCRIBERS} subscribers each");
        let (name, bar) = (format!("post to answer beside {what}, p95"), most(alone.answer_p95));
        self.report.add(format!("post to answer, before {what}, p95"), millis(alone.answer_p95), "ms", None);
        self.report.add(name, millis(beside.answer_p95), "ms", Some(Bar::AtMost(bar)));
        let goal = Yardstick { bar: None, goal: Some(Bar::AtMost(most(alone.p95))) };
        self.report.add(format!("p95 alone, before {what}"), millis(alone.p95), "ms", None);
        self.report.hold(format!("p95 beside {what}"), millis(beside.p95), "ms", goal);
        let name = format!("{what}: delivered");
        self.report.add(name, tally.per_second(), "deliveries/s", None);
        Ok(())
    }
}
