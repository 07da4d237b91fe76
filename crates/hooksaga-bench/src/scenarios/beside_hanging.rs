//! A healthy endpoint beside ones that hang, are slow, or begin to hang.

use super::Scenarios;
use crate::{
    error::{BenchError, BenchResult},
    measure::Latency,
    millis,
    receiver::Tally,
    report::Bar,
    targets::Yardstick,
};
use std::time::{Duration, Instant};

const CONCURRENCY: &str = "HOOKSAGA_WORKER_CONCURRENCY";
/// Numbers of worker slots to measure with; nothing for the default.
const SLOTS: [Option<&str>; 3] = [None, Some("64"), Some("16")];
/// A measurement of that many seconds outlasts the timeout of what hangs: what is tried next is seen, too.
pub(super) const BEYOND_A_TIMEOUT: u32 = 18;

const LONGER_THAN_A_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn settings(slots: Option<&'static str>) -> Vec<(&'static str, &'static str)> {
    slots.map(|slots| (CONCURRENCY, slots)).into_iter().collect()
}

pub(super) fn at(slots: Option<&str>) -> String {
    slots.map(|slots| format!(", {slots} slots")).unwrap_or_default()
}

/// The most that a p95 may be, in milliseconds, by what it is alone, in microseconds.
pub(super) fn most(alone: u64) -> f64 {
    let alone = millis(alone);
    (2.0 * alone).max(alone + 100.0)
}

impl Scenarios<'_> {
    /// Adds both figures.
    pub(super) fn compare(&mut self, what: &str, alone: Latency, beside: Latency) {
        self.report.add(format!("p95 alone, before {what}"), millis(alone.p95), "ms", None);
        let bar = Bar::AtMost(most(alone.p95));
        self.report.add(format!("p95 beside {what}"), millis(beside.p95), "ms", Some(bar));
    }

    pub(super) async fn hanging(&mut self, slots: Option<&'static str>) -> BenchResult {
        for (endpoints, seconds) in [(150, 8), (400, 8), (1000, BEYOND_A_TIMEOUT)] {
            let name = format!("hanging_{endpoints}_{}", slots.unwrap_or("default"));
            let mut setup = self.setup(&name, &settings(slots)).await?;
            setup.subscribe((0..endpoints).map(|n| (format!("n{n}"), format!("/hang/{n}")))).await?;
            setup.subscribe(std::iter::once(("newcomer".to_owned(), "/ok/0".to_owned()))).await?;
            let alone = setup.alone().await?;
            let setup = setup.restart().await?;
            setup.post(endpoints * 20, |number| format!("n{}", number % endpoints)).await?;
            // One that nobody has tried yet either, behind all the others.
            let newcomer = Tally::new(1, 1);
            setup.others.count_for(&newcomer);
            setup.post(1, |_| "newcomer".to_owned()).await?;
            let beside = setup.latency(seconds).await?;
            newcomer.complete(LONGER_THAN_A_TIMEOUT, |_| {}).await;
            setup.end().await?;
            let what = format!("{endpoints} that hang{}", at(slots));
            self.compare(&what, alone, beside);
            // So long, or longer.
            let first = newcomer.arrival(0).unwrap_or_else(|| newcomer.now());
            let first = millis(first / 1000);
            let goal = Yardstick { bar: None, goal: Some(Bar::AtMost(most(alone.p95))) };
            self.report.hold(format!("never tried before, behind {what}"), first, "ms", goal);
        }
        Ok(())
    }

    pub(super) async fn slow(&mut self) -> BenchResult {
        for (endpoints, takes, waiting, slots) in [(3, 850, 9000, None), (1, 800, 3000, Some("64"))] {
            let name = format!("slow_{endpoints}");
            let mut setup = self.setup(&name, &settings(slots)).await?;
            setup.subscribe((0..endpoints).map(|n| (format!("n{n}"), format!("/slow/{takes}/{n}")))).await?;
            let alone = setup.alone().await?;
            let setup = setup.restart().await?;
            setup.post(waiting, |number| format!("n{}", number % endpoints)).await?;
            let beside = setup.latency(10).await?;
            setup.end().await?;
            let what = format!("{endpoints} that take {takes} ms, {waiting} waiting{}", at(slots));
            self.compare(&what, alone, beside);
        }
        Ok(())
    }

    pub(super) async fn turning(&mut self) -> BenchResult {
        const WAITING: usize = 50_000;
        for slots in SLOTS {
            let name = format!("turning_{}", slots.unwrap_or("default"));
            let mut setup = self.setup(&name, &settings(slots)).await?;
            setup.subscribe([("n".to_owned(), "/turn/0".to_owned())].into_iter()).await?;
            let alone = setup.alone().await?;
            let tally = Tally::new(WAITING as u64, 1);
            setup.others.count_for(&tally);
            setup.post(WAITING, |_| "n".to_owned()).await?;
            let open = at_full_load(&tally).await?;
            setup.others.turn();
            let beside = setup.latency(BEYOND_A_TIMEOUT).await?;
            setup.end().await?;
            let what = format!("one with {open} waiting that begins to hang{}", at(slots));
            self.compare(&what, alone, beside);
        }
        Ok(())
    }
}

/// Waits until an endpoint is served at its full speed; how many deliveries wait for it then.
async fn at_full_load(tally: &Tally) -> BenchResult<u64> {
    const SERVED: u64 = 5_000;
    const PATIENCE: Duration = Duration::from_secs(30);
    let began = Instant::now();
    while tally.count() < SERVED {
        if began.elapsed() > PATIENCE {
            return Err(BenchError::new(format!("only {} of {SERVED} deliveries arrived", tally.count())));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(tally.expected().saturating_sub(tally.count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_the_larger_of_twice_and_a_tenth_of_a_second_more() {
        assert!((most(2_000) - 102.0).abs() < 1e-9);
        assert!((most(150_000) - 300.0).abs() < 1e-9);
    }
}
