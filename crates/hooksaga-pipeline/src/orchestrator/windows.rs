//! How many more jobs each subscription may have: its admission window less the jobs that it has open.
//!
//! Both are kept in memory. Jobs are counted here as this process creates them and applies their results. What
//! other processes do is learnt by counting in the database, when there is a sign of it. A wrong count makes a
//! window too wide or too narrow until the next one: a matter of fairness, never of correctness.

use hooksaga_saga::{ErrorCode, Feedback, Outcome, SubscriptionId, Window};
use hooksaga_store::{Admission, AppliedResult, ScheduledSaga};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// One subscription's window, and what it has taken of it.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    window: Window,
    /// Below zero for a moment when a result is applied before its job is counted here, and for longer when this
    /// process applies what others create.
    open: i64,
    /// When a result was applied last.
    heard: Option<Instant>,
}

impl Lane {
    fn room(self) -> u32 {
        let size = self.window.size();
        u32::try_from(i64::from(size) - self.open).unwrap_or(0).min(size)
    }

    /// Where every subscription starts: need not be kept.
    fn is_fresh(self) -> bool {
        self.window == Window::FLOOR && self.open == 0
    }
}

/// Lanes by subscription.
#[derive(Debug, Default)]
pub(super) struct Windows(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lanes: HashMap<SubscriptionId, Lane>,
    /// When open jobs were counted last, and how long that took.
    counted: Option<(Instant, Duration)>,
    /// While a count is under way: the results that were applied since it began.
    meanwhile: Option<HashMap<SubscriptionId, i64>>,
}

impl Windows {
    /// More are not kept: then all start again, which costs a few round trips each.
    const MOST: usize = 10_000;
    /// A subscription without room that is not heard of for so long may have been served by others.
    const STUCK: Duration = Duration::from_millis(100);
    /// Open jobs are not counted more often than this,
    const COUNT_AFTER: Duration = Duration::from_secs(1);
    /// and counting does not take more than a fiftieth of the time.
    const COST: u32 = 50;

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; if something did, each lane is still a valid one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next pass may create.
    pub(super) fn admission(&self, limit: u32) -> Admission {
        Admission {
            room: self.state().lanes.iter().map(|(id, lane)| (*id, lane.room())).collect(),
            default_room: Window::FLOOR.size(),
            limit,
        }
    }

    /// Jobs were created.
    pub(super) fn created(&self, sagas: &[ScheduledSaga]) {
        let mut state = self.state();
        for saga in sagas.iter().filter(|saga| saga.job_id.is_some()) {
            state.lane(saga.subscription_id).open += 1;
        }
    }

    /// Results were applied: they close their jobs, and those that are new are one piece of feedback per
    /// subscription. Answers whether one of the subscriptions had no room before.
    pub(super) fn applied(&self, results: &[AppliedResult], now: Instant) -> bool {
        let mut feedback: HashMap<SubscriptionId, Feedback> = HashMap::new();
        for (id, new) in
            results.iter().filter(|r| r.changed).filter_map(|r| Some((r.subscription_id, feedback_of(r)?)))
        {
            feedback.entry(id).and_modify(|all| *all = all.and(new)).or_insert(new);
        }
        let mut state = self.state();
        let mut was_full = false;
        for result in results {
            let lane = state.lane(result.subscription_id);
            was_full |= lane.room() == 0;
            lane.open -= 1;
            lane.heard = Some(now);
            if let Some(meanwhile) = &mut state.meanwhile {
                *meanwhile.entry(result.subscription_id).or_default() += 1;
            }
        }
        for (id, feedback) in feedback {
            let lane = state.lane(id);
            lane.window = lane.window.after(feedback);
        }
        for result in results {
            state.forget_if_fresh(result.subscription_id);
        }
        was_full
    }

    /// Whether it is time to count open jobs in the database. If it is, what is applied from now on is set off
    /// against the count: it may or may not be in there, and a window that is too wide for a moment is better than
    /// one that is too narrow.
    pub(super) fn begin_count(&self, now: Instant) -> bool {
        let mut state = self.state();
        let due = state.count_is_due(now);
        if due {
            state.meanwhile = Some(HashMap::new());
        }
        due
    }

    /// Takes over a count that began at `began`.
    pub(super) fn counted(&self, jobs: &HashMap<SubscriptionId, u32>, began: Instant) {
        let mut state = self.state();
        state.counted = Some((began, began.elapsed()));
        let meanwhile = state.meanwhile.take().unwrap_or_default();
        let open = |id: &SubscriptionId| {
            let counted = jobs.get(id).copied().map_or(0, i64::from);
            (counted - meanwhile.get(id).copied().unwrap_or(0)).max(0)
        };
        state.lanes.retain(|id, lane| {
            lane.open = open(id);
            !lane.is_fresh()
        });
        for id in jobs.keys() {
            state.lane(*id).open = open(id);
        }
    }
}

impl State {
    fn count_is_due(&self, now: Instant) -> bool {
        let since = |at: Instant| now.saturating_duration_since(at);
        if let Some((at, took)) = self.counted
            && since(at) < Windows::COUNT_AFTER.max(took * Windows::COST)
        {
            return false;
        }
        let unheard = |lane: &Lane| lane.heard.is_none_or(|at| since(at) >= Windows::STUCK);
        self.lanes.values().any(|lane| lane.open < 0 || (lane.room() == 0 && unheard(lane)))
    }

    fn lane(&mut self, id: SubscriptionId) -> &mut Lane {
        if self.lanes.len() >= Windows::MOST && !self.lanes.contains_key(&id) {
            self.lanes.clear();
        }
        self.lanes.entry(id).or_default()
    }

    fn forget_if_fresh(&mut self, id: SubscriptionId) {
        if self.lanes.get(&id).is_some_and(|lane| lane.is_fresh()) {
            self.lanes.remove(&id);
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

    const FLOOR: u32 = Window::FLOOR.size();

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

    fn jobs(subscription: i64, count: usize) -> Vec<ScheduledSaga> {
        let saga = ScheduledSaga {
            saga_id: SagaId(1),
            subscription_id: SubscriptionId(subscription),
            attempt_at: Timestamp::from_micros(0),
            correlation_id: String::new(),
            job_id: Some(JobId(1)),
        };
        vec![saga; count]
    }

    /// As many jobs as there are results, and then the results.
    fn round(windows: &Windows, results: &[AppliedResult]) {
        for result in results {
            windows.created(&jobs(result.subscription_id.0, 1));
        }
        windows.applied(results, Instant::now());
    }

    fn room(windows: &Windows, subscription: i64) -> u32 {
        let admission = windows.admission(1);
        admission.room.get(&SubscriptionId(subscription)).copied().unwrap_or(admission.default_room)
    }

    #[test]
    fn a_batch_counts_once_and_its_worst_result_decides() {
        let windows = Windows::default();
        round(&windows, &[quick(1), quick(1), quick(1), quick(2), timeout(2)]);
        assert_eq!(room(&windows, 1), FLOOR * 2);
        assert_eq!(room(&windows, 2), FLOOR);
        assert_eq!(windows.state().lanes.len(), 1, "one that is as at the start is not kept");
    }

    #[test]
    fn windows_grow_to_the_ceiling_and_are_forgotten_at_the_floor() {
        let windows = Windows::default();
        (0..20).for_each(|_| round(&windows, &[quick(1)]));
        assert_eq!(room(&windows, 1), Window::CEILING.size());
        (0..20).for_each(|_| round(&windows, &[timeout(1)]));
        assert!(windows.state().lanes.is_empty());
    }

    #[test]
    fn one_that_takes_its_time_leaves_the_floor() {
        let windows = Windows::default();
        let unhurried = result(1, Outcome::Delivered, Duration::from_secs(2));
        (0..3).for_each(|_| round(&windows, std::slice::from_ref(&unhurried)));
        assert_eq!(room(&windows, 1), FLOOR + 3);
    }

    #[test]
    fn what_was_never_sent_says_nothing() {
        let windows = Windows::default();
        for code in [ErrorCode::LEASE_EXHAUSTED, ErrorCode::INTERNAL] {
            round(&windows, &[result(1, Outcome::Failed(code), Duration::ZERO)]);
        }
        assert!(windows.state().lanes.is_empty());
    }

    #[test]
    fn open_jobs_take_room_until_their_results_are_applied() {
        let windows = Windows::default();
        let mut existing = jobs(1, 2);
        existing.iter_mut().for_each(|saga| saga.job_id = None);
        windows.created(&existing);
        assert_eq!(room(&windows, 1), FLOOR, "a job that was there already is not a new one");
        windows.created(&jobs(1, 3));
        assert_eq!(room(&windows, 1), FLOOR - 3);
        windows.created(&jobs(1, 3));
        assert_eq!(room(&windows, 1), 0);

        let neutral = result(1, Outcome::Failed(ErrorCode::INTERNAL), Duration::ZERO);
        assert!(windows.applied(std::slice::from_ref(&neutral), Instant::now()), "there was no room before");
        let again = AppliedResult { changed: false, ..neutral.clone() };
        assert!(windows.applied(&[again, neutral.clone()], Instant::now()));
        assert_eq!(room(&windows, 1), 1);
        assert!(!windows.applied(std::slice::from_ref(&neutral), Instant::now()), "there was room already");
        assert_eq!(room(&windows, 1), 2);
    }

    #[test]
    fn a_result_that_comes_before_its_job_is_counted_evens_out() {
        let windows = Windows::default();
        let neutral = result(1, Outcome::Failed(ErrorCode::INTERNAL), Duration::ZERO);
        windows.applied(&[neutral.clone(), neutral], Instant::now());
        assert_eq!(room(&windows, 1), FLOOR, "never more than the window");
        windows.created(&jobs(1, 2));
        assert_eq!(room(&windows, 1), FLOOR);
    }

    fn counts<const N: usize>(counts: [(i64, u32); N]) -> HashMap<SubscriptionId, u32> {
        counts.into_iter().map(|(id, jobs)| (SubscriptionId(id), jobs)).collect()
    }

    #[test]
    fn a_count_corrects_what_others_have_done() {
        let windows = Windows::default();
        let now = Instant::now();
        windows.created(&jobs(1, 9));
        windows.created(&jobs(2, 1));
        windows.counted(&counts([(1, 3), (3, 4)]), now);
        assert_eq!([room(&windows, 1), room(&windows, 2), room(&windows, 3)], [FLOOR - 3, FLOOR, 0]);
        windows.counted(&counts([]), now);
        assert!(windows.state().lanes.is_empty());
    }

    #[test]
    fn what_is_applied_during_a_count_is_set_off_against_it() {
        let windows = Windows::default();
        let now = Instant::now();
        let neutral = result(1, Outcome::Failed(ErrorCode::INTERNAL), Duration::ZERO);
        windows.created(&jobs(1, 4));
        assert!(windows.begin_count(now));
        windows.applied(&[neutral.clone(), neutral], now);
        windows.counted(&counts([(1, 3)]), now);
        assert_eq!(room(&windows, 1), FLOOR - 1);
        windows.counted(&counts([(1, 3)]), now);
        assert_eq!(room(&windows, 1), FLOOR - 3, "set off once");
    }

    #[test]
    fn jobs_are_counted_when_others_may_have_been_at_work() {
        let windows = Windows::default();
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let took = |ms| windows.state().counted = Some((now, Duration::from_millis(ms)));
        let neutral = result(1, Outcome::Failed(ErrorCode::INTERNAL), Duration::ZERO);
        windows.created(&jobs(1, 3));
        assert!(!windows.begin_count(at(0)), "there is room: no need to know better");
        windows.created(&jobs(1, 2));
        assert!(windows.begin_count(at(0)), "no room, and no results");
        windows.applied(std::slice::from_ref(&neutral), at(2000));
        took(1);
        assert!(!windows.begin_count(at(2090)), "results come");
        assert!(windows.begin_count(at(2110)), "they came");
        assert!(!windows.begin_count(at(900)), "it was only just counted");
        took(100);
        assert!(!windows.begin_count(at(4900)), "a long count is a rare one");

        let windows = Windows::default();
        windows.applied(&[neutral], now);
        assert!(windows.begin_count(now), "the result of a job that somebody else created");
    }

    #[test]
    fn memory_is_bounded() {
        let windows = Windows::default();
        for id in 0..25_000 {
            round(&windows, &[quick(id)]);
            assert!(windows.state().lanes.len() <= Windows::MOST);
        }
        assert_eq!(room(&windows, 24_999), FLOOR * 2);
    }
}
