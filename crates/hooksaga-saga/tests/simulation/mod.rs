//! Orchestrator, workers and endpoints in simulated time, around the real [`Endpoint`], [`allot`] and [`WorkerSlots`].
//!
//! Every tick an orchestrator applies the results that were written, asks for an allotment and creates the jobs; a worker
//! starts them in the order of admission as far as it may. After a claim that found nothing beside those that it passed over
//! it may rest.

mod hanging;
mod occasional;
mod throttling;

use hooksaga_saga::{Attempts, Demand, Endpoint, EndpointReaction, SubscriptionId, WorkerSlots, allot};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(5);
/// Attempts that last longer are not likely to end within the next few milliseconds.
const FOR_LONG: Duration = Duration::from_millis(500);
/// Responses show for so long that an endpoint answers.
const A_MOMENT: Duration = Duration::from_millis(150);

/// How an endpoint behaves: the answer to a request that comes while `serving` others are being served.
type Behaviour = Box<dyn Fn(Duration, usize) -> (EndpointReaction, Duration)>;

/// A delivery: how often it was tried, and when it is due.
#[derive(Clone, Copy)]
struct Delivery {
    attempts: u32,
    due: Duration,
}

struct Running {
    delivery: Delivery,
    answer: EndpointReaction,
    started: Duration,
    ends: Duration,
}

impl Running {
    fn holds_a_slot(&self, now: Duration) -> bool {
        self.ends > now
    }
}

/// A subscription, its endpoint, and what became of its deliveries.
struct Subscription {
    observed: Endpoint,
    behaviour: Behaviour,
    last_turn: u64,
    /// Something was due in the last pass, and the turn before that began.
    waits: bool,
    waits_since: u64,
    waiting: VecDeque<Delivery>,
    running: Vec<Running>,
    /// When its attempts had responses, or will have.
    responses: VecDeque<Duration>,
    /// Jobs in the queue of the workers.
    queued: usize,
    requests: u32,
    served: u32,
    refused: u32,
    dead: u32,
    /// The longest that a due delivery waited for its start.
    longest_wait: Duration,
    /// How long each waited.
    waits_of_each: Vec<Duration>,
}

impl Subscription {
    fn new(behaviour: impl Fn(Duration, usize) -> (EndpointReaction, Duration) + 'static) -> Self {
        Self {
            observed: Endpoint::default(),
            behaviour: Box::new(behaviour),
            last_turn: 0,
            waits: false,
            waits_since: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            responses: VecDeque::new(),
            queued: 0,
            requests: 0,
            served: 0,
            refused: 0,
            dead: 0,
            longest_wait: Duration::ZERO,
            waits_of_each: Vec::new(),
        }
    }

    fn with(mut self, deliveries: usize) -> Self {
        self.receive(deliveries, Duration::ZERO);
        self
    }

    fn receive(&mut self, deliveries: usize, now: Duration) {
        self.waiting.extend(std::iter::repeat_n(Delivery { attempts: 0, due: now }, deliveries));
    }

    fn attempts(&mut self, now: Duration) -> Attempts {
        self.responses.retain(|at| *at + A_MOMENT > now);
        let responses = self.responses.iter().filter(|at| **at <= now).count();
        let in_flight = self.running.iter().filter(|one| one.holds_a_slot(now)).count();
        let [in_flight, responses] = [in_flight, responses].map(|count| u32::try_from(count).unwrap());
        Attempts { in_flight, responses }
    }

    /// The 95th percentile.
    fn p95_wait(&mut self) -> Duration {
        self.waits_of_each.sort_unstable();
        self.waits_of_each[self.waits_of_each.len() * 95 / 100]
    }

    fn due(&self, now: Duration) -> usize {
        self.waiting.iter().filter(|delivery| delivery.due <= now).count()
    }
}

struct World {
    capacity: u32,
    tick: Duration,
    /// How long after a response it is known to the orchestrator.
    written_after: Duration,
    /// How long the worker rests after a claim that found nothing.
    rests: Duration,
    /// Until then, unless one may be claimed that was passed over.
    rests_until: (Duration, Vec<SubscriptionId>),
    start: Instant,
    now: Duration,
    turn: u64,
    subscriptions: Vec<Subscription>,
    /// Jobs that no worker has started, in the order of admission.
    queue: VecDeque<(usize, Delivery)>,
    /// What the last pass gave to each.
    given: Vec<u32>,
}

impl World {
    fn new(capacity: u32, subscriptions: Vec<Subscription>) -> Self {
        Self {
            capacity,
            tick: TICK,
            written_after: Duration::ZERO,
            rests: Duration::ZERO,
            rests_until: (Duration::ZERO, Vec::new()),
            start: Instant::now(),
            now: Duration::ZERO,
            turn: 0,
            subscriptions,
            queue: VecDeque::new(),
            given: Vec::new(),
        }
    }

    /// The longest that a delivery of this subscription waited for its start, or has been waiting.
    fn longest_wait(&self, number: usize) -> Duration {
        let subscription = &self.subscriptions[number];
        let queued = self.queue.iter().filter(|(other, _)| *other == number).map(|(_, delivery)| delivery);
        let waits = subscription.waiting.iter().chain(queued);
        waits.map(|one| self.now.saturating_sub(one.due)).fold(subscription.longest_wait, Duration::max)
    }

    fn tick(&mut self) {
        self.now += self.tick;
        self.apply();
        self.admit();
        self.work();
    }

    /// 5 attempts, a second after the first failure, doubling.
    fn apply(&mut self) {
        let (now, at) = (self.now, self.start + self.now);
        let written_after = self.written_after;
        for subscription in &mut self.subscriptions {
            let is_written = |running: &mut Running| running.ends + written_after <= now;
            for ended in subscription.running.extract_if(.., is_written) {
                subscription.observed.answered(ended.answer, ended.ends - ended.started, at);
                let attempts = ended.delivery.attempts + 1;
                match ended.answer {
                    EndpointReaction::Served => subscription.served += 1,
                    _ if attempts == 5 => subscription.dead += 1,
                    _ => {
                        let due = now + Duration::from_secs(1) * 2_u32.pow(attempts - 1);
                        subscription.waiting.push_back(Delivery { attempts, due });
                    }
                }
                subscription.refused += u32::from(ended.answer == EndpointReaction::Throttled);
            }
        }
    }

    fn admit(&mut self) {
        let (now, at) = (self.now, self.start + self.now);
        for subscription in &mut self.subscriptions {
            let waits = subscription.due(now) > 0;
            if waits && !subscription.waits {
                subscription.waits_since = self.turn;
            }
            subscription.waits = waits;
        }
        let demand = |subscription: &Subscription| {
            let due = u32::try_from(subscription.due(now)).unwrap();
            let (turn, since) = (subscription.last_turn, subscription.waits_since);
            subscription.observed.demand(due, turn, since, Duration::ZERO, at)
        };
        let demands: Vec<Demand> = self.subscriptions.iter().map(demand).collect();
        self.given = allot(self.capacity, &demands);
        for (number, jobs) in self.given.iter().enumerate().filter(|(_, jobs)| **jobs > 0) {
            self.turn += 1;
            let subscription = &mut self.subscriptions[number];
            subscription.last_turn = self.turn;
            subscription.observed.admitted(*jobs, at);
            for _ in 0..*jobs {
                let first = subscription.waiting.iter().position(|delivery| delivery.due <= now).unwrap();
                self.queue.push_back((number, subscription.waiting.remove(first).unwrap()));
                subscription.queued += 1;
            }
        }
    }

    fn work(&mut self) {
        loop {
            let claimed = self.claim();
            for (number, delivery) in &claimed {
                let subscription = &mut self.subscriptions[*number];
                let serving = subscription
                    .running
                    .iter()
                    .filter(|other| other.answer == EndpointReaction::Served && other.holds_a_slot(self.now))
                    .count();
                let (answer, takes) = (subscription.behaviour)(self.now, serving);
                let (started, ends) = (self.now, self.now + takes);
                subscription.queued -= 1;
                if answer != EndpointReaction::Unreachable {
                    subscription.responses.push_back(ends);
                }
                subscription.running.push(Running { delivery: *delivery, answer, started, ends });
                subscription.requests += 1;
                subscription.longest_wait = subscription.longest_wait.max(self.now - delivery.due);
                subscription.waits_of_each.push(self.now - delivery.due);
            }
            if claimed.is_empty() {
                return;
            }
        }
    }

    /// As a worker claims: in the order of admission, past the subscriptions that hold their part already.
    fn claim(&mut self) -> Vec<(usize, Delivery)> {
        let now = self.now;
        let running = || self.subscriptions.iter().flat_map(|subscription| &subscription.running);
        let count = |which: &dyn Fn(&Running) -> bool| {
            u32::try_from(running().filter(|one| one.holds_a_slot(now) && which(one)).count()).unwrap()
        };
        let free = self.capacity - count(&|_| true);
        if free == 0 {
            return Vec::new();
        }
        let held_for_long = count(&|one| one.started + FOR_LONG <= now);
        let slots = WorkerSlots { all: self.capacity, free, held_for_long };
        let attempts = (0_i64..)
            .zip(&mut self.subscriptions)
            .map(|(number, subscription)| (SubscriptionId(number), subscription.attempts(now)));
        let claimable = slots.claimable(1000, attempts.filter(|(_, attempts)| attempts.in_flight > 0));
        let (rests_until, passed_over) = &self.rests_until;
        if now < *rests_until && passed_over.iter().all(|id| claimable.skip.contains(id)) {
            return Vec::new();
        }
        let is_passed_over = |number: usize| {
            let id = SubscriptionId(i64::try_from(number).unwrap());
            claimable.skip.binary_search(&id).is_ok()
        };
        let mut claimed = Vec::new();
        let mut passed_over = VecDeque::new();
        while claimed.len() < usize::try_from(claimable.jobs).unwrap()
            && let Some((number, delivery)) = self.queue.pop_front()
        {
            if is_passed_over(number) {
                passed_over.push_back((number, delivery));
            } else {
                claimed.push((number, delivery));
            }
        }
        passed_over.append(&mut self.queue);
        self.queue = passed_over;
        if claimed.is_empty() && !claimable.skip.is_empty() {
            self.rests_until = (now + self.rests, claimable.skip);
        }
        claimed
    }
}
