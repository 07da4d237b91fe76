//! Who gets how many jobs now: the one decision behind fairness between subscriptions.
//!
//! - A job of an endpoint that answers within T = 50 ms weighs `latency ÷ T` of a worker slot, but at least an
//!   eighth; every other job weighs one slot. What is open never weighs more than the capacity, so that
//!   a job that is admitted waits for a slot about T at most, while a quick endpoint pipelines deeply.
//! - Every subscription may fill up to the same level, within its own window. The level is the highest that leaves
//!   half a level free, at least two slots, for those who come next. No subscription gets more while another has less.
//! - Unreachable endpoints hold at most half of the capacity together, and 8 jobs each. New ones hold at most
//!   half of what the unreachable leave of three quarters, and 4 jobs each; beyond that one job in all, while two
//!   slots are free and the unreachable leave a sixteenth, at least four slots: however many new ones turn out to
//!   hang, that much stays for those that answer.
//! - Several new ones leave an eighth of the capacity, at least one slot, of those three quarters to the newcomer: the
//!   new one that began to wait last, if nothing that is silent was admitted since. So a newcomer gets its job at
//!   once beside any number of others that were never tried and hang, until that many newcomers hang, too. As much of
//!   their half the unreachable leave to the new ones meanwhile, so that those are tried hardly more slowly for it.
//! - The remainder goes one by one: first to the endpoint that was admitted longest ago; among new ones without a job the one
//!   that has waited for longest and the one that began last take turns. Of those who have nothing open, new ones may
//!   take the last slot but one, and quick ones the last.

use crate::Standing;
use std::{collections::VecDeque, time::Duration};

/// One worker slot, in the unit of weights: microseconds of the time T that a slot is good for.
const SLOT: u64 = 50_000;
/// The lightest job: no endpoint has more than eight jobs open per slot that it may fill.
const LIGHTEST: u64 = SLOT / 8;
const MOST_OF_NEW: u32 = 4;
const MOST_OF_UNREACHABLE: u32 = 8;

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

/// What a level leaves free for those who come next.
fn spare(level: u64) -> u64 {
    (level / 2).max(2 * SLOT)
}

/// What the unreachable and the new may hold together.
fn most_of_silent(capacity: u64) -> u64 {
    capacity / 4 * 3
}

/// What several new endpoints leave to the newcomer.
fn kept_for_newcomer(capacity: u64) -> u64 {
    (capacity / 8 / SLOT).max(1) * SLOT
}

/// What new endpoints that hang one after the other leave to those that answer.
fn kept_for_answering(capacity: u64) -> u64 {
    (capacity / 16).max(4 * SLOT)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    New = 0,
    Answering = 1,
    Unreachable = 2,
}

/// One subscription's part of the slots. Weights are in units of [`SLOT`].
struct Claim {
    class: Class,
    /// The weight of one job.
    weight: u64,
    /// How many jobs it has open.
    open: u32,
    /// How many jobs it has open together with those that it is given.
    jobs: u32,
    /// How many it could use.
    most: u32,
    /// What it holds already, however much it may hold.
    held: u64,
    last_turn: u64,
    waits_since: u64,
}

impl Claim {
    fn new(demand: &Demand) -> Self {
        let (class, weight, bound) = match demand.standing {
            Standing::New => (Class::New, SLOT, MOST_OF_NEW),
            Standing::Answering { latency } => (Class::Answering, weight(latency), u32::MAX),
            Standing::Unreachable => (Class::Unreachable, SLOT, MOST_OF_UNREACHABLE),
        };
        let most = demand.window.max(1).min(bound).min(demand.open.saturating_add(demand.waiting));
        let held = u64::from(demand.open) * weight;
        let Demand { open, last_turn, waits_since, .. } = *demand;
        Self { class, weight, open, jobs: open, most, held, last_turn, waits_since }
    }

    /// It is new, has nothing, and waits.
    fn is_untried(&self) -> bool {
        self.class == Class::New && self.jobs == 0 && self.most > 0
    }

    /// What it holds when it fills up to `level`.
    fn at(&self, level: u64) -> u64 {
        self.held.max(level.min(u64::from(self.most) * self.weight))
    }

    fn fill(&mut self, level: u64) {
        let jobs = u32::try_from(level / self.weight).unwrap_or(u32::MAX).min(self.most);
        self.jobs = self.jobs.max(jobs);
    }

    /// What it holds now.
    fn holds(&self) -> u64 {
        self.held + u64::from(self.jobs - self.open) * self.weight
    }
}

fn weight(latency: Duration) -> u64 {
    u64::try_from(latency.as_micros()).unwrap_or(SLOT).clamp(LIGHTEST, SLOT)
}

/// An endpoint that was quick may have far more jobs open than there are slots when it slows down or hangs. Workers let one
/// subscription hold two thirds of what the others leave, so that is what it holds, however much is open. As long as
/// everything that is open fits, everybody holds what it has open.
fn bound_what_is_held(claims: &mut [Claim], capacity: u64) {
    if claims.iter().map(|claim| claim.held).sum::<u64>() <= capacity {
        return;
    }
    let mut left = capacity;
    let mut largest_first: Vec<&mut Claim> = claims.iter_mut().filter(|claim| claim.held > 0).collect();
    largest_first.sort_unstable_by_key(|claim| std::cmp::Reverse(claim.held));
    for claim in largest_first {
        claim.held = claim.held.min(left - left / 3);
        left -= claim.held;
    }
}

/// What each class holds at a level, and how much each may hold.
struct Zones {
    level: u64,
    held: [u64; 3],
    bounds: [u64; 3],
}

impl Zones {
    fn at(claims: &[Claim], capacity: u64, level: u64) -> Self {
        let mut sums = [0_u64; 3];
        let mut held = [0_u64; 3];
        let mut new = 0;
        for claim in claims {
            sums[claim.class as usize] += claim.at(level);
            held[claim.class as usize] += claim.held;
            new += usize::from(claim.class == Class::New && claim.at(u64::MAX) > 0);
        }
        let kept = if new > 1 { kept_for_newcomer(capacity) } else { 0 };
        let mut zones = Self { level, held, bounds: [0, u64::MAX, (capacity / 2).saturating_sub(kept)] };
        for class in [Class::Answering, Class::Unreachable, Class::New] {
            let zone = class as usize;
            if class == Class::New {
                let hung = zones.held[Class::Unreachable as usize];
                let left = most_of_silent(capacity).saturating_sub(hung);
                let half = left.div_ceil(2 * SLOT) * SLOT;
                zones.bounds[zone] = if new > 1 {
                    half.min(left.saturating_sub(kept))
                } else {
                    let known = held[Class::Answering as usize] + held[Class::Unreachable as usize];
                    half.max(if fits_alone(capacity, known, hung) { SLOT } else { 0 })
                };
            }
            zones.held[zone] = sums[zone].min(zones.bounds[zone]).max(held[zone]);
        }
        zones
    }

    fn total(&self) -> u64 {
        self.held.iter().sum()
    }
}

/// Whether one job of a new endpoint fits, beyond what the new ones may hold: the others hold `known`, and of that the
/// unreachable `hung`.
fn fits_alone(capacity: u64, known: u64, hung: u64) -> bool {
    known + 2 * SLOT <= capacity && hung + SLOT + kept_for_answering(capacity) <= capacity
}

/// Who was admitted last of those that have jobs and have not answered.
fn last_of_silent(claims: &[Claim]) -> Option<&Claim> {
    let silent = claims.iter().filter(|claim| claim.class != Class::Answering && claim.open > 0);
    silent.max_by_key(|claim| claim.last_turn)
}

/// The new endpoint that began to wait last, if nothing was admitted since that has not answered: its place. One that has
/// waited for longer is one of many, and leaves the slots that are kept to those who come next.
fn newcomer(claims: &[Claim]) -> Option<usize> {
    let last_turn = last_of_silent(claims).map_or(0, |last| last.last_turn);
    let untried = claims.iter().enumerate().filter(|(_, claim)| claim.is_untried());
    let (place, newest) = untried.max_by_key(|(place, claim)| (claim.waits_since, *place))?;
    (newest.waits_since >= last_turn).then_some(place)
}

/// Whether the newcomer may have a job, given what each class holds.
fn admits_newcomer(capacity: u64, held: &[u64; 3]) -> bool {
    let [new, answering, hung] = *held;
    hung + new + SLOT <= most_of_silent(capacity)
        || (new == 0 && fits_alone(capacity, answering + hung, hung))
}

/// The order in which claims get what does not divide: new ones without a job first, from both ends of their line, then
/// other new ones, then the rest, by turns. Which end begins depends on which was served last.
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
    others.sort_by_key(|place| (claims[*place].class != Class::New, claims[*place].last_turn));
    order.extend(others);
    order
}

/// Gives up to each class's level, then the remainder one by one.
fn hand_out(claims: &mut [Claim], capacity: u64, zones: &Zones) {
    let levels = [Class::New, Class::Answering, Class::Unreachable].map(|class| {
        let bound = zones.bounds[class as usize];
        let sum = |level| of_class(claims, class).map(|claim| claim.at(level)).sum::<u64>();
        highest(zones.level, |level| sum(level) <= bound)
    });
    for claim in claims.iter_mut() {
        claim.fill(levels[claim.class as usize]);
    }
    let mut held = [Class::New, Class::Answering, Class::Unreachable]
        .map(|class| of_class(claims, class).map(Claim::holds).sum::<u64>());
    // More than there is, because several slowed down at once: the last slot is kept free all the same.
    let mut free = capacity.checked_sub(held.iter().sum()).unwrap_or(SLOT.min(capacity));
    let newcomer = newcomer(claims);
    for place in newcomer.into_iter().chain(in_turn(claims)) {
        let claim = &mut claims[place];
        let zone = claim.class as usize;
        let is_newcomer = newcomer == Some(place) && claim.jobs == 0;
        let spared = match claim.class {
            Class::New if claim.jobs == 0 => SLOT,
            Class::Answering if claim.jobs == 0 && claim.weight < SLOT => 0,
            _ => spare(zones.level),
        };
        let is_behind = claim.holds() <= levels[zone];
        let is_within = held[zone] + claim.weight <= zones.bounds[zone]
            || (is_newcomer && admits_newcomer(capacity, &held));
        let fits = is_within && claim.weight + spared <= free;
        if is_behind && fits {
            claim.jobs += 1;
            held[zone] += claim.weight;
            free -= claim.weight;
        }
    }
}

fn of_class(claims: &[Claim], class: Class) -> impl Iterator<Item = &Claim> {
    claims.iter().filter(move |claim| claim.class == class)
}

/// The highest level up to `end` that is low enough; 0 if none is. What is too high stays too high.
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
