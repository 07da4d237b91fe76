//! What a component says about passes that fail, and how long it waits after each.
//!
//! Promises: a kind of error is logged when it begins, and then at most every 30 s, also if errors of several kinds take turns, and
//! if a pass that succeeds comes in between. A recovery is logged if its outage was.

use crate::backoff::Backoff;
use hooksaga_store::StoreError;
use std::time::Duration;
use tokio::time::Instant;

const REPEAT: Duration = Duration::from_secs(30);

/// The outages of one component.
pub(crate) struct Outages {
    component: &'static str,
    current: Option<Outage>,
    /// When each kind was logged last, in this outage or an earlier one.
    logged: [Option<Instant>; Trouble::KINDS],
}

/// A run of failed passes.
struct Outage {
    since: Instant,
    backoff: Backoff,
    is_logged: bool,
}

impl Outages {
    pub(crate) fn new(component: &'static str) -> Self {
        Self { component, current: None, logged: [None; Trouble::KINDS] }
    }

    /// A pass has failed. Returns how long to wait.
    pub(crate) fn failed(&mut self, error: &StoreError) -> Duration {
        let (trouble, now) = (Trouble::of(error), Instant::now());
        let outage = self.current.get_or_insert_with(|| Outage {
            since: now,
            backoff: Backoff::new(),
            is_logged: false,
        });
        let logged = &mut self.logged[trouble as usize];
        if logged.is_none_or(|at| now.duration_since(at) >= REPEAT) {
            *logged = Some(now);
            outage.is_logged = true;
            trouble.log(self.component, error);
        } else {
            tracing::debug!(component = self.component, %error, "a pass failed again; trying again");
        }
        outage.backoff.next()
    }

    /// A pass has succeeded.
    pub(crate) fn recovered(&mut self) {
        if let Some(outage) = self.current.take().filter(|outage| outage.is_logged) {
            let seconds = outage.since.elapsed().as_secs_f64();
            tracing::info!(component = self.component, seconds, "recovered");
        }
    }
}

/// Kinds of failure. Each kind is logged when it starts and then at most every 30 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Away,
    Slow,
    Unwritable,
    /// Of one kind whatever they say: a text may differ each time.
    Other,
}

impl Trouble {
    const KINDS: usize = Self::Other as usize + 1;

    fn of(error: &StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Self::Away,
            StoreError::TimedOut(_) => Self::Slow,
            StoreError::Unwritable(_) => Self::Unwritable,
            _ => Self::Other,
        }
    }

    fn log(self, component: &'static str, error: &StoreError) {
        match self {
            Self::Away => {
                tracing::warn!(component, %error, "cannot reach the database; trying again until it is back");
            }
            Self::Slow => {
                tracing::warn!(component, %error, "a pass ran into a time limit of the database; trying less at a time");
            }
            Self::Unwritable => {
                tracing::error!(component, %error, "cannot write to the database; trying again until it can be written");
            }
            Self::Other => tracing::error!(component, %error, "a pass failed; trying again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing::{Event, Level, Subscriber, subscriber};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

    /// When which level was logged, in seconds since the test began.
    #[derive(Clone)]
    struct Lines(Instant, Arc<Mutex<Vec<(u64, Level)>>>);

    impl<S: Subscriber> Layer<S> for Lines {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let level = *event.metadata().level();
            if level <= Level::INFO {
                self.1.lock().unwrap().push((self.0.elapsed().as_secs(), level));
            }
        }
    }

    /// One pass a second, which ends with this.
    async fn lines(seconds: u64, pass: impl Fn(u64) -> Option<StoreError>) -> Vec<(u64, Level)> {
        let lines = Lines(Instant::now(), Arc::default());
        let _listening = subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
        let mut outages = Outages::new("test");
        for second in 0..seconds {
            match pass(second) {
                Some(error) => drop(outages.failed(&error)),
                None => outages.recovered(),
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let lines = lines.1.lock().unwrap();
        lines.clone()
    }

    fn away() -> StoreError {
        StoreError::Unavailable("away".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_told_every_half_minute_and_so_is_its_end() {
        let told = lines(100, |second| (second < 95).then(away)).await;
        let [warn, info] = [Level::WARN, Level::INFO];
        assert_eq!(told, [(0, warn), (30, warn), (60, warn), (90, warn), (95, info)]);
    }

    #[tokio::test(start_paused = true)]
    async fn kinds_of_errors_that_take_turns_are_told_once_each() {
        let told = lines(31, |second| {
            Some(match second % 4 {
                0 => away(),
                1 => StoreError::TimedOut("slow".to_owned()),
                2 => StoreError::Unwritable("full".to_owned()),
                _ => StoreError::Other(format!("broken at {second}")),
            })
        })
        .await;
        assert_eq!(told, [(0, Level::WARN), (1, Level::WARN), (2, Level::ERROR), (3, Level::ERROR)]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_comes_and_goes_makes_no_flood() {
        let told = lines(60, |second| (second % 2 == 0).then(away)).await;
        let [warn, info] = [Level::WARN, Level::INFO];
        assert_eq!(told, [(0, warn), (1, info), (30, warn), (31, info)]);
    }
}
