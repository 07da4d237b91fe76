//! The admission windows of the subscriptions that have shown how quick they are.

use hooksaga_saga::{ErrorCode, Feedback, Outcome, SubscriptionId, Window};
use hooksaga_store::{Admission, AppliedResult};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Windows by subscription. One at the floor, where every subscription starts, is not kept.
#[derive(Debug, Default)]
pub(super) struct Windows(Mutex<HashMap<SubscriptionId, Window>>);

impl Windows {
    /// More are not kept: then all start again at the floor, which costs a few round trips each.
    const MOST: usize = 10_000;

    fn map(&self) -> MutexGuard<'_, HashMap<SubscriptionId, Window>> {
        // Nothing panics while it is held; if something did, each window is still a valid one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next pass may admit.
    pub(super) fn admission(&self, limit: u32) -> Admission {
        Admission {
            windows: self.map().iter().map(|(id, window)| (*id, window.size())).collect(),
            default_window: Window::FLOOR.size(),
            limit,
        }
    }

    /// One batch of results is one piece of feedback per subscription.
    pub(super) fn learn<'a>(&self, results: impl Iterator<Item = &'a AppliedResult>) {
        let mut feedback: HashMap<SubscriptionId, Feedback> = HashMap::new();
        for (id, new) in results.filter_map(|r| Some((r.subscription_id, feedback_of(r)?))) {
            feedback.entry(id).and_modify(|all| *all = all.and(new)).or_insert(new);
        }
        let mut map = self.map();
        for (id, feedback) in feedback {
            let window = map.get(&id).copied().unwrap_or_default().after(feedback);
            if window == Window::FLOOR {
                map.remove(&id);
            } else {
                if map.len() >= Self::MOST && !map.contains_key(&id) {
                    map.clear();
                }
                map.insert(id, window);
            }
        }
    }
}

/// What a result says about the endpoint; nothing if no request was sent.
fn feedback_of(result: &AppliedResult) -> Option<Feedback> {
    let unreachable = match &result.result.outcome {
        Outcome::Delivered => false,
        Outcome::Failed(code) if [ErrorCode::LEASE_EXHAUSTED, ErrorCode::INTERNAL].contains(code) => {
            return None;
        }
        Outcome::Failed(code) => code.means_unreachable(),
    };
    Some(Feedback::of(result.duration, unreachable))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::{JobId, JobResult, SagaId, SagaStatus, Timestamp};
    use std::time::Duration;

    fn result(subscription: i64, outcome: Outcome, duration: Duration) -> AppliedResult {
        let at = Timestamp::from_micros(0);
        AppliedResult {
            job_id: JobId(1),
            saga_id: SagaId(1),
            subscription_id: SubscriptionId(subscription),
            correlation_id: String::new(),
            status: SagaStatus::Completed,
            attempt_count: 1,
            next_attempt_at: at,
            changed: true,
            result: JobResult { attempt_at: at, outcome },
            duration,
            saga_created_at: at,
        }
    }

    fn quick(subscription: i64) -> AppliedResult {
        result(subscription, Outcome::Delivered, Duration::from_millis(3))
    }

    fn timeout(subscription: i64) -> AppliedResult {
        result(subscription, Outcome::Failed(ErrorCode::TIMEOUT), Duration::from_secs(15))
    }

    fn size(windows: &Windows, subscription: i64) -> Option<u32> {
        windows.admission(1).windows.get(&SubscriptionId(subscription)).copied()
    }

    #[test]
    fn a_batch_counts_once_and_its_worst_result_decides() {
        let windows = Windows::default();
        windows.learn([quick(1), quick(1), quick(1), quick(2), timeout(2)].iter());
        assert_eq!(size(&windows, 1), Some(Window::FLOOR.size() * 2));
        assert_eq!(size(&windows, 2), None, "at the floor it is not kept");
    }

    #[test]
    fn windows_grow_to_the_ceiling_and_are_forgotten_at_the_floor() {
        let windows = Windows::default();
        (0..20).for_each(|_| windows.learn([quick(1)].iter()));
        assert_eq!(size(&windows, 1), Some(Window::CEILING.size()));
        (0..20).for_each(|_| windows.learn([timeout(1)].iter()));
        assert!(windows.map().is_empty());
    }

    #[test]
    fn one_that_takes_its_time_leaves_the_floor() {
        let windows = Windows::default();
        let unhurried = result(1, Outcome::Delivered, Duration::from_secs(2));
        (0..3).for_each(|_| windows.learn([unhurried.clone()].iter()));
        assert_eq!(size(&windows, 1), Some(Window::FLOOR.size() + 3));
    }

    #[test]
    fn what_was_never_sent_says_nothing() {
        let windows = Windows::default();
        for code in [ErrorCode::LEASE_EXHAUSTED, ErrorCode::INTERNAL] {
            windows.learn([result(1, Outcome::Failed(code), Duration::ZERO)].iter());
        }
        assert_eq!(size(&windows, 1), None);
    }

    #[test]
    fn memory_is_bounded() {
        let windows = Windows::default();
        for id in 0..25_000 {
            windows.learn([quick(id)].iter());
            assert!(windows.map().len() <= Windows::MOST);
        }
        assert_eq!(size(&windows, 24_999), Some(Window::FLOOR.size() * 2));
    }
}
