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
#[path = "windows_tests.rs"]
mod tests;
