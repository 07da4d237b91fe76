//! Starts of rate-limited subscriptions.
//!
//! Their jobs are admitted at the pace of the limit. Jobs that have waited since, for a worker or for their subscription to
//! resume, would start all at once. So each start is counted again, and jobs that exceed the limit are handed back until
//! they may start. Attempts of other subscriptions do not wait for this.
//!
//! A start is counted in the database, and happens here once that is committed. [`Spacing`] keeps starts of one process
//! apart that were counted in time and committed late.

use super::{
    attempt::{PreparedAttempt, Settled},
    prepare::Work,
};
use hooksaga_saga::{RateLimit, SubscriptionId, Timestamp};
use hooksaga_store::{Starting, WorkerStore};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Jobs that are given back at the same time are given back together: their delays are multiples of this.
const STEP: Duration = Duration::from_millis(20);
/// Retry delay when the rate limits cannot be read.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// When this process starts attempts of rate-limited subscriptions.
#[derive(Debug)]
pub(super) struct Spacing {
    /// What the times below count from.
    began: Instant,
    /// See [`RateLimit::space`]. What is past is dropped before the map grows.
    full_at: Mutex<HashMap<SubscriptionId, Timestamp>>,
}

impl Default for Spacing {
    fn default() -> Self {
        Self { began: Instant::now(), full_at: Mutex::default() }
    }
}

impl Spacing {
    /// When the next attempt of this subscription may start, which then does.
    fn next(&self, id: SubscriptionId, limit: RateLimit) -> Instant {
        let begin = Timestamp::from_micros(0);
        let now = begin.after(self.began.elapsed());
        let mut all = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, full_at) = limit.space(all.get(&id).copied(), now);
        if all.len() == all.capacity() {
            all.retain(|_, full_at| *full_at > now);
        }
        all.insert(id, full_at);
        self.began + start.since(begin)
    }
}

/// Attempts of one claim whose subscriptions have a rate limit.
#[derive(Debug, Default)]
pub(super) struct LimitedAttempts<T> {
    limits: BTreeMap<SubscriptionId, RateLimit>,
    attempts: Vec<(PreparedAttempt, T)>,
}

impl Work {
    /// Takes the attempts of rate-limited subscriptions out. `hold` is what each holds while it waits.
    pub(super) fn take_limited<T>(&mut self, hold: impl Fn(&PreparedAttempt) -> T) -> LimitedAttempts<T> {
        let limits = std::mem::take(&mut self.limits);
        if limits.is_empty() {
            return LimitedAttempts { limits, attempts: Vec::new() };
        }
        let is_limited = |attempt: &mut PreparedAttempt| limits.contains_key(&attempt.subscription);
        let attempts = self.attempts.extract_if(.., is_limited).map(|attempt| (hold(&attempt), attempt));
        let attempts = attempts.map(|(held, attempt)| (attempt, held)).collect();
        LimitedAttempts { limits, attempts }
    }
}

impl<T> LimitedAttempts<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Asks how many may start. Returns those that may, and the others to be given back, with what each holds.
    pub(super) async fn pass(
        self,
        store: &dyn WorkerStore,
        spacing: &Spacing,
    ) -> (Vec<(PreparedAttempt, T)>, Vec<(Settled, T)>) {
        let mut wanted: BTreeMap<SubscriptionId, u32> = BTreeMap::new();
        for (attempt, _) in &self.attempts {
            *wanted.entry(attempt.subscription).or_default() += 1;
        }
        let starting: Vec<Starting> = self
            .limits
            .iter()
            .filter_map(|(id, limit)| {
                Some(Starting { subscription_id: *id, limit: *limit, jobs: *wanted.get(id)? })
            })
            .collect();
        let mut free: BTreeMap<SubscriptionId, (u32, Duration)> = match store.start_limited(&starting).await {
            Ok(started) => started.iter().map(|one| (one.subscription_id, (one.jobs, one.wait))).collect(),
            Err(error) => {
                tracing::warn!(%error, "cannot read rate limits; rate-limited deliveries are postponed");
                BTreeMap::new()
            }
        };
        let (mut start, mut back) = (Vec::new(), Vec::new());
        for (mut attempt, held) in self.attempts {
            let limit = self.limits.get(&attempt.subscription).copied();
            let delay = match free.get_mut(&attempt.subscription) {
                Some((jobs, _)) if *jobs > 0 => {
                    *jobs -= 1;
                    attempt.not_before = limit.map(|limit| spacing.next(attempt.subscription, limit));
                    start.push((attempt, held));
                    continue;
                }
                Some((_, wait)) => {
                    let delay = *wait;
                    // The one after it has to wait for one more.
                    *wait += limit.map_or(STEP, RateLimit::interval);
                    in_steps(delay)
                }
                None => AFTER_FAILURE,
            };
            back.push((attempt.about.give_back(delay), held));
        }
        (start, back)
    }
}

fn in_steps(delay: Duration) -> Duration {
    let steps = delay.as_nanos().div_ceil(STEP.as_nanos()).max(1);
    STEP * u32::try_from(steps).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_whole_steps_and_never_shorter() {
        for (millis, expected) in [(0, 20), (1, 20), (20, 20), (21, 40), (1000, 1000)] {
            assert_eq!(in_steps(Duration::from_millis(millis)), Duration::from_millis(expected));
        }
    }
}
