//! How many more jobs each subscription may have: its admission window less the jobs that it has open.
//!
//! Both are kept in memory. Jobs are counted here as this process creates them and applies their results. What
//! other processes do is learnt by counting in the database, when there is a sign of it. A wrong count makes a
//! window too wide or too narrow until the next one: a matter of fairness, never of correctness.

use hooksaga_saga::{ErrorCode, Feedback, Outcome, SubscriptionId, Window};
use hooksaga_store::{Admission, AppliedResult, ScheduledSaga};
use std::{
    collections::{BTreeSet, HashMap},
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
    /// The last pass took all the room that there was: more may wait.
    hungry: bool,
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
        self.window == Window::FLOOR && self.open == 0 && !self.hungry
    }
}

/// Lanes by subscription.
#[derive(Debug, Default)]
pub(super) struct Windows(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lanes: HashMap<SubscriptionId, Lane>,
    /// When there are so many lanes, those that can be forgotten are.
    crowded: usize,
    /// When open jobs were counted last, and how long that took.
    counted: Option<(Instant, Duration)>,
    /// While a count is under way: the results that were applied since it began.
    meanwhile: Option<HashMap<SubscriptionId, i64>>,
    /// What the first count found, and when: jobs from before this process.
    inherited: Option<(HashMap<SubscriptionId, u32>, Instant)>,
}

impl Windows {
    /// Lanes without open jobs are kept up to about this number. One that is forgotten starts again at the floor,
    /// which costs a few round trips.
    const MANY: usize = 10_000;
    /// A subscription without room that is not heard of for so long may have been served by others.
    const STUCK: Duration = Duration::from_millis(100);
    /// So may one that is heard of, for all that this process knows; then a count can wait longer.
    const STALE: Duration = Duration::from_secs(10);
    /// Open jobs are not counted more often than this,
    const COUNT_AFTER: Duration = Duration::from_secs(1);
    /// nor for more than a fiftieth of the time,
    const COST: u32 = 50;
    /// unless that would put it off for longer than this.
    const COUNT_AT_LAST: Duration = Duration::from_secs(30);
    /// For so long, the default lease, jobs from before this process may be what one that was killed has left: were they
    /// counted, its busiest subscriptions would have no room until the last of those leases is over.
    const INHERITED: Duration = Duration::from_secs(60);

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; if something did, each lane is still a valid one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next pass may create.
    pub(super) fn admission(&self, limit: u32, only: Option<BTreeSet<SubscriptionId>>) -> Admission {
        let default_room = Window::FLOOR.size();
        let state = self.state();
        let room = state.lanes.iter().map(|(id, lane)| (*id, lane.room()));
        let room = room.filter(|(_, room)| *room != default_room).collect();
        Admission { room, default_room, limit, only }
    }

    /// Jobs were created as `admission` allowed. Answers where there may be more to create at once: where room has come
    /// free meanwhile and all of it was taken.
    pub(super) fn created(&self, admission: &Admission, sagas: &[ScheduledSaga]) -> BTreeSet<SubscriptionId> {
        let mut taken: HashMap<SubscriptionId, u32> = HashMap::new();
        let mut state = self.state();
        for saga in sagas {
            *taken.entry(saga.subscription_id).or_default() += 1;
            let lane = state.lane(saga.subscription_id);
            lane.open += i64::from(saga.job_id.is_some());
        }
        let cut = u32::try_from(sagas.len()).is_ok_and(|sagas| sagas >= admission.limit);
        let mut more = BTreeSet::new();
        for (id, lane) in state.lanes.iter_mut().filter(|(id, _)| admission.looks_at(**id)) {
            // A pass that was cut short says nothing about those that it did not come to.
            lane.hungry =
                taken.get(id).copied().unwrap_or(0) >= admission.room_of(*id) || (cut && lane.hungry);
            if lane.hungry && lane.room() > 0 {
                more.insert(*id);
            }
        }
        more
    }

    /// Results were applied: they close their jobs, and those that are new are one piece of feedback per
    /// subscription. Answers where that makes room and more may wait; it does so also for jobs that others have
    /// created, who do not learn of it.
    pub(super) fn applied(&self, results: &[AppliedResult], now: Instant) -> BTreeSet<SubscriptionId> {
        let mut feedback: HashMap<SubscriptionId, Feedback> = HashMap::new();
        for (id, new) in
            results.iter().filter(|r| r.changed).filter_map(|r| Some((r.subscription_id, feedback_of(r)?)))
        {
            feedback.entry(id).and_modify(|all| *all = all.and(new)).or_insert(new);
        }
        let mut state = self.state();
        let mut makes_room = BTreeSet::new();
        for result in results {
            let lane = state.lane(result.subscription_id);
            if lane.hungry || lane.room() == 0 || lane.open <= 0 {
                makes_room.insert(result.subscription_id);
            }
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
        makes_room
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

    /// Takes over a count that began at `began`; nothing, if it failed: then the next one is as far off as if it had
    /// not, since scheduling must not depend on it.
    pub(super) fn counted(&self, jobs: Option<&HashMap<SubscriptionId, u32>>, began: Instant) {
        let mut state = self.state();
        state.counted = Some((began, began.elapsed()));
        let meanwhile = state.meanwhile.take().unwrap_or_default();
        let Some(jobs) = jobs else {
            // Later it could not be told from this process's own.
            state.inherited.get_or_insert_with(|| (HashMap::new(), began));
            return;
        };
        let (mut inherited, at) = state.inherited.take().unwrap_or_else(|| (jobs.clone(), began));
        let is_over = began.saturating_duration_since(at) >= Self::INHERITED;
        inherited.retain(|id, left| {
            // What is open now and not this process's own may still be of those; no more than that.
            let own = state.lanes.get(id).map_or(0, |lane| u32::try_from(lane.open).unwrap_or(0));
            *left = jobs.get(id).copied().unwrap_or(0).saturating_sub(own).min(*left);
            *left > 0 && !is_over
        });
        let open = |id: &SubscriptionId| {
            let jobs_in = |counts: &HashMap<_, u32>| counts.get(id).copied().map_or(0, i64::from);
            (jobs_in(jobs) - jobs_in(&inherited) - meanwhile.get(id).copied().unwrap_or(0)).max(0)
        };
        state.lanes.retain(|id, lane| {
            lane.open = open(id);
            !lane.is_fresh()
        });
        for id in jobs.keys().filter(|id| open(id) > 0) {
            state.lane(*id).open = open(id);
        }
        state.inherited = Some((inherited, at));
    }
}

impl State {
    fn count_is_due(&self, now: Instant) -> bool {
        let since = |at: Instant| now.saturating_duration_since(at);
        let Some((at, took)) = self.counted else { return true };
        if since(at) < Windows::COUNT_AFTER.max((took * Windows::COST).min(Windows::COUNT_AT_LAST)) {
            return false;
        }
        let stale = since(at) >= Windows::STALE;
        let unheard = |lane: &Lane| lane.heard.is_none_or(|at| since(at) >= Windows::STUCK);
        self.lanes.values().any(|lane| lane.open < 0 || (lane.room() == 0 && (stale || unheard(lane))))
    }

    fn lane(&mut self, id: SubscriptionId) -> &mut Lane {
        if self.lanes.len() >= self.crowded.max(Windows::MANY) && !self.lanes.contains_key(&id) {
            self.lanes.retain(|_, lane| lane.open != 0);
            self.crowded = self.lanes.len() * 2;
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

    /// Says nothing about the endpoint.
    fn neutral(subscription: i64) -> AppliedResult {
        result(subscription, Outcome::Failed(ErrorCode::INTERNAL), Duration::ZERO)
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

    /// A pass that creates jobs.
    fn create(windows: &Windows, sagas: &[ScheduledSaga]) -> bool {
        !windows.created(&windows.admission(1000, None), sagas).is_empty()
    }

    /// As many jobs as there are results, and then the results.
    fn round(windows: &Windows, results: &[AppliedResult]) {
        for result in results {
            create(windows, &jobs(result.subscription_id.0, 1));
        }
        windows.applied(results, Instant::now());
    }

    fn room(windows: &Windows, subscription: i64) -> u32 {
        windows.admission(1, None).room_of(SubscriptionId(subscription))
    }

    fn only(subscription: i64) -> BTreeSet<SubscriptionId> {
        BTreeSet::from([SubscriptionId(subscription)])
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
        create(&windows, &existing);
        assert_eq!(room(&windows, 1), FLOOR, "a job that was there already is not a new one");
        create(&windows, &jobs(1, 3));
        assert_eq!(room(&windows, 1), FLOOR - 3);
        create(&windows, &jobs(1, 3));
        assert_eq!(room(&windows, 1), 0);
        let again = AppliedResult { changed: false, ..neutral(1) };
        windows.applied(&[again, neutral(1), neutral(1)], Instant::now());
        assert_eq!(room(&windows, 1), 1);
    }

    #[test]
    fn a_result_is_the_schedulers_business_where_more_may_wait() {
        let windows = Windows::default();
        let apply = || !windows.applied(&[neutral(1)], Instant::now()).is_empty();
        create(&windows, &jobs(1, 3));
        assert!(!apply(), "the pass had room for one more, and found none");
        create(&windows, &jobs(1, 2));
        assert!(apply() && apply(), "the pass took all the room that there was");
        create(&windows, &[]);
        assert!(!apply() && !apply(), "the next one found nothing");
        assert!(apply(), "somebody else's job");
    }

    #[test]
    fn room_that_comes_free_during_a_pass_is_not_overlooked() {
        let windows = Windows::default();
        create(&windows, &jobs(1, 4));
        windows.applied(&[neutral(1)], Instant::now());
        let admission = windows.admission(1000, None);
        windows.applied(&[neutral(1), neutral(1)], Instant::now());
        assert_eq!(
            windows.created(&admission, &jobs(1, 1)),
            only(1),
            "it took the one place that it was given"
        );
        let admission = windows.admission(1000, None);
        assert_eq!(windows.created(&admission, &jobs(1, 1)), BTreeSet::new(), "there were two places");

        create(&windows, &jobs(2, 4));
        let admission = Admission { limit: 1, ..windows.admission(1000, None) };
        windows.applied(&[neutral(2)], Instant::now());
        assert_eq!(windows.created(&admission, &jobs(1, 1)), only(2), "cut off before it came to the other");
    }

    #[test]
    fn a_pass_says_nothing_about_those_that_it_does_not_look_at() {
        let windows = Windows::default();
        create(&windows, &jobs(1, 4));
        create(&windows, &jobs(2, 4));
        windows.applied(&[neutral(1)], Instant::now());
        let admission = windows.admission(1000, Some(only(2)));
        assert_eq!(windows.created(&admission, &[]), BTreeSet::new(), "there was no room, nor is there now");
        assert_eq!(windows.applied(&[neutral(1), neutral(2)], Instant::now()).len(), 2, "both may have more");
    }

    #[test]
    fn a_result_that_comes_before_its_job_is_counted_evens_out() {
        let windows = Windows::default();
        windows.applied(&[neutral(1), neutral(1)], Instant::now());
        assert_eq!(room(&windows, 1), FLOOR, "never more than the window");
        create(&windows, &jobs(1, 2));
        assert_eq!(room(&windows, 1), FLOOR);
    }

    /// Windows of a process that found nothing when it came.
    fn first() -> Windows {
        let windows = Windows::default();
        windows.counted(Some(&HashMap::new()), Instant::now());
        windows
    }

    fn counts<const N: usize>(counts: [(i64, u32); N]) -> HashMap<SubscriptionId, u32> {
        counts.into_iter().map(|(id, jobs)| (SubscriptionId(id), jobs)).collect()
    }

    #[test]
    fn a_count_corrects_what_others_have_done() {
        let windows = first();
        let now = Instant::now();
        create(&windows, &jobs(1, 3));
        create(&windows, &jobs(2, 1));
        windows.counted(Some(&counts([(1, 1), (3, 4)])), now);
        assert_eq!([room(&windows, 1), room(&windows, 2), room(&windows, 3)], [FLOOR - 1, FLOOR, 0]);
        windows.counted(None, now);
        assert_eq!(room(&windows, 3), 0, "a count that failed changes nothing");
        windows.counted(Some(&counts([])), now);
        assert!(windows.state().lanes.is_empty());
    }

    #[test]
    fn what_is_applied_during_a_count_is_set_off_against_it() {
        let windows = first();
        let now = Instant::now() + Windows::COUNT_AFTER;
        create(&windows, &jobs(1, 4));
        assert!(windows.begin_count(now));
        windows.applied(&[neutral(1), neutral(1)], now);
        windows.counted(Some(&counts([(1, 3)])), now);
        assert_eq!(room(&windows, 1), FLOOR - 1);
        windows.counted(Some(&counts([(1, 3)])), now);
        assert_eq!(room(&windows, 1), FLOOR - 3, "set off once");
    }

    #[test]
    fn jobs_are_counted_when_others_may_have_been_at_work() {
        let windows = Windows::default();
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let took = |ms| windows.state().counted = Some((now, Duration::from_millis(ms)));
        assert!(windows.begin_count(at(0)), "what was there before this process is not known");
        took(1);
        create(&windows, &jobs(1, 3));
        assert!(!windows.begin_count(at(60_000)), "there is room: no need to know better");
        create(&windows, &jobs(1, 1));
        assert!(!windows.begin_count(at(900)), "it was only just counted");
        assert!(windows.begin_count(at(1100)), "no room, and no results");
        windows.applied(&[neutral(1)], at(2000));
        create(&windows, &jobs(1, 1));
        assert!(!windows.begin_count(at(2090)), "results come");
        assert!(windows.begin_count(at(2110)), "they came");
        windows.applied(&[neutral(1)], at(10_000));
        create(&windows, &jobs(1, 1));
        assert!(windows.begin_count(at(10_010)), "results come, but room never");
        took(100);
        assert!(!windows.begin_count(at(4900)), "a long count is a rare one");
        took(60_000);
        assert!(windows.begin_count(at(31_000)), "but not for ever");

        let windows = Windows::default();
        windows.counted(None, now);
        windows.applied(&[neutral(1)], now);
        assert!(windows.begin_count(at(1100)), "the result of a job that somebody else created");
    }

    #[test]
    fn what_a_dead_process_has_left_is_not_held_against_anyone_for_a_minute() {
        let windows = Windows::default();
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        windows.counted(Some(&counts([(1, 480), (2, 3)])), at(0));
        assert_eq!([room(&windows, 1), room(&windows, 2)], [FLOOR; 2]);
        create(&windows, &jobs(1, 2));
        windows.counted(Some(&counts([(1, 482), (2, 3), (3, 1)])), at(30));
        assert_eq!([room(&windows, 1), room(&windows, 2), room(&windows, 3)], [FLOOR - 2, FLOOR, FLOOR - 1]);
        windows.counted(Some(&counts([(1, 481)])), at(60));
        assert_eq!([room(&windows, 1), room(&windows, 2)], [0, FLOOR], "by now it is somebody's");

        let windows = Windows::default();
        windows.counted(Some(&counts([(1, 480)])), at(0));
        create(&windows, &jobs(1, 3));
        windows.counted(Some(&counts([(1, 4)])), at(10));
        assert_eq!(room(&windows, 1), FLOOR - 3, "of the old ones at most one is left");
        windows.counted(Some(&counts([(1, 480)])), at(20));
        assert_eq!(room(&windows, 1), 0, "and more do not come back");

        let windows = Windows::default();
        windows.counted(None, at(0));
        create(&windows, &jobs(1, 3));
        windows.counted(Some(&counts([(1, 3)])), at(10));
        assert_eq!(room(&windows, 1), FLOOR - 3, "what was not counted at first may be this process's own");
    }

    #[test]
    fn memory_is_bounded_and_open_jobs_are_not_forgotten() {
        let windows = Windows::default();
        create(&windows, &jobs(-1, 4));
        for id in 0..25_000 {
            windows.state().lane(SubscriptionId(id)).open += 1;
            windows.applied(&[quick(id)], Instant::now());
            assert!(windows.state().lanes.len() <= Windows::MANY);
        }
        assert_eq!(room(&windows, 24_999), FLOOR * 2);
        assert_eq!(room(&windows, -1), 0);
    }

    #[test]
    fn many_with_open_jobs_are_all_kept() {
        let windows = first();
        let many: HashMap<_, _> = (0..25_000).map(|id| (SubscriptionId(id), 4)).collect();
        windows.counted(Some(&many), Instant::now());
        assert_eq!(windows.state().lanes.len(), 25_000);
    }
}
