//! What this process knows of each subscription's endpoint: how it behaves, what it has open, and whether more may wait.
//!
//! All of it is in memory. Jobs are counted here as this process creates them and applies their results; [`WorkerLoad`]
//! shows what other processes do, about once a second while there is work. A wrong count makes a subscription's limit too
//! wide or too narrow until the next count. That affects fairness, never correctness. [`hooksaga_saga::allot`] decides
//! who gets how many jobs.

use hooksaga_saga::{
    Demand, Endpoint, EndpointReaction, ErrorCode, Outcome, Standing, SubscriptionId, allot,
};
use hooksaga_store::{Allotted, AppliedResult, Scheduled, WORKER_LEASES_END_AFTER, WorkerLoad};
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// One subscription.
#[derive(Clone, Debug, Default)]
struct Lane {
    endpoint: Endpoint,
    /// How many due sagas may wait: a router or an operator created some, a retry fell due, a look found one. `u32::MAX` if
    /// nobody counted them: until a pass takes less than it was allotted.
    waiting: u32,
    /// The order of its last admission.
    last_turn: u64,
    /// The last turn of anybody before it began to wait.
    waits_since: u64,
    /// When this process last created a job for it or applied a result.
    touched: Option<Instant>,
    /// Jobs that this process created, less the results that it applied, since the reading of the load with this number
    /// began.
    since: (u64, i64),
    /// Until then its rate limit lets nothing through.
    limited_until: Option<Instant>,
}

impl Lane {
    /// Something waits, and may get a job.
    fn is_ready(&self, now: Instant) -> bool {
        self.waiting > 0 && self.limited_until.is_none_or(|until| until <= now)
    }

    /// So many more wait from now on; `turn` was the last one.
    fn begin_to_wait(&mut self, sagas: u32, turn: u64) {
        if self.waiting == 0 {
            self.waits_since = turn;
        }
        self.waiting = self.waiting.saturating_add(sagas);
    }

    /// A pass found this many of those that wait, of which `new` had no job yet, and could have taken `jobs`.
    fn found(&mut self, found: u32, new: u32, jobs: u32) {
        let is_limited = self.limited_until.is_some();
        self.waiting = match self.waiting {
            _ if found < jobs && !is_limited => 0,
            u32::MAX => u32::MAX,
            // Another copy took what this pass found, so what was counted here may still wait.
            _ if new < found => u32::MAX,
            counted => counted.saturating_sub(found).max(u32::from(is_limited)),
        };
    }

    /// Something waits or is open: a pass must consider it.
    fn is_active(&self) -> bool {
        self.waiting > 0 || !self.endpoint.is_idle()
    }

    /// Deliveries to its endpoint are on their way, or will soon be.
    fn is_busy(&self, hears_after: Duration, now: Instant) -> bool {
        (self.is_ready(now) || !self.endpoint.is_idle())
            && self.endpoint.standing(hears_after, now) != Standing::Unreachable
    }

    /// The load reading with this number is the latest; jobs were opened or closed since it began.
    fn touch(&mut self, reading: u64, opened: i64, now: Instant) {
        self.since = (reading, self.opened_since(reading) + opened);
        self.touched = Some(now);
    }

    fn opened_since(&self, reading: u64) -> i64 {
        if self.since.0 == reading { self.since.1 } else { 0 }
    }
}

/// Lanes by subscription, and what the workers can do.
#[derive(Debug, Default)]
pub(super) struct Lanes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lanes: HashMap<SubscriptionId, Lane>,
    /// The lanes that are active: the others are only remembered.
    active: HashSet<SubscriptionId>,
    turn: u64,
    /// Slots of the living workers.
    slots: u32,
    /// How much later this process may hear that an endpoint answers than another one does.
    hears_after: Duration,
    /// When the load was read last, and how long that took.
    read: Option<(Instant, Duration)>,
    /// How many readings have begun.
    readings: u64,
    /// When a reading last corrected the lanes that were in use meanwhile.
    corrected: Option<Instant>,
    /// What the first reading found open: jobs from before this process, as long as workers may have died with them.
    inherited: HashMap<SubscriptionId, u32>,
    began: Option<Instant>,
    /// Endpoints that were failing when this process began are known.
    knows_failing: bool,
}

impl Lanes {
    /// The slots that jobs are created for while no worker is alive, so that one that starts finds something to do.
    const NOMINAL_SLOTS: u32 = 16;
    /// With fewer than this the allotment, which spares two, would give nothing to an endpoint that does not answer quickly.
    const LEAST_SLOTS: u32 = 4;
    /// The most subscriptions that a pass decides about; those that had their turn longest ago come first.
    const MOST_DECIDED: usize = 4096;
    /// The most lanes that are kept; those with nothing open go first, and a look finds them again.
    const MOST_KEPT: usize = 50_000;
    /// The load is read at most this often.
    const READ_AFTER: Duration = Duration::from_secs(1);
    /// Reading the load takes at most one part in this many of the time.
    const READ_COST: u32 = 50;
    /// A process that works alone trusts its own counts, but for one reading in this time.
    const CORRECT_AFTER: Duration = Duration::from_secs(30);
    /// The load is read at least every 30 s, however long that takes.
    const READ_AT_LAST: Duration = Duration::from_secs(30);
    /// Longer than this nobody waits for a count before an endpoint counts as silent.
    const HEARS_AT_LAST: Duration = Duration::from_secs(5);
    /// [`Self::READ_COST`] while no worker is known: one that starts beside this process says so a moment later;
    /// until then all subscriptions share [`Self::NOMINAL_SLOTS`].
    const READ_COST_UNTIL_KNOWN: u32 = 10;
    /// Jobs that were open when this process started may belong to a killed worker. For this long they are not counted,
    /// because they would leave the busiest subscriptions no room until their leases expire. Once every worker has sent
    /// a heartbeat since the start, none was killed, and they are counted at once.
    const INHERITED_FOR: Duration = WORKER_LEASES_END_AFTER;
    /// How many endpoints that were failing when this process began are remembered.
    pub(super) const MOST_FAILING: u32 = 10_000;

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; if something did, each lane is still a valid one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These subscriptions may have due sagas. Returns whether all of them are remembered.
    pub(super) fn may_wait(&self, subscriptions: impl IntoIterator<Item = SubscriptionId>) -> bool {
        self.wait(subscriptions.into_iter().map(|id| (id, u32::MAX)))
    }

    /// The same, with how many; `u32::MAX` if nobody counted them.
    pub(super) fn wait(&self, subscriptions: impl IntoIterator<Item = (SubscriptionId, u32)>) -> bool {
        let mut state = self.state();
        let mut all = true;
        for (id, sagas) in subscriptions {
            if state.has_room_for(id) {
                let turn = state.turn;
                state.change(id, |lane| lane.begin_to_wait(sagas, turn));
            } else {
                all = false;
            }
        }
        all
    }

    /// Who may have how many new jobs now, `most` in all.
    pub(super) fn allot(&self, most: u32, now: Instant) -> Vec<Allotted> {
        let state = self.state();
        let active = || state.active.iter().filter_map(|id| Some((*id, state.lanes.get(id)?)));
        let demand = |lane: &Lane| {
            let waiting = if lane.is_ready(now) { lane.waiting } else { 0 };
            lane.endpoint.demand(waiting, lane.last_turn, lane.waits_since, state.hears_after, now)
        };
        let mut waiting: Vec<(SubscriptionId, Demand)> =
            active().filter(|(_, lane)| lane.is_ready(now)).map(|(id, lane)| (id, demand(lane))).collect();
        if waiting.is_empty() {
            return Vec::new();
        }
        let later = later_ones(&mut waiting, Self::MOST_DECIDED);
        let mut demands: Vec<Demand> = waiting.iter().map(|(_, demand)| *demand).collect();
        // Those that wait for nothing, or for a later pass, hold slots all the same.
        demands.extend(active().filter(|(_, lane)| !lane.is_ready(now)).map(|(_, lane)| demand(lane)));
        let holds = later.into_iter().map(|(_, demand)| demand).filter(|demand| demand.open > 0);
        demands.extend(holds.map(|demand| Demand { waiting: 0, ..demand }));
        let shares = allot(state.capacity(), &demands);
        let share = |((id, demand), jobs): (&(SubscriptionId, Demand), u32)| Share {
            subscription_id: *id,
            has_nothing: demand.open == 0,
            is_untested: is_untested(demand.standing),
            jobs,
        };
        within(most, &waiting.iter().zip(shares).map(share).collect::<Vec<_>>())
    }

    /// Jobs were created as allotted: where all of it was taken, or as much as a rate limit lets through, more may wait,
    /// unless all that waited was counted.
    pub(super) fn created(&self, allotted: &[Allotted], scheduled: &Scheduled, now: Instant) {
        let Scheduled { sagas, limited, .. } = scheduled;
        let limited: HashMap<SubscriptionId, Instant> =
            limited.iter().map(|one| (one.subscription_id, now + one.wait)).collect();
        let mut taken: HashMap<SubscriptionId, (u32, u32)> = HashMap::with_capacity(allotted.len());
        for saga in sagas {
            let (found, new) = taken.entry(saga.subscription_id).or_default();
            *found += 1;
            *new += u32::from(saga.job_id.is_some());
        }
        let mut state = self.state();
        state.turn += 1;
        let (turn, reading) = (state.turn, state.readings);
        for Allotted { subscription_id, jobs } in allotted {
            let (found, new) = taken.get(subscription_id).copied().unwrap_or_default();
            state.change(*subscription_id, |lane| {
                lane.limited_until = limited.get(subscription_id).copied();
                lane.found(found, new, *jobs);
                if new > 0 {
                    lane.endpoint.admitted(new, now);
                    lane.last_turn = turn;
                    lane.touch(reading, new.into(), now);
                }
            });
        }
    }

    /// Results were applied: each closes its job, and those that are new say something about their endpoint. Returns
    /// whether anybody waits for the room that this makes.
    pub(super) fn applied(&self, results: &[AppliedResult], now: Instant) -> bool {
        let mut state = self.state();
        let reading = state.readings;
        for result in results {
            state.change(result.subscription_id, |lane| {
                lane.touch(reading, -1, now);
                match answer_of(result) {
                    Some(answer) => lane.endpoint.answered(answer, result.duration, now),
                    None => lane.endpoint.set_open(lane.endpoint.open().saturating_sub(1), now),
                }
            });
        }
        state.waits(now)
    }

    /// Whether anybody waits for room.
    pub(super) fn anybody_waits(&self, now: Instant) -> bool {
        self.state().waits(now)
    }

    /// How many endpoints deliveries are on their way to, or will soon be. Those that cannot be reached do not count: nobody
    /// waits for them.
    pub(super) fn busy(&self, now: Instant) -> usize {
        let state = self.state();
        let lanes = state.active.iter().filter_map(|id| state.lanes.get(id));
        lanes.filter(|lane| lane.is_busy(state.hears_after, now)).count()
    }

    /// Whether endpoints that were failing when this process began are still to be asked for.
    pub(super) fn wants_failing(&self) -> bool {
        !self.state().knows_failing
    }

    /// Takes over what others have seen of endpoints that fail, so that a restart does not try all of those that hang as if
    /// they were new. What this process has seen itself counts for more.
    pub(super) fn failing(&self, failing: &[(SubscriptionId, ErrorCode)]) {
        let mut state = self.state();
        state.knows_failing = true;
        for (id, code) in failing {
            if state.has_room_for(*id) {
                state.change(*id, |lane| {
                    if lane.touched.is_none() && lane.endpoint.is_idle() {
                        lane.endpoint = Endpoint::failing(code);
                    }
                });
            }
        }
    }

    /// Whether it is time to read the load: while anything waits or is open, and not too often.
    pub(super) fn wants_load(&self, now: Instant) -> bool {
        let state = self.state();
        let Some((at, took)) = state.read else { return true };
        let pause = match state.slots {
            0 => (took * Self::READ_COST_UNTIL_KNOWN).min(Self::READ_AFTER),
            _ => Self::READ_AFTER.max((took * Self::READ_COST).min(Self::READ_AT_LAST)),
        };
        now.saturating_duration_since(at) >= pause && !state.active.is_empty()
    }

    /// The load is being read.
    pub(super) fn load_begins(&self) {
        self.state().readings += 1;
    }

    /// Takes over a load that was read from `began` on; nothing, if that failed: this process goes on with what it knows.
    pub(super) fn loaded(&self, load: Option<WorkerLoad>, began: Instant, now: Instant) {
        let mut state = self.state();
        state.read = Some((began, now.saturating_duration_since(began)));
        let Some(load) = load else { return };
        state.slots = load.slots;
        let next_read = now.saturating_duration_since(began) * Self::READ_COST;
        state.hears_after = match load.workers {
            0 | 1 => Duration::ZERO,
            _ => next_read.clamp(Self::READ_AFTER, Self::HEARS_AT_LAST),
        };
        let start = *state.began.get_or_insert(began);
        let lasted = began.saturating_duration_since(start);
        let all_heard = load.silence.is_none_or(|silence| silence < lasted);
        if all_heard || lasted >= Self::INHERITED_FOR {
            state.inherited.clear();
        } else if start == began {
            state.inherited.clone_from(&load.open);
        }
        // What has ended since is not inherited any more.
        state.inherited.retain(|id, jobs| {
            *jobs = load.open.get(id).copied().unwrap_or(0).min(*jobs);
            *jobs > 0
        });
        let inherited = std::mem::take(&mut state.inherited);
        let open = |id: &SubscriptionId| {
            let of = |counts: &HashMap<SubscriptionId, u32>| counts.get(id).copied().unwrap_or(0);
            of(&load.open).saturating_sub(of(&inherited))
        };
        let counted: Vec<SubscriptionId> =
            load.open.keys().chain(&state.active).copied().collect::<HashSet<_>>().into_iter().collect();
        let (reading, is_alone, hears_after) = (state.readings, load.workers <= 1, state.hears_after);
        let corrects =
            state.corrected.is_none_or(|at| now.saturating_duration_since(at) >= Self::CORRECT_AFTER);
        if corrects {
            state.corrected = Some(now);
        }
        for id in counted {
            state.change(id, |lane| {
                if lane.touched.is_none_or(|at| at < began) {
                    lane.endpoint.counted(open(&id), hears_after, now);
                } else if !is_alone || corrects {
                    // What this process changed meanwhile is added; it may be in the count already, which the next one corrects.
                    // Where nobody else works, what is known here is right, but for what was missed for a while.
                    let counted = i64::from(open(&id)) + lane.opened_since(reading);
                    lane.endpoint.counted(u32::try_from(counted).unwrap_or(0), hears_after, now);
                }
            });
        }
        state.inherited = inherited;
    }
}

impl State {
    /// The slots that jobs are created for.
    fn capacity(&self) -> u32 {
        match self.slots {
            0 => Lanes::NOMINAL_SLOTS,
            slots => slots.max(Lanes::LEAST_SLOTS),
        }
    }

    /// Whether a lane can be kept for it. Where there are too many, those that are only remembered go.
    fn has_room_for(&mut self, id: SubscriptionId) -> bool {
        if self.lanes.len() < Lanes::MOST_KEPT || self.lanes.contains_key(&id) {
            return true;
        }
        if self.active.len() < Lanes::MOST_KEPT {
            self.lanes.retain(|_, lane| lane.is_active());
        }
        self.lanes.len() < Lanes::MOST_KEPT
    }

    /// Changes a lane. There may be more than are kept otherwise: as many as have open jobs, which the workers bound.
    fn change(&mut self, id: SubscriptionId, change: impl FnOnce(&mut Lane)) {
        let lane = self.lanes.entry(id).or_default();
        change(lane);
        if lane.is_active() {
            self.active.insert(id);
        } else {
            self.active.remove(&id);
        }
    }

    fn waits(&self, now: Instant) -> bool {
        self.active.iter().any(|id| self.lanes.get(id).is_some_and(|lane| lane.is_ready(now)))
    }
}

/// What a result says about the endpoint; `None` if no request was sent, or if it was applied before.
fn answer_of(result: &AppliedResult) -> Option<EndpointReaction> {
    const UNSENT: [ErrorCode; 2] = [ErrorCode::LEASE_EXHAUSTED, ErrorCode::INTERNAL];
    let unsent = matches!(&result.result.outcome, Outcome::Failed(code) if UNSENT.contains(code));
    (result.changed && !unsent).then(|| EndpointReaction::of(&result.result.outcome))
}

/// Removes and returns the subscriptions that must wait for a later pass, if there are more than `most`. Each standing
/// has a quarter of the places; unused places go to the next standing. Within a standing the least recently admitted
/// stay; of new and unconfirmed ones, those at both ends of the queue.
fn later_ones(waiting: &mut Vec<(SubscriptionId, Demand)>, most: usize) -> Vec<(SubscriptionId, Demand)> {
    let rank = |standing| match standing {
        Standing::Answering { .. } => 0,
        Standing::Unconfirmed => 1,
        Standing::New => 2,
        Standing::Unreachable => 3,
    };
    waiting.sort_unstable_by_key(|(id, demand)| {
        let turn = if demand.standing == Standing::Unconfirmed { 0 } else { demand.last_turn };
        let line = if is_untested(demand.standing) { demand.waits_since } else { 0 };
        (rank(demand.standing), turn, line, *id)
    });
    let over = waiting.len().saturating_sub(most);
    if over == 0 {
        return Vec::new();
    }
    let mut counts = [0_usize; 4];
    for (_, demand) in waiting.iter() {
        counts[rank(demand.standing)] += 1;
    }
    // Drop the excess from the last standing down to its quarter, then from the one before it, and so on.
    let mut left = over;
    let mut kept = counts;
    for standing in [3, 2, 1, 0] {
        let given_up = kept[standing].saturating_sub(most / 4).min(left);
        kept[standing] -= given_up;
        left -= given_up;
    }
    let mut seen = [0_usize; 4];
    let (now, later) = waiting.drain(..).partition(|(_, demand)| {
        let standing = rank(demand.standing);
        seen[standing] += 1;
        let (place, kept) = (seen[standing], kept[standing]);
        if is_untested(demand.standing) {
            place <= kept.div_ceil(2) || place > counts[standing] - kept / 2
        } else {
            place <= kept
        }
    });
    *waiting = now;
    later
}

/// Whether its endpoint answers has to be seen.
fn is_untested(standing: Standing) -> bool {
    matches!(standing, Standing::New | Standing::Unconfirmed)
}

/// What a subscription may have now.
#[derive(Clone, Copy, Debug)]
struct Share {
    subscription_id: SubscriptionId,
    /// Nothing of it is open.
    has_nothing: bool,
    is_untested: bool,
    jobs: u32,
}

/// Limits the shares to `most` jobs in all. Three rounds: one job for each untested endpoint with nothing open; one for
/// each other subscription with nothing open; then the rest of each share, in the given order.
fn within(most: u32, shares: &[Share]) -> Vec<Allotted> {
    let mut left = most;
    let mut given = vec![0; shares.len()];
    let rounds: [fn(&Share) -> u32; 3] = [
        |share| if share.has_nothing && share.is_untested { share.jobs.min(1) } else { 0 },
        |share| if share.has_nothing { share.jobs.min(1) } else { 0 },
        |share| share.jobs,
    ];
    for upto in rounds {
        for (share, jobs) in shares.iter().zip(&mut given) {
            let more = upto(share).saturating_sub(*jobs).min(left);
            *jobs += more;
            left -= more;
        }
    }
    let given = shares.iter().zip(given).filter(|(_, jobs)| *jobs > 0);
    given.map(|(share, jobs)| Allotted { subscription_id: share.subscription_id, jobs }).collect()
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
