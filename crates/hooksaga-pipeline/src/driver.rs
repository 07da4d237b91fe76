//! The loop around every component's `run_once`.
//!
//! It repeats a pass at once while there is more to do. Otherwise it sleeps until the stage is woken, until a
//! time that the pass returned, or until the next poll, whichever comes first. The poll interval grows from 50 ms to 2 s,
//! and to 10 s for components that are not on the path of a delivery. Polling is the safety net for lost wake-ups. Where
//! wake-ups of other processes do not arrive, polling finds their work, and the interval grows to 1 s only.
//!
//! Under load it rests between passes, see [`crate::batch_pauses`].
//!
//! Promises: it never ends on an error and never spins. While passes fail it tries again after waits that grow to 1 s.
//! A failure is logged when it starts and every 30 s while it lasts, see [`crate::outage`]. On the order to stop, the
//! running pass finishes.

use crate::{Metrics, Progress, Shutdown, Signals, batch_pauses::end_of_rest, outage::Outages};
use hooksaga_store::{Stage, StoreResult};
use std::time::Duration;
use tokio::time::Instant;

/// Drives one component.
#[derive(Debug)]
pub struct Driver<'a> {
    /// Its name in logs and metrics.
    pub name: &'static str,
    pub rhythm: Rhythm,
    pub signals: &'a Signals,
    pub metrics: &'a Metrics,
    pub shutdown: &'a Shutdown,
}

/// When an idle component looks again.
#[derive(Clone, Copy, Debug)]
pub enum Rhythm {
    /// When its stage is woken; a poll is the safety net.
    Woken(Stage),
    /// When its stage is woken, for what is not on the path of a delivery: an idle one polls every ten seconds.
    WokenSeldom(Stage),
    /// At a fixed interval.
    Every(Duration),
}

impl Driver<'_> {
    /// Runs passes until the order to stop.
    pub async fn run<F, Fut>(&self, mut pass: F)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = StoreResult<Progress>>,
    {
        let mut poll = Poll::new();
        let mut outages = Outages::new(self.name);
        while !self.shutdown.is_triggered() {
            let (began, mut done) = (Instant::now(), 0);
            let until = match pass().await {
                Ok(progress) => {
                    outages.recovered();
                    match progress {
                        Progress::Worked => {
                            poll = Poll::new();
                            continue;
                        }
                        Progress::Drained { rows, until } => {
                            poll = Poll::new();
                            done = rows;
                            until
                        }
                        Progress::Idle { until } => until,
                    }
                }
                Err(error) => {
                    self.metrics.store_error(self.name, &error);
                    let wait = outages.failed(&error);
                    // Wake-ups do not cut this wait short: they say nothing about the database.
                    tokio::select! {
                        () = self.shutdown.wait() => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                    continue;
                }
            };
            let rested = end_of_rest(done, began, Instant::now(), self.signals.copies());
            if self.sleep(&mut poll, until).await {
                poll = Poll::new();
            }
            // Not cut short by an order to stop: it is over in a moment.
            tokio::time::sleep_until(rested).await;
        }
    }

    /// Sleeps until there may be work; returns whether a wake-up ended it.
    async fn sleep(&self, poll: &mut Poll, until: Option<Duration>) -> bool {
        let longest = match self.rhythm {
            Rhythm::Every(interval) => interval,
            Rhythm::Woken(_) => poll.next(self.signals.hears_all(), Poll::LONGEST),
            Rhythm::WokenSeldom(_) => poll.next(self.signals.hears_all(), Poll::LONGEST_SELDOM),
        };
        // A pass that names a time which has come, again and again, must not make this loop spin.
        let wait = until.map_or(longest, |until| until.clamp(Duration::from_millis(1), longest));
        let woken = async {
            match self.rhythm {
                Rhythm::Woken(stage) | Rhythm::WokenSeldom(stage) => self.signals.woken(stage).await,
                Rhythm::Every(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shutdown.wait() => false,
            () = woken => true,
            () = tokio::time::sleep(wait) => false,
        }
    }
}

/// The waits of an idle component: they double, so that one that was busy a moment ago looks again soon
/// and one that is idle for long rarely queries the database.
struct Poll(Duration);

impl Poll {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(2);
    const LONGEST_SELDOM: Duration = Duration::from_secs(10);
    const LONGEST_UNHEARING: Duration = Duration::from_secs(1);

    fn new() -> Self {
        Self(Self::FIRST)
    }

    fn next(&mut self, hears_all: bool, longest: Duration) -> Duration {
        let wait = self.0.min(if hears_all { longest } else { Self::LONGEST_UNHEARING });
        self.0 = (self.0 * 2).min(longest);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_store::StoreError;
    use std::cell::RefCell;

    /// Runs a driver of the router's stage over scripted passes, and stops it after the last one. Returns
    /// when each pass began.
    async fn drive(signals: &Signals, script: Vec<StoreResult<Progress>>) -> Vec<Duration> {
        drive_at(Rhythm::Woken(Stage::Router), signals, script).await
    }

    async fn drive_at(
        rhythm: Rhythm,
        signals: &Signals,
        script: Vec<StoreResult<Progress>>,
    ) -> Vec<Duration> {
        let (metrics, shutdown) = (Metrics::new(), Shutdown::new());
        let driver = Driver { name: "test", rhythm, signals, metrics: &metrics, shutdown: &shutdown };
        let (began, starts) = (Instant::now(), RefCell::new(Vec::new()));
        let script = RefCell::new(script.into_iter());
        driver
            .run(|| {
                starts.borrow_mut().push(began.elapsed());
                let next = script.borrow_mut().next();
                let shutdown = &shutdown;
                async move {
                    next.unwrap_or_else(|| {
                        shutdown.trigger();
                        Ok(Progress::IDLE)
                    })
                }
            })
            .await;
        starts.into_inner()
    }

    /// The pauses between passes.
    fn gaps(starts: &[Duration]) -> Vec<Duration> {
        starts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// Timers have a resolution of a millisecond or two.
    #[track_caller]
    fn assert_gaps(starts: &[Duration], expected_ms: &[u64]) {
        let gaps = gaps(starts);
        assert_eq!(gaps.len(), expected_ms.len(), "{gaps:?}");
        for (gap, ms) in gaps.iter().zip(expected_ms) {
            let expected = Duration::from_millis(*ms);
            assert!(*gap >= expected && *gap <= expected + Duration::from_millis(2), "{gaps:?}");
        }
    }

    fn idle(passes: usize) -> Vec<StoreResult<Progress>> {
        (0..passes).map(|_| Ok(Progress::IDLE)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_followed_by_the_next_pass_at_once() {
        let script = vec![Ok(Progress::Worked), Ok(Progress::Worked)];
        assert_gaps(&drive(&Signals::new(Stage::ALL), script).await, &[0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_component_polls_more_and_more_slowly() {
        let starts = drive(&Signals::new(Stage::ALL), idle(8)).await;
        assert_gaps(&starts, &[50, 100, 200, 400, 800, 1600, 2000, 2000]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_no_delivery_waits_for_polls_every_ten_seconds_and_is_woken_at_once() {
        let signals = Signals::new(Stage::ALL);
        let seldom = Rhythm::WokenSeldom(Stage::Router);
        let starts = drive_at(seldom, &signals, idle(10)).await;
        assert_gaps(&starts, &[50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);

        signals.wake(Stage::Router);
        assert_gaps(&drive_at(seldom, &signals, idle(2)).await, &[0, 50]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_component_that_hears_nobody_polls_every_second() {
        let hears_nobody = Signals::new(&[Stage::Router]);
        for rhythm in [Rhythm::Woken(Stage::Router), Rhythm::WokenSeldom(Stage::Router)] {
            let starts = drive_at(rhythm, &hears_nobody, idle(8)).await;
            assert_gaps(&starts, &[50, 100, 200, 400, 800, 1000, 1000, 1000]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_and_wake_ups_make_the_polls_quick_again() {
        let mut script = idle(3);
        script.push(Ok(Progress::Drained { rows: 1, until: None }));
        script.extend(idle(1));
        assert_gaps(&drive(&Signals::new(Stage::ALL), script).await, &[50, 100, 200, 50, 100]);

        let signals = Signals::new(Stage::ALL);
        signals.wake(Stage::Router);
        signals.wake(Stage::Router);
        assert_gaps(&drive(&signals, idle(2)).await, &[0, 50]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_named_time_ends_the_sleep_and_cannot_make_it_spin() {
        let at = |ms| Ok(Progress::Idle { until: Some(Duration::from_millis(ms)) });
        let script = vec![at(7), at(0), at(0), at(60_000)];
        assert_gaps(&drive(&Signals::new(Stage::ALL), script).await, &[7, 1, 1, 400]);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_are_waited_out_whatever_wakes() {
        let signals = Signals::new(Stage::ALL);
        signals.wake(Stage::Router);
        let down = || Err(StoreError::Unavailable("down".to_owned()));
        let broken = || Err(StoreError::Other("broken".to_owned()));
        let script = vec![down(), down(), broken(), broken(), down(), down(), Ok(Progress::Worked), down()];
        assert_gaps(&drive(&signals, script).await, &[50, 100, 200, 400, 800, 1000, 0, 50]);
    }
}
