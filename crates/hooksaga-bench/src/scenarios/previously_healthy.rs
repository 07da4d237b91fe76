//! A healthy endpoint beside endpoints that responded once and now hang, and beside large payloads that nobody reads.

use super::{
    Scenarios,
    beside_hanging::{BEYOND_A_TIMEOUT, at, settings},
    setup::{Occasional, Setup},
};
use crate::{
    error::{BenchError, BenchResult},
    measure::Latency,
    receiver::Tally,
};
use std::time::Duration;

/// Events of a backlog per endpoint.
const BACKLOG: usize = 20;
/// How long after their last response the endpoints hang: longer than that shows that they answer.
const IDLE: Duration = Duration::from_secs(1);
const TRICKLE_TO: usize = 1_000;
const TRICKLE_EVERY: Duration = Duration::from_secs(5);

impl Scenarios<'_> {
    /// Each has answered once.
    pub(super) async fn known_hanging(&mut self, slots: Option<&'static str>) -> BenchResult {
        for (endpoints, seconds) in [(150, 8), (400, 8), (1_000, BEYOND_A_TIMEOUT)] {
            let name = format!("known_hanging_{endpoints}_{}", slots.unwrap_or("default"));
            let (setup, occasional) = self.known(&name, endpoints, slots).await?;
            let alone = setup.both_alone(&occasional).await?;
            setup.others.turn();
            setup.post(endpoints * BACKLOG, |number| format!("n{}", number % endpoints)).await?;
            let beside = setup.latencies(&occasional, seconds).await?;
            setup.end().await?;
            let what = format!("{endpoints} that answered before and hang{}", at(slots));
            self.compare_both(&what, alone, beside);
        }
        let name = format!("known_trickle_{}", slots.unwrap_or("default"));
        let (setup, occasional) = self.known(&name, TRICKLE_TO, slots).await?;
        let alone = setup.both_alone(&occasional).await?;
        setup.others.turn();
        let beside = tokio::select! {
            beside = setup.latencies(&occasional, BEYOND_A_TIMEOUT) => beside?,
            ended = trickle(&setup) => return Err(ended),
        };
        setup.end().await?;
        let seconds = TRICKLE_EVERY.as_secs();
        let what = format!("{TRICKLE_TO} with an event every {seconds} s that begin to hang{}", at(slots));
        self.compare_both(&what, alone, beside);
        Ok(())
    }

    /// Adds the figures of the busy healthy endpoint, and of the one that gets an event now and then.
    fn compare_both(&mut self, what: &str, alone: [Latency; 2], beside: [Latency; 2]) {
        let ([busy, occasional], [busy_beside, occasional_beside]) = (alone, beside);
        self.compare(what, busy, busy_beside);
        self.compare(&format!("{what}, of one with 10 events a second"), occasional, occasional_beside);
    }

    /// A server that has seen this many endpoints answer a while ago, until they are told to turn.
    async fn known(
        &self,
        name: &str,
        endpoints: usize,
        slots: Option<&'static str>,
    ) -> BenchResult<(Setup<'_>, Occasional<'_>)> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let mut setup = self.setup(name, &settings(slots)).await?;
        let occasional = setup.subscribe_occasional().await?;
        setup.subscribe((0..endpoints).map(|n| (format!("n{n}"), "/turn/0".to_owned()))).await?;
        let answered = Tally::new(endpoints as u64, 1);
        setup.others.count_for(&answered);
        setup.post(endpoints, |number| format!("n{number}")).await?;
        if !answered.complete(PATIENCE, |_| {}).await {
            return Err(BenchError::new(format!(
                "only {} of {endpoints} endpoints answered",
                answered.count()
            )));
        }
        tokio::time::sleep(IDLE).await;
        Ok((setup, occasional))
    }

    /// Their payloads would take the worker's memory more than twice.
    pub(super) async fn large_hanging(&mut self) -> BenchResult {
        const ENDPOINTS: usize = 60;
        const PAYLOAD_BYTES: usize = 900_000;
        let mut setup = self.setup("large_hanging", &[]).await?;
        setup.subscribe((0..ENDPOINTS).map(|n| (format!("n{n}"), format!("/hang/{n}")))).await?;
        let alone = setup.alone().await?;
        setup.post_large(ENDPOINTS * 3, PAYLOAD_BYTES, |number| format!("n{}", number % ENDPOINTS)).await?;
        let beside = setup.latency(BEYOND_A_TIMEOUT).await?;
        setup.end().await?;
        self.compare(&format!("{ENDPOINTS} that hang, payloads of 900 KB"), alone, beside);
        Ok(())
    }
}

/// An event to each, again and again. Returns only if one cannot be posted.
async fn trickle(setup: &Setup<'_>) -> BenchError {
    const PER_POST: usize = 20;
    let pause = TRICKLE_EVERY * 20 / 1_000;
    let mut ticks = tokio::time::interval(pause);
    for first in (0..TRICKLE_TO).step_by(PER_POST).cycle() {
        ticks.tick().await;
        if let Err(error) = setup.post(PER_POST, |number| format!("n{}", first + number)).await {
            return error;
        }
    }
    BenchError::new("nothing was posted")
}
