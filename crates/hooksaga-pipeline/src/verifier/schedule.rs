//! Which checks start now, given what waits and what runs. Pure: the time is passed in, and nothing is sent.
//!
//! A check is young for its first second; nearly every endpoint has answered by then. Only so many are young at
//! a time, and so many run in all; when those are exceeded the oldest one that is no longer young is cut. So
//! endpoints that hang, however many, never keep a newcomer waiting for long, and a slow one still has 10 s, or
//! 4 s while hundreds hang.
//!
//! What runs for one host and port is bounded too, and so is what is sent to a host, whichever its ports: the verifier must
//! not be a weapon against one that never asked for challenges. One that proves itself does not count, so that a host with a thousand
//! subscriptions is verified as fast as it answers.
//!
//! First tries start before retries. Among first tries the newest and the oldest take turns: neither does a flood
//! of old ones delay a new one, nor a flood of new ones starve the old. What has waited too long is forgotten
//! here; the store gives it out again when its hold ends, as the next try of its round.

use crate::delivery::one_spelling;
use http::{Uri, uri::Scheme};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// How much is too much.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Checks that run at a time.
    pub(super) running: usize,
    /// Of these, for one host.
    pub(super) running_per_host: usize,
    /// Of these, started less than `youth` ago.
    pub(super) young: usize,
    pub(super) youth: Duration,
    /// Checks that wait for their turn.
    pub(super) waiting: usize,
    /// Of these, for one host.
    pub(super) waiting_per_host: usize,
    /// So long, and no longer, does a check wait.
    pub(super) patience: Duration,
    /// Challenges to one host that does not prove itself: so many at once, and so many per second.
    pub(super) burst: u32,
    pub(super) per_second: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            running: 256,
            running_per_host: 64,
            young: 64,
            youth: Duration::from_secs(1),
            waiting: 1024,
            waiting_per_host: 256,
            patience: Duration::from_secs(15),
            burst: 20,
            per_second: 5,
        }
    }
}

/// The host and port that a URL leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host(Box<str>);

impl Host {
    pub(super) fn of(url: &str) -> Self {
        let Ok(uri) = url.parse::<Uri>() else { return Self(url.into()) };
        let default = if uri.scheme() == Some(&Scheme::HTTP) { 80 } else { 443 };
        let host = one_spelling(uri.host().unwrap_or_default());
        Self(format!("{host}:{}", uri.port_u16().unwrap_or(default)).into())
    }

    /// Without the port.
    fn name(&self) -> &str {
        self.0.rsplit_once(':').map_or(&self.0, |(name, _)| name)
    }
}

/// Something of which one check is a part and whose share of what runs is bounded. A bound per tenant is one more
/// kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Group {
    Host(Host),
}

impl Group {
    fn limit(&self, limits: &Limits) -> usize {
        match self {
            Self::Host(_) => limits.running_per_host,
        }
    }
}

struct Waiting<T> {
    host: Host,
    since: Instant,
    check: T,
}

impl<T> Waiting<T> {
    fn groups(&self) -> [Group; 1] {
        [Group::Host(self.host.clone())]
    }
}

struct Runs {
    host: Host,
    groups: [Group; 1],
    since: Instant,
    cut: bool,
}

/// How many challenges may be sent to a host now; it fills again with time.
struct Bucket {
    tokens: f64,
    at: Instant,
}

/// What is to be done now.
pub(super) struct Step<T> {
    /// Start these checks, under these numbers.
    pub(super) start: Vec<(u64, T)>,
    /// These have had their time.
    pub(super) cut: Vec<u64>,
    /// Whether others wait: their turn may come without a further event.
    pub(super) waits: bool,
}

/// The checks that wait and run.
pub(super) struct Schedule<T> {
    limits: Limits,
    first_tries: VecDeque<Waiting<T>>,
    retries: VecDeque<Waiting<T>>,
    waiting_of: HashMap<Host, usize>,
    /// By number, so that the first one has run for longest.
    running: BTreeMap<u64, Runs>,
    running_of: HashMap<Group, usize>,
    /// By the host's name: its ports share what it is sent.
    buckets: HashMap<Box<str>, Bucket>,
    next_number: u64,
    newest_next: bool,
}

impl<T> Schedule<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            first_tries: VecDeque::new(),
            retries: VecDeque::new(),
            waiting_of: HashMap::new(),
            running: BTreeMap::new(),
            running_of: HashMap::new(),
            buckets: HashMap::new(),
            next_number: 0,
            newest_next: true,
        }
    }

    /// How many more checks may wait.
    pub(super) fn room(&self) -> usize {
        self.limits.waiting.saturating_sub(self.waiting())
    }

    fn waiting(&self) -> usize {
        self.first_tries.len() + self.retries.len()
    }

    /// Whether so many wait for one host that it should have time to work some off before more are taken: those
    /// that find no room have been taken in vain.
    pub(super) fn is_crowded(&self) -> bool {
        self.waiting_of.values().any(|waiting| *waiting >= self.limits.waiting_per_host / 2)
    }

    /// Lets a check wait for its turn; false if too many wait for its host already.
    pub(super) fn offer(&mut self, host: Host, first: bool, check: T, now: Instant) -> bool {
        let waiting = self.waiting_of.entry(host.clone()).or_default();
        if *waiting >= self.limits.waiting_per_host {
            return false;
        }
        *waiting += 1;
        let queue = if first { &mut self.first_tries } else { &mut self.retries };
        queue.push_back(Waiting { host, since: now, check });
        true
    }

    /// What is to be done now.
    pub(super) fn step(&mut self, now: Instant) -> Step<T> {
        self.forget_those_that_waited_too_long(now);
        let mut step = Step { start: Vec::new(), cut: Vec::new(), waits: false };
        let mut full = HashSet::new();
        let mut young = self.running.values().filter(|runs| now < runs.since + self.limits.youth).count();
        let mut active = self.running.values().filter(|runs| !runs.cut).count();
        while young < self.limits.young {
            if active >= self.limits.running && !self.has_old(now) {
                break;
            }
            let Some(waiting) = self.next(&mut full, now) else { break };
            if active >= self.limits.running
                && let Some(number) = self.cut_oldest(now)
            {
                step.cut.push(number);
                active -= 1;
            }
            step.start.push(self.start(waiting, now));
            young += 1;
            active += 1;
        }
        step.waits = self.waiting() > 0;
        self.buckets.retain(|_, bucket| refilled(bucket, &self.limits, now) < f64::from(self.limits.burst));
        step
    }

    /// A check has ended. One that verified its endpoint is not counted against its host.
    pub(super) fn ended(&mut self, number: u64, verified: bool, now: Instant) {
        let Some(runs) = self.running.remove(&number) else { return };
        for group in &runs.groups {
            decrement(&mut self.running_of, group);
        }
        if verified && let Some(bucket) = self.buckets.get_mut(runs.host.name()) {
            let tokens = refilled(bucket, &self.limits, now) + 1.0;
            *bucket = Bucket { tokens: tokens.min(f64::from(self.limits.burst)), at: now };
        }
    }

    fn forget_those_that_waited_too_long(&mut self, now: Instant) {
        for queue in [&mut self.first_tries, &mut self.retries] {
            while let Some(waiting) =
                queue.pop_front_if(|waiting| now >= waiting.since + self.limits.patience)
            {
                decrement(&mut self.waiting_of, &waiting.host);
            }
        }
    }

    /// The check whose turn it is. `full` remembers the hosts that have no room within one step.
    fn next(&mut self, full: &mut HashSet<Host>, now: Instant) -> Option<Waiting<T>> {
        let first_tries = (0..self.first_tries.len()).map(|index| (true, index));
        let retries = (0..self.retries.len()).map(|index| (false, index));
        let order: Box<dyn Iterator<Item = (bool, usize)>> = if self.newest_next {
            Box::new(first_tries.rev().chain(retries))
        } else {
            Box::new(first_tries.chain(retries))
        };
        for (first, index) in order {
            let waiting = if first { &self.first_tries[index] } else { &self.retries[index] };
            if full.contains(&waiting.host) {
                continue;
            }
            if !self.has_room(waiting, now) {
                full.insert(waiting.host.clone());
                continue;
            }
            self.newest_next = !self.newest_next;
            let queue = if first { &mut self.first_tries } else { &mut self.retries };
            let taken = queue.remove(index)?;
            decrement(&mut self.waiting_of, &taken.host);
            return Some(taken);
        }
        None
    }

    fn has_room(&self, waiting: &Waiting<T>, now: Instant) -> bool {
        let below = |group: &Group| {
            self.running_of.get(group).copied().unwrap_or_default() < group.limit(&self.limits)
        };
        let sendable = self
            .buckets
            .get(waiting.host.name())
            .is_none_or(|bucket| refilled(bucket, &self.limits, now) >= 1.0);
        sendable && waiting.groups().iter().all(below)
    }

    fn start(&mut self, waiting: Waiting<T>, now: Instant) -> (u64, T) {
        let groups = waiting.groups();
        for group in &groups {
            *self.running_of.entry(group.clone()).or_default() += 1;
        }
        let full = Bucket { tokens: f64::from(self.limits.burst), at: now };
        let bucket = self.buckets.entry(waiting.host.name().into()).or_insert(full);
        *bucket = Bucket { tokens: refilled(bucket, &self.limits, now) - 1.0, at: now };
        let number = self.next_number;
        self.next_number += 1;
        self.running.insert(number, Runs { host: waiting.host, groups, since: now, cut: false });
        (number, waiting.check)
    }

    fn has_old(&self, now: Instant) -> bool {
        self.oldest(now).is_some()
    }

    /// The one that has run for longest, if it is no longer young.
    fn oldest(&self, now: Instant) -> Option<u64> {
        let (number, runs) = self.running.iter().find(|(_, runs)| !runs.cut)?;
        (now >= runs.since + self.limits.youth).then_some(*number)
    }

    fn cut_oldest(&mut self, now: Instant) -> Option<u64> {
        let number = self.oldest(now)?;
        self.running.get_mut(&number)?.cut = true;
        Some(number)
    }
}

fn refilled(bucket: &Bucket, limits: &Limits, now: Instant) -> f64 {
    let earned = now.saturating_duration_since(bucket.at).as_secs_f64() * f64::from(limits.per_second);
    (bucket.tokens + earned).min(f64::from(limits.burst))
}

fn decrement<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
