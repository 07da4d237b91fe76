//! Which checks start now, given what waits and what runs. Pure: the time is passed in, and nothing is sent.
//!
//! A check is young for its first second; nearly every endpoint has answered by then. [`Limits`] bounds
//! how many are young at a time and how many run in all; when those are exceeded the oldest one that is no longer
//! young is cancelled. So endpoints that hang, however many, never delay a new check for long, and a slow endpoint still
//! has 10 s, or 4 s while hundreds hang.
//!
//! The checks that run for one host and port are bounded too, and so are the challenges sent to a host, whatever the
//! ports: nobody must be able to use the verifier against a host that never asked for challenges. Endpoints that prove
//! themselves do not count, so a host with a thousand subscriptions is verified as fast as it responds.
//!
//! One tenant may use three quarters of what the others leave of the slots, of those for young checks, and of the
//! queue. Beyond that its own oldest check is cancelled, and no more of its due checks are taken. So however many
//! hosts that hang one tenant names, another tenant's checks start at once.
//!
//! First tries start before retries. Among first tries the newest and the oldest alternate, so a flood
//! of old ones does not delay a new one, and a flood of new ones does not starve the old. A check that has waited too
//! long is dropped here; the store returns it again when its lease expires, as the next try of its round.

use crate::delivery::one_spelling;
use http::{Uri, uri::Scheme};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// How much is too much.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Checks that run at a time. Of these, of `young` and of `waiting` one tenant may have [`share`].
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
    /// How long a check waits at most.
    pub(super) patience: Duration,
    /// Challenges at once to one host that does not prove itself.
    pub(super) burst: u32,
    /// Challenges per second to one host that does not prove itself.
    pub(super) per_second: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self::at_a_time(256)
    }
}

impl Limits {
    /// Fewer would be one tenant's alone: of a single slot nothing can be left to others.
    const FEWEST: usize = 16;

    /// With at most this many checks at a time.
    pub(super) fn at_a_time(running: usize) -> Self {
        let running = running.max(Self::FEWEST);
        let quarter = running.div_ceil(4);
        Self {
            running,
            running_per_host: quarter,
            young: quarter,
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

/// Whose check it is.
type Tenant = Arc<str>;

/// What one tenant may have of `limit`, of which others have `others`: three quarters of what they leave.
fn share(limit: usize, others: usize) -> usize {
    (limit.saturating_sub(others) * 3).div_ceil(4)
}

/// A host or a tenant: what each may use of the verifier is bounded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Group {
    Host(Host),
    Tenant(Tenant),
}

struct Waiting<T> {
    host: Host,
    tenant: Tenant,
    since: Instant,
    check: T,
}

struct Runs {
    host: Host,
    tenant: Tenant,
    since: Instant,
    cut: bool,
}

/// How many run that were not cut, and how many are young.
#[derive(Clone, Copy, Debug, Default)]
struct CheckCount {
    active: usize,
    young: usize,
}

/// The checks that run: counted when a step begins, and updated with what it starts and cuts.
#[derive(Default)]
struct RunningChecks {
    all: CheckCount,
    of: HashMap<Tenant, CheckCount>,
}

impl RunningChecks {
    fn of(&self, tenant: &Tenant) -> CheckCount {
        self.of.get(tenant).copied().unwrap_or_default()
    }

    fn change(&mut self, tenant: &Tenant, change: impl Fn(&mut CheckCount)) {
        change(&mut self.all);
        change(self.of.entry(Arc::clone(tenant)).or_default());
    }
}

/// How many challenges may be sent to a host now; it fills again with time.
struct Bucket {
    tokens: f64,
    at: Instant,
}

/// What is to be done now.
pub(super) struct CheckActions<T> {
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
    waiting_of: HashMap<Group, usize>,
    /// By number, so that the first one has run for longest.
    running: BTreeMap<u64, Runs>,
    running_of: HashMap<Host, usize>,
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

    /// Whether the queue of any host is half full. If so, no more checks are claimed for now: one that finds its host's
    /// queue full would have been claimed for nothing.
    pub(super) fn is_crowded(&self) -> bool {
        let enough = self.limits.waiting_per_host / 2;
        self.waiting_of.iter().any(|(group, waiting)| matches!(group, Group::Host(_)) && *waiting >= enough)
    }

    /// How many checks of one tenant may be taken, `most` at most, if none of it waits.
    pub(super) fn room_of_one(&self, most: usize) -> usize {
        share(self.limits.waiting, self.waiting()).min(most)
    }

    /// The tenants that have no room for more waiting checks.
    pub(super) fn full_tenants(&self, more: usize) -> Vec<String> {
        let full = |(group, waiting): (&Group, &usize)| match group {
            Group::Tenant(tenant) => {
                let others = self.waiting() - waiting;
                (waiting + more > share(self.limits.waiting, others)).then(|| tenant.to_string())
            }
            Group::Host(_) => None,
        };
        self.waiting_of.iter().filter_map(full).collect()
    }

    /// Lets a check wait for its turn; false if too many wait for its host already.
    pub(super) fn offer(&mut self, host: Host, tenant: &str, first: bool, check: T, now: Instant) -> bool {
        let waiting = Waiting { host, tenant: tenant.into(), since: now, check };
        let for_host = self.waiting_of.get(&Group::Host(waiting.host.clone())).copied().unwrap_or_default();
        if for_host >= self.limits.waiting_per_host {
            return false;
        }
        for group in groups(&waiting) {
            *self.waiting_of.entry(group).or_default() += 1;
        }
        let queue = if first { &mut self.first_tries } else { &mut self.retries };
        queue.push_back(waiting);
        true
    }

    /// What is to be done now.
    pub(super) fn step(&mut self, now: Instant) -> CheckActions<T> {
        self.forget_those_that_waited_too_long(now);
        let mut step = CheckActions { start: Vec::new(), cut: Vec::new(), waits: false };
        let mut full = HashSet::new();
        let mut counts = self.count(now);
        while counts.all.young < self.limits.young {
            if counts.all.active >= self.limits.running && self.oldest(None, now).is_none() {
                break;
            }
            let Some(waiting) = self.next(&counts, &mut full, now) else { break };
            let makes_room = if self.has_its_share(&waiting.tenant, &counts) {
                self.oldest(Some(&waiting.tenant), now)
            } else if counts.all.active >= self.limits.running {
                self.oldest(None, now)
            } else {
                None
            };
            if let Some(runs) = makes_room.and_then(|number| self.running.get_mut(&number)) {
                runs.cut = true;
                counts.change(&runs.tenant, |count| count.active -= 1);
            }
            step.cut.extend(makes_room);
            counts.change(&waiting.tenant, |count| {
                count.active += 1;
                count.young += 1;
            });
            step.start.push(self.start(waiting, now));
        }
        step.waits = self.waiting() > 0;
        self.buckets.retain(|_, bucket| refilled(bucket, &self.limits, now) < f64::from(self.limits.burst));
        step
    }

    /// A check has ended. One that verified its endpoint is not counted against its host.
    pub(super) fn ended(&mut self, number: u64, verified: bool, now: Instant) {
        let Some(runs) = self.running.remove(&number) else { return };
        decrement(&mut self.running_of, &runs.host);
        if verified && let Some(bucket) = self.buckets.get_mut(runs.host.name()) {
            let tokens = refilled(bucket, &self.limits, now) + 1.0;
            *bucket = Bucket { tokens: tokens.min(f64::from(self.limits.burst)), at: now };
        }
    }

    fn count(&self, now: Instant) -> RunningChecks {
        let mut counts = RunningChecks::default();
        for runs in self.running.values() {
            counts.change(&runs.tenant, |count| {
                count.active += usize::from(!runs.cut);
                count.young += usize::from(now < runs.since + self.limits.youth);
            });
        }
        counts
    }

    fn forget_those_that_waited_too_long(&mut self, now: Instant) {
        for queue in [&mut self.first_tries, &mut self.retries] {
            while let Some(waiting) =
                queue.pop_front_if(|waiting| now >= waiting.since + self.limits.patience)
            {
                for group in groups(&waiting) {
                    decrement(&mut self.waiting_of, &group);
                }
            }
        }
    }

    /// The check whose turn it is. `full` remembers the hosts and tenants that have no room within one step.
    fn next(
        &mut self,
        counts: &RunningChecks,
        full: &mut HashSet<Group>,
        now: Instant,
    ) -> Option<Waiting<T>> {
        let first_tries = (0..self.first_tries.len()).map(|index| (true, index));
        let retries = (0..self.retries.len()).map(|index| (false, index));
        let order: Box<dyn Iterator<Item = (bool, usize)>> = if self.newest_next {
            Box::new(first_tries.rev().chain(retries))
        } else {
            Box::new(first_tries.chain(retries))
        };
        for (first, index) in order {
            let waiting = if first { &self.first_tries[index] } else { &self.retries[index] };
            if groups(waiting).iter().any(|group| full.contains(group)) {
                continue;
            }
            if let Some(group) = self.without_room(waiting, counts, now) {
                full.insert(group);
                continue;
            }
            self.newest_next = !self.newest_next;
            let queue = if first { &mut self.first_tries } else { &mut self.retries };
            let taken = queue.remove(index)?;
            for group in groups(&taken) {
                decrement(&mut self.waiting_of, &group);
            }
            return Some(taken);
        }
        None
    }

    /// Its host or its tenant, if there is no room for one more of it.
    fn without_room(&self, waiting: &Waiting<T>, counts: &RunningChecks, now: Instant) -> Option<Group> {
        let running = self.running_of.get(&waiting.host).copied().unwrap_or_default();
        let sendable = self
            .buckets
            .get(waiting.host.name())
            .is_none_or(|bucket| refilled(bucket, &self.limits, now) >= 1.0);
        if !sendable || running >= self.limits.running_per_host {
            return Some(Group::Host(waiting.host.clone()));
        }
        let tenant = &waiting.tenant;
        let young = counts.of(tenant).young;
        let startable = young < share(self.limits.young, counts.all.young - young)
            && (!self.has_its_share(tenant, counts) || self.oldest(Some(tenant), now).is_some());
        (!startable).then(|| Group::Tenant(Arc::clone(tenant)))
    }

    /// Whether as many of the tenant's checks run as may.
    fn has_its_share(&self, tenant: &Tenant, counts: &RunningChecks) -> bool {
        let active = counts.of(tenant).active;
        active >= share(self.limits.running, counts.all.active - active)
    }

    fn start(&mut self, waiting: Waiting<T>, now: Instant) -> (u64, T) {
        *self.running_of.entry(waiting.host.clone()).or_default() += 1;
        let full = Bucket { tokens: f64::from(self.limits.burst), at: now };
        let bucket = self.buckets.entry(waiting.host.name().into()).or_insert(full);
        *bucket = Bucket { tokens: refilled(bucket, &self.limits, now) - 1.0, at: now };
        let number = self.next_number;
        self.next_number += 1;
        let Waiting { host, tenant, check, .. } = waiting;
        self.running.insert(number, Runs { host, tenant, since: now, cut: false });
        (number, check)
    }

    /// The one that has run for longest, of this tenant if one is given, if it is no longer young.
    fn oldest(&self, tenant: Option<&Tenant>, now: Instant) -> Option<u64> {
        let is_its = |runs: &Runs| tenant.is_none_or(|tenant| runs.tenant == *tenant);
        let (number, runs) = self.running.iter().find(|(_, runs)| !runs.cut && is_its(runs))?;
        (now >= runs.since + self.limits.youth).then_some(*number)
    }
}

fn groups<T>(waiting: &Waiting<T>) -> [Group; 2] {
    [Group::Host(waiting.host.clone()), Group::Tenant(Arc::clone(&waiting.tenant))]
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
