//! Orchestrator, workers and endpoints in simulated time, around the real [`Endpoint`] and [`allot`].
//!
//! Every tick of 5 ms an orchestrator applies the results of the last tick, asks for an allotment and creates the
//! jobs; a worker starts them in the order of admission as far as slots are free. No subscription takes more than two
//! thirds of what the others leave. The last eighth of the slots is for those with nothing in flight, one job each.

mod hanging;
mod throttling;

use hooksaga_saga::{Demand, Endpoint, EndpointReaction, allot};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(5);

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
    /// Jobs in the queue of the workers.
    queued: usize,
    requests: u32,
    served: u32,
    refused: u32,
    dead: u32,
    /// The longest that a due delivery waited for its start.
    longest_wait: Duration,
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
            queued: 0,
            requests: 0,
            served: 0,
            refused: 0,
            dead: 0,
            longest_wait: Duration::ZERO,
        }
    }

    fn with(mut self, deliveries: usize) -> Self {
        self.receive(deliveries, Duration::ZERO);
        self
    }

    fn receive(&mut self, deliveries: usize, now: Duration) {
        self.waiting.extend(std::iter::repeat_n(Delivery { attempts: 0, due: now }, deliveries));
    }

    fn due(&self, now: Duration) -> usize {
        self.waiting.iter().filter(|delivery| delivery.due <= now).count()
    }
}

struct World {
    capacity: u32,
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
            start: Instant::now(),
            now: Duration::ZERO,
            turn: 0,
            subscriptions,
            queue: VecDeque::new(),
            given: Vec::new(),
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        self.apply();
        self.admit();
        self.work();
    }

    /// 5 attempts, a second after the first failure, doubling.
    fn apply(&mut self) {
        let (now, at) = (self.now, self.start + self.now);
        for subscription in &mut self.subscriptions {
            for ended in subscription.running.extract_if(.., |running| running.ends <= now) {
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
            let standing = subscription.observed.standing(Duration::ZERO, at);
            subscription.observed.demand(due, subscription.last_turn, subscription.waits_since, standing)
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
                    .filter(|other| other.answer == EndpointReaction::Served)
                    .count();
                let (answer, takes) = (subscription.behaviour)(self.now, serving);
                let (started, ends) = (self.now, self.now + takes);
                subscription.queued -= 1;
                subscription.running.push(Running { delivery: *delivery, answer, started, ends });
                subscription.requests += 1;
                subscription.longest_wait = subscription.longest_wait.max(self.now - delivery.due);
            }
            if claimed.is_empty() {
                return;
            }
        }
    }

    /// As a worker claims: in the order of admission, past the subscriptions that hold their part already.
    fn claim(&mut self) -> Vec<(usize, Delivery)> {
        let slots = usize::try_from(self.capacity).unwrap();
        let held: Vec<usize> =
            self.subscriptions.iter().map(|subscription| subscription.running.len()).collect();
        let free = slots - held.iter().sum::<usize>();
        if free == 0 || self.queue.is_empty() {
            return Vec::new();
        }
        let two_thirds = |slots: usize| (slots - slots / 3).max(1);
        let kept = (slots / 8).max(1);
        let most = if free > kept { two_thirds(free).min(free - kept) } else { 1 };
        let may_have = |held: usize| match held {
            0 => most,
            _ if free > kept => two_thirds(free + held).saturating_sub(held).min(most),
            _ => 0,
        };
        let mut claimed = Vec::new();
        let mut passed_over = VecDeque::new();
        let jobs =
            held.iter().filter(|held| may_have(**held) >= most.div_ceil(2)).map(|held| may_have(*held)).min();
        while claimed.len() < jobs.unwrap_or(most)
            && let Some((number, delivery)) = self.queue.pop_front()
        {
            if may_have(held[number]) < most.div_ceil(2) {
                passed_over.push_back((number, delivery));
            } else {
                claimed.push((number, delivery));
            }
        }
        passed_over.append(&mut self.queue);
        self.queue = passed_over;
        claimed
    }
}
