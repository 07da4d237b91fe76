//! How many jobs each subscription gets now: the one decision behind fairness between subscriptions.
//!
//! An endpoint is *answering*, *unconfirmed*, *new* or *unreachable* ([`Standing`]). T is 50 ms. The capacity is the slots of
//! all workers that are alive.
//!
//! **Weights.** A job's weight is the share of a worker slot that it takes. For an endpoint that is answering it is
//! `latency ÷ T`, between 1/8 and 1; for every other endpoint it is 1, because an old response does not show that it
//! still responds. The weights of all open jobs add up to the capacity at most. So an admitted job waits about T for a
//! slot at most, and a quick endpoint can still have many jobs in flight.
//!
//! **Level.** All subscriptions may hold the same weight, the *level*, or their own window if that is smaller (max-min
//! fairness). The level is the highest one that still leaves half a level, and at least two slots, free for
//! subscriptions that become active next.
//!
//! **Bounds.** Endpoints that are not known to answer must not take the slots of those that do:
//!
//! | class | all of it together, at most | each at most |
//! |---|---|---|
//! | unreachable | 4/8 of the capacity | 8 jobs |
//! | new | half of what the unreachable leave of 6/8 | 4 jobs |
//! | unconfirmed | what these two leave of 6/8 | 4 jobs |
//! | the newcomer | what these three leave of 7/8 | 1 job |
//! | recent | what these four leave of all but a third of 1/8, and at least one slot | 1 job |
//! | answering | what the others leave | its window |
//!
//! If several endpoints are new, the unreachable ones take 3/8 at most, and the new ones leave 1/8 to the unconfirmed. Quick
//! unconfirmed endpoints respond at once, so they do not hold their part for long.
//!
//! **The newcomer** is the new or unconfirmed endpoint that started waiting last. It qualifies if no silent endpoint
//! was given a job after that, or if no other such endpoint waits. It gets a job at once, however many endpoints hang,
//! until newcomers that hang have used up the reserved slots.
//!
//! **Recent** are quick unconfirmed endpoints with nothing open that responded at most half as long ago as those that are silent
//! now. When many endpoints begin to hang together, the one that still answers soon is more recent than all of them: they have
//! not responded since. Before that, it is if it gets events more often than they do. A few of those that are silent may have
//! responded as recently: a quarter of 1/8, or 1/8 if the endpoint responded within 150 ms. So endpoints that are alike and hang do
//! not use up the slots of those that are more recent.
//!
//! **Overcommitment.** If endpoints slow down, jobs that were admitted as light take a whole slot each, and the open
//! jobs exceed the capacity. Workers then enforce limits of their own ([`crate::WorkerSlots`]). The allotment assumes
//! those limits: the largest holders together count as holding at most three quarters, so that the others still get jobs.
//!
//! **Remainder.** Slots that do not divide evenly are handed out one by one:
//!
//! 1. the newcomer;
//! 2. new and unconfirmed endpoints without a job, alternately the one that has waited longest and the one that started
//!    waiting last;
//! 3. other new and unconfirmed endpoints, least recently admitted first;
//! 4. all others, least recently admitted first.
//!
//! An endpoint with nothing open may take the last slot but one if it is new or unconfirmed, and the last one if it is
//! answering quickly. When no newcomer can get a slot any more, quick endpoints may fill the last slot but one with
//! several jobs: one job at a time would be too slow.

use crate::Standing;
use std::{collections::VecDeque, time::Duration};

/// One worker slot. The unit of weights is a microsecond of the time T.
const SLOT: u64 = 50_000;
/// T: an endpoint that responds in less is quick.
pub(crate) const QUICK: Duration = Duration::from_micros(SLOT);
/// The lightest job: no endpoint has more than eight jobs open per slot that it may fill.
const LIGHTEST: u64 = SLOT / 8;
const MOST_OF_NEW: u32 = 4;
const MOST_OF_UNCONFIRMED: u32 = 4;
const MOST_OF_UNREACHABLE: u32 = 8;
/// An endpoint that responded so lately is likely to respond again.
const LATELY: Duration = Duration::from_millis(150);

/// What one subscription asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// How many of its deliveries are due and have no job; `u32::MAX` when nobody counted them.
    pub waiting: u32,
    /// How many of its jobs are open.
    pub open: u32,
    /// How many the endpoint itself bears, see [`crate::Endpoint`].
    pub window: u32,
    pub standing: Standing,
    /// How long ago it gave its last response; `None` if it never did, or usually responds more slowly than T.
    pub last_response: Option<Duration>,
    /// When it was last admitted, as a number that only grows: the smallest goes first. Ties go by the order of
    /// the demands.
    pub last_turn: u64,
    /// The last turn before it began to wait, of anybody's. Ties go by the order of the demands: the last one is the
    /// newest.
    pub waits_since: u64,
}

/// How many new jobs each subscription gets now, in the order of `demands`.
///
/// `capacity`: the worker slots that are alive. Takes time in proportion to n × log(capacity) + n × log(n).
pub fn allot(capacity: u32, demands: &[Demand]) -> Vec<u32> {
    let capacity = u64::from(capacity) * SLOT;
    let mut claims: Vec<Claim> = demands.iter().map(Claim::new).collect();
    bound_what_is_held(&mut claims, capacity);
    let level =
        highest(capacity, |level| Zones::at(&claims, capacity, level).total() + spare(level) <= capacity);
    let zones = Zones::at(&claims, capacity, level);
    hand_out(&mut claims, capacity, &zones);
    demands.iter().zip(&claims).map(|(demand, claim)| claim.jobs.saturating_sub(demand.open)).collect()
}

/// What is left free at a level for those who come next.
fn spare(level: u64) -> u64 {
    (level / 2).max(2 * SLOT)
}

/// An eighth of the slots, at least one: the unit of what each class may hold.
fn eighth(capacity: u64) -> u64 {
    (capacity / 8 / SLOT).max(1) * SLOT
}

/// What may be held by endpoints that are not known to answer. The rest is for those that are, and for recent ones.
fn most_of_silent(capacity: u64) -> u64 {
    capacity.saturating_sub(eighth(capacity))
}

/// The same with recent ones.
fn most_with_recent(capacity: u64) -> u64 {
    capacity.saturating_sub((eighth(capacity) / SLOT / 3).max(1) * SLOT)
}

/// The part of it that is not kept for the newcomer. New and unreachable endpoints together hold an eighth less, if
/// several are new.
fn most_of_crowd(capacity: u64) -> u64 {
    capacity / 4 * 3
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    New = 0,
    Unconfirmed = 1,
    Answering = 2,
    Unreachable = 3,
}

impl Class {
    const ALL: [Self; 4] = [Self::New, Self::Unconfirmed, Self::Answering, Self::Unreachable];

    /// It has to be seen whether it answers.
    fn is_untested(self) -> bool {
        matches!(self, Self::New | Self::Unconfirmed)
    }
}

/// One subscription's part of the slots.
struct Claim {
    class: Class,
    /// The weight of one job.
    weight: u64,
    /// How many jobs it has open.
    open: u32,
    /// Its open jobs, and those that it is given now.
    jobs: u32,
    /// The most jobs that it could have open.
    most: u32,
    /// The weight that it counts as holding already, even if that is more than it may hold.
    held: u64,
    last_turn: u64,
    waits_since: u64,
    last_response: Option<Duration>,
    is_recent: bool,
    /// What all that are not known to answer may hold with its first job, if that is more than their parts.
    most_of_silent: u64,
}

impl Claim {
    fn new(demand: &Demand) -> Self {
        let (class, weight, bound) = match demand.standing {
            Standing::New => (Class::New, SLOT, MOST_OF_NEW),
            Standing::Answering { latency } => (Class::Answering, weight(latency), u32::MAX),
            Standing::Unconfirmed => (Class::Unconfirmed, SLOT, MOST_OF_UNCONFIRMED),
            Standing::Unreachable => (Class::Unreachable, SLOT, MOST_OF_UNREACHABLE),
        };
        let most = demand.window.max(1).min(bound).min(demand.open.saturating_add(demand.waiting));
        let held = u64::from(demand.open) * weight;
        let Demand { open, last_turn, waits_since, last_response, .. } = *demand;
        Self {
            class,
            weight,
            open,
            jobs: open,
            most,
            held,
            last_turn,
            waits_since,
            last_response,
            is_recent: false,
            most_of_silent: 0,
        }
    }

    /// Whether it answers has to be seen, it has nothing, and waits.
    fn is_untried(&self) -> bool {
        self.class.is_untested() && self.jobs == 0 && self.most > 0
    }

    /// What it holds when it fills up to `level`.
    fn at(&self, level: u64) -> u64 {
        self.held.max(level.min(u64::from(self.most) * self.weight))
    }

    fn fill(&mut self, level: u64) {
        let jobs = u32::try_from(level / self.weight).unwrap_or(u32::MAX).min(self.most);
        self.jobs = self.jobs.max(jobs);
    }

    /// What it counts as holding now.
    fn counts(&self) -> u64 {
        self.held + u64::from(self.jobs - self.open) * self.weight
    }

    /// What all of its jobs weigh.
    fn weighs(&self) -> u64 {
        u64::from(self.jobs) * self.weight
    }
}

fn weight(latency: Duration) -> u64 {
    u64::try_from(latency.as_micros()).unwrap_or(SLOT).clamp(LIGHTEST, SLOT)
}

/// Endpoints that were quick and slow down or hang may have far more jobs open than there are slots. Workers let a subscription
/// have two thirds of what the larger ones leave, and keep an eighth of the slots for those with nothing in flight. So that is
/// what the others count as holding. As long as all open jobs fit, every subscription counts as holding what it has open.
fn bound_what_is_held(claims: &mut [Claim], capacity: u64) {
    let sum =
        |held: &dyn Fn(&&Claim) -> bool| claims.iter().filter(held).map(|claim| claim.held).sum::<u64>();
    let is_too_much = sum(&|_| true) > capacity
        // Silent jobs, and jobs of full weight, must leave the reserved slots free.
        || sum(&|claim| claim.class != Class::Answering) > most_with_recent(capacity)
        || sum(&|claim| claim.weight == SLOT) + SLOT > capacity;
    if !is_too_much {
        return;
    }
    let mut left = capacity;
    let mut largest_first: Vec<&mut Claim> = claims.iter_mut().filter(|claim| claim.held > 0).collect();
    largest_first.sort_unstable_by_key(|claim| (std::cmp::Reverse(claim.held), claim.last_turn));
    for claim in largest_first {
        // A quarter, so that an eighth of it remains for newcomers, if they hang, too.
        let kept = eighth(capacity) * if claim.held > SLOT { 2 } else { 1 };
        claim.held = claim.held.min(left - left / 3).min(left.saturating_sub(kept));
        left -= claim.held;
    }
}

/// What each class holds at a level, and how much each may hold.
struct Zones {
    level: u64,
    held: [u64; 4],
    bounds: [u64; 4],
}

impl Zones {
    fn at(claims: &[Claim], capacity: u64, level: u64) -> Self {
        let mut sums = [0_u64; 4];
        let mut held = [0_u64; 4];
        let mut new = 0;
        for claim in claims {
            sums[claim.class as usize] += claim.at(level);
            held[claim.class as usize] += claim.held;
            new += usize::from(claim.class == Class::New && claim.at(u64::MAX) > 0);
        }
        let kept = if new > 1 { eighth(capacity) } else { 0 };
        let mut zones = Self { level, held: [0; 4], bounds: [0; 4] };
        // What the silent ones leave, one class after the other.
        let mut left = most_of_crowd(capacity);
        for class in [Class::Answering, Class::Unreachable, Class::New, Class::Unconfirmed] {
            let zone = class as usize;
            zones.bounds[zone] = match class {
                Class::Answering => u64::MAX,
                Class::Unreachable => (capacity / 2).saturating_sub(kept),
                Class::New => (left.div_ceil(2 * SLOT) * SLOT).min(left.saturating_sub(kept)),
                Class::Unconfirmed => left,
            };
            left = match class {
                Class::Answering => left,
                _ => left.saturating_sub(sums[zone].min(zones.bounds[zone]).max(held[zone])),
            };
            zones.held[zone] = sums[zone].min(zones.bound(class, &held, capacity)).max(held[zone]);
        }
        zones
    }

    fn total(&self) -> u64 {
        self.held.iter().sum()
    }

    /// How much a class may hold now. Others of those that are not known to answer may hold more than their parts until they are
    /// known to hang.
    fn bound(&self, class: Class, held: &[u64; 4], capacity: u64) -> u64 {
        let silent = [Class::New, Class::Unconfirmed, Class::Unreachable];
        let others = silent.into_iter().filter(|other| *other != class).map(|other| held[other as usize]);
        match class {
            Class::Answering => u64::MAX,
            _ => self.bounds[class as usize].min(most_of_crowd(capacity).saturating_sub(others.sum())),
        }
    }
}

/// The endpoint that was admitted last, of those that have open jobs and are not answering.
fn last_of_silent(claims: &[Claim]) -> Option<&Claim> {
    let silent = claims.iter().filter(|claim| claim.class != Class::Answering && claim.open > 0);
    silent.max_by_key(|claim| claim.last_turn)
}

/// The place of the newcomer: the untested endpoint that began to wait last, if no job went to a silent endpoint since, or if
/// no other waits. One that has waited longer is one of many, and leaves the kept slots to those who come next.
fn newcomer(claims: &[Claim]) -> Option<usize> {
    let last_turn = last_of_silent(claims).map_or(0, |last| last.last_turn);
    let untried = || claims.iter().enumerate().filter(|(_, claim)| claim.is_untried());
    let (place, newest) = untried().max_by_key(|(place, claim)| (claim.waits_since, *place))?;
    (newest.waits_since >= last_turn || untried().count() == 1).then_some(place)
}

/// The places of the recent endpoints, the most recent first.
fn recent(claims: &[Claim], capacity: u64) -> Vec<usize> {
    let untried =
        (0..).zip(claims).filter(|(_, claim)| claim.class == Class::Unconfirmed && claim.is_untried());
    let mut untried: Vec<(Duration, u64, usize)> =
        untried.filter_map(|(place, claim)| Some((claim.last_response?, claim.waits_since, place))).collect();
    if untried.is_empty() {
        return Vec::new();
    }
    untried.sort_unstable();
    let silent = claims.iter().filter(|claim| claim.class != Class::Answering && claim.open > 0);
    let mut silent: Vec<Duration> = silent.filter_map(|claim| claim.last_response).collect();
    silent.sort_unstable();
    let eighth = usize::try_from(eighth(capacity) / SLOT).unwrap_or(usize::MAX);
    let is_recent = |(before, (age, ..)): &(usize, (Duration, u64, usize))| {
        let as_recent = silent.partition_point(|silent| *silent < age.saturating_mul(2)) + before;
        as_recent <= if *age <= LATELY { eighth } else { eighth / 4 }
    };
    untried.into_iter().enumerate().take_while(is_recent).map(|(_, (.., place))| place).collect()
}

/// The order in which claims get what does not divide. New ones without a job go first, alternately the one that has waited
/// longest and the one that began to wait last; whichever was not served last begins. Then other new ones, then the rest, in
/// the order in which they were last admitted.
fn in_turn(claims: &[Claim]) -> Vec<usize> {
    let places = || (0..claims.len()).filter(|place| claims[*place].jobs < claims[*place].most);
    let mut untried: VecDeque<usize> = places().filter(|place| claims[*place].is_untried()).collect();
    untried.make_contiguous().sort_by_key(|place| claims[*place].waits_since);
    let oldest = untried.front().map(|place| claims[*place].waits_since);
    let mut newest_next = last_of_silent(claims).is_none_or(|last| Some(last.waits_since) <= oldest);
    let mut order = Vec::with_capacity(claims.len());
    while let Some(place) = if newest_next { untried.pop_back() } else { untried.pop_front() } {
        order.push(place);
        newest_next = !newest_next;
    }
    let mut others: Vec<usize> = places().filter(|place| !claims[*place].is_untried()).collect();
    others.sort_by_key(|place| (!claims[*place].class.is_untested(), claims[*place].last_turn));
    order.extend(others);
    order
}

/// Fills every claim up to its class's level, then gives out the remainder one job at a time.
fn hand_out(claims: &mut [Claim], capacity: u64, zones: &Zones) {
    let mut held = Class::ALL.map(|class| of_class(claims, class).map(Claim::counts).sum::<u64>());
    let mut levels = [0; 4];
    for class in Class::ALL {
        let zone = class as usize;
        let bound = zones.bound(class, &held, capacity);
        let sum = |level| of_class(claims, class).map(|claim| claim.at(level)).sum::<u64>();
        levels[zone] = highest(zones.level, |level| sum(level) <= bound);
        claims.iter_mut().filter(|claim| claim.class == class).for_each(|claim| claim.fill(levels[zone]));
        held[zone] = of_class(claims, class).map(Claim::counts).sum();
    }
    let mut free = capacity.saturating_sub(held.iter().sum());
    // What is held by jobs that weigh a slot, of slow and of silent endpoints.
    let mut heavy = claims.iter().filter(|claim| claim.weight == SLOT).map(Claim::counts).sum::<u64>();
    let (newcomer, recent) = (newcomer(claims), recent(claims, capacity));
    if let Some(place) = newcomer {
        claims[place].most_of_silent = most_of_silent(capacity);
    }
    for place in &recent {
        claims[*place].is_recent = true;
        claims[*place].most_of_silent = most_with_recent(capacity);
    }
    for place in newcomer.into_iter().chain(recent).chain(in_turn(claims)) {
        let claim = &mut claims[place];
        let zone = claim.class as usize;
        let has_nothing = claim.jobs == 0;
        let silent = held.iter().sum::<u64>() - held[Class::Answering as usize];
        let no_newcomer_fits = silent + SLOT > most_of_silent(capacity);
        let fills_a_slot =
            no_newcomer_fits && claim.class == Class::Answering && claim.weighs() + claim.weight <= SLOT;
        let spared = match claim.class {
            Class::Unconfirmed
                if has_nothing && claim.is_recent && heavy + SLOT <= most_with_recent(capacity) =>
            {
                0
            }
            Class::New | Class::Unconfirmed if has_nothing => SLOT,
            Class::Answering if has_nothing && claim.weight < SLOT => 0,
            Class::Answering if fills_a_slot => SLOT,
            _ => spare(zones.level),
        };
        let is_behind = fills_a_slot || claim.weighs() <= levels[zone];
        let is_within = held[zone] + claim.weight <= zones.bound(claim.class, &held, capacity)
            || (has_nothing && silent + SLOT <= claim.most_of_silent);
        let fits = is_within && claim.weight + spared <= free;
        if is_behind && fits {
            claim.jobs += 1;
            held[zone] += claim.weight;
            free -= claim.weight;
            heavy += if claim.weight == SLOT { SLOT } else { 0 };
        }
    }
}

fn of_class(claims: &[Claim], class: Class) -> impl Iterator<Item = &Claim> {
    claims.iter().filter(move |claim| claim.class == class)
}

/// The highest level up to `end` that is low enough; 0 if none is. Every level above one that is too high is too high.
fn highest(end: u64, low_enough: impl Fn(u64) -> bool) -> u64 {
    if low_enough(end) {
        return end;
    }
    let (mut low, mut high) = (0, end);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if low_enough(middle) { low = middle } else { high = middle }
    }
    low
}
