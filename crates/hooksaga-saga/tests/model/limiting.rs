//! A model check of its own for rate limits, with the real [`hooksaga_saga::RateLimit`]: two orchestrators that create
//! jobs, two workers that start them, both gates, in steps of a quarter of a second.
//!
//! Times are kept relative to now. Any process may die between any two of its transactions; jobs may wait for a worker
//! for any time; a clock that was ahead may have written a bucket. What must hold: in no second are more admitted, or
//! started, than the rate and its burst; and everything that waits is started in the end, in every schedule.

use hooksaga_saga::{Gate, RateLimit, Timestamp};
use std::collections::{HashSet, VecDeque};

const TICK: i64 = 250_000;
/// Ticks of a second.
const SECOND: u8 = 4;
/// One a second, and one more as a burst.
const RATE: u32 = 1;
const ALLOWED: usize = 2;
/// Deliveries that wait: one more than a second may have.
const WAITING: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// The admission's bucket is asked at all.
    AdmissionGate,
    /// The jobs and what they took out of the bucket are one commit.
    AdmissionInOneCommit,
    /// The start's bucket is asked at all.
    StartGate,
    /// A bucket is locked from the read to the commit.
    BucketLock,
    /// The clock is read when the bucket is locked, not before the wait for it.
    ClockAfterLock,
    /// A bucket that a clock which was ahead has written is stored as an empty one, also if nothing passes.
    AheadIsForgotten,
}

use Guard::{AdmissionGate, AdmissionInOneCommit, AheadIsForgotten, BucketLock, ClockAfterLock, StartGate};

const ALL: [Guard; 6] =
    [AdmissionGate, AdmissionInOneCommit, StartGate, BucketLock, ClockAfterLock, AheadIsForgotten];

/// Where a clock that was ahead puts a bucket: a year, which no run waits for.
const AHEAD: i8 = 100;
/// As long as anybody waits for a lock, and as far back as a bucket's time makes a difference.
const LOCK_WAIT: u8 = SECOND;
const LONG_FULL: i8 = -4;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    waiting: u8,
    jobs: u8,
    /// When the buckets will be full, in ticks from now.
    admission: i8,
    start: i8,
    /// How many ticks ago jobs were admitted and attempts started, within the last second; sorted.
    admitted: Vec<u8>,
    started: Vec<u8>,
    orchestrators: [Orchestrator; 2],
    workers: [Worker; 2],
    /// A clock has been ahead once.
    was_ahead: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Orchestrator {
    Idle,
    /// Has created a job, and not noted that in the bucket.
    OwesBucket(i8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Worker {
    Idle,
    /// Holds a job.
    Claimed,
    /// How many ticks ago it has read the clock; it waits for the bucket.
    Waits(u8),
    /// Has read the bucket without locking it.
    Read(i8),
}

struct Model(Vec<Guard>);

impl Model {
    fn has(&self, guard: Guard) -> bool {
        self.0.contains(&guard)
    }

    fn steps(&self, state: &State) -> Vec<(State, bool)> {
        let mut next = vec![(state.later(), true)];
        for copy in 0..2 {
            self.admit(state, copy, &mut next);
            self.work(state, copy, &mut next);
        }
        if !state.was_ahead {
            next.push((State { was_ahead: true, start: AHEAD, admission: AHEAD, ..state.clone() }, false));
        }
        next.retain(|(after, _)| after != state);
        next
    }

    fn admit(&self, state: &State, copy: usize, next: &mut Vec<(State, bool)>) {
        let mut after = state.clone();
        if let Orchestrator::OwesBucket(full_at) = state.orchestrators[copy] {
            after.orchestrators[copy] = Orchestrator::Idle;
            next.push((after.clone(), false));
            after.admission = full_at;
            next.push((after, true));
            return;
        }
        if state.waiting == 0 {
            return;
        }
        let (passed, stored) = pass(Gate::Admission, state.admission, 0);
        if !passed && self.has(AdmissionGate) {
            if state.admission == AHEAD && self.has(AheadIsForgotten) {
                next.push((State { admission: stored, ..after }, true));
            }
            return;
        }
        after.waiting -= 1;
        after.jobs += 1;
        after.admitted.insert(0, 0);
        if self.has(AdmissionInOneCommit) {
            after.admission = stored;
        } else {
            after.orchestrators[copy] = Orchestrator::OwesBucket(stored);
        }
        next.push((after, true));
    }

    fn work(&self, state: &State, copy: usize, next: &mut Vec<(State, bool)>) {
        let mut to = |memory: Worker, calm: bool, change: &dyn Fn(&mut State)| {
            let mut after = state.clone();
            after.workers[copy] = memory;
            change(&mut after);
            next.push((after, calm));
        };
        let begin = |after: &mut State| after.started.insert(0, 0);
        match state.workers[copy] {
            Worker::Idle if state.jobs > 0 => to(Worker::Claimed, true, &|after| after.jobs -= 1),
            Worker::Idle => {}
            Worker::Claimed if !self.has(StartGate) => to(Worker::Idle, true, &begin),
            Worker::Claimed if !self.has(ClockAfterLock) => to(Worker::Waits(0), true, &|_| {}),
            Worker::Claimed if !self.has(BucketLock) => to(Worker::Read(state.start), true, &|_| {}),
            Worker::Claimed => self.decide(state.start, 0, &mut to),
            Worker::Waits(since) => self.decide(state.start, since, &mut to),
            Worker::Read(full_at) => self.decide(full_at, 0, &mut to),
        }
        // It dies, or hands the job back: that is there again.
        if state.workers[copy] != Worker::Idle {
            to(Worker::Idle, false, &|after| after.jobs += 1);
        }
    }

    /// Under the lock: what the bucket lets through starts at once; what it does not is handed back until it may.
    fn decide(&self, full_at: i8, since: u8, to: &mut impl FnMut(Worker, bool, &dyn Fn(&mut State))) {
        let (passed, stored) = pass(Gate::Start, full_at, since);
        if passed {
            to(Worker::Idle, true, &|after| {
                after.start = stored;
                after.started.insert(0, 0);
            });
            // Stored, and the worker dies before it sends.
            to(Worker::Idle, false, &|after| {
                after.start = stored;
                after.jobs += 1;
            });
        } else if full_at == AHEAD && self.has(AheadIsForgotten) {
            to(Worker::Claimed, true, &|after| after.start = stored);
        }
    }

    fn explore(&self) -> Result<usize, &'static str> {
        let first = State {
            waiting: WAITING,
            jobs: 0,
            admission: 0,
            start: 0,
            admitted: Vec::new(),
            started: Vec::new(),
            orchestrators: [Orchestrator::Idle; 2],
            workers: [Worker::Idle; 2],
            was_ahead: false,
        };
        let mut seen = HashSet::from([first.clone()]);
        let mut queue = VecDeque::from([first]);
        while let Some(state) = queue.pop_front() {
            if state.started.len() > ALLOWED {
                return Err(STARTED);
            }
            if state.admitted.len() > ALLOWED {
                return Err(ADMITTED);
            }
            let next = self.steps(&state);
            let busy = state.workers != [Worker::Idle; 2];
            if !next.iter().any(|(_, calm)| *calm) && (state.waiting > 0 || state.jobs > 0 || busy) {
                return Err(STUCK);
            }
            for (mut after, _) in next {
                after.orchestrators.sort_unstable();
                after.workers.sort_unstable();
                if !seen.contains(&after) {
                    seen.insert(after.clone());
                    queue.push_back(after);
                }
            }
        }
        Ok(seen.len())
    }
}

impl State {
    /// A tick later.
    fn later(&self) -> Self {
        let mut after = self.clone();
        for ages in [&mut after.admitted, &mut after.started] {
            ages.iter_mut().for_each(|age| *age += 1);
            // A second is half open: what is a second old is in the one before.
            ages.retain(|age| *age < SECOND);
        }
        let nearer = |full_at: &mut i8| {
            if *full_at != AHEAD {
                *full_at = (*full_at - 1).max(LONG_FULL);
            }
        };
        nearer(&mut after.admission);
        nearer(&mut after.start);
        for orchestrator in &mut after.orchestrators {
            if let Orchestrator::OwesBucket(full_at) = orchestrator {
                nearer(full_at);
            }
        }
        for worker in &mut after.workers {
            match worker {
                Worker::Waits(since) => *since = (*since + 1).min(LOCK_WAIT),
                Worker::Read(full_at) => nearer(full_at),
                Worker::Idle | Worker::Claimed => {}
            }
        }
        after
    }
}

/// Whether one more passes a gate whose bucket is full in `full_in` ticks, by a clock that was read that many ticks ago;
/// and the bucket afterwards.
fn pass(gate: Gate, full_at: i8, clock_read: u8) -> (bool, i8) {
    let at = |ticks: i64| Timestamp::from_micros((1_000 + ticks) * TICK);
    let read = at(-i64::from(clock_read));
    let passage = RateLimit::per_second(RATE).pass(gate, Some(at(full_at.into())), 1, read);
    let ticks = (passage.full_at.as_micros() - at(0).as_micros()).div_euclid(TICK);
    (passage.passed == 1, i8::try_from(ticks).unwrap().max(LONG_FULL))
}

const STARTED: &str = "more started in one second than the limit lets";
const ADMITTED: &str = "more were admitted in one second than the limit lets";
const STUCK: &str = "something waits for ever";

fn without(left_out: Option<Guard>) -> Result<usize, &'static str> {
    Model(ALL.into_iter().filter(|guard| Some(*guard) != left_out).collect()).explore()
}

#[test]
fn a_rate_limit_is_kept_over_any_second_and_holds_nothing_for_ever() {
    let states = without(None).unwrap();
    assert!(states >= 5_000, "{states} states: it explores what it should");
}

#[test]
fn each_guard_of_a_rate_limit_is_needed() {
    for (guard, violation) in [
        (AdmissionGate, ADMITTED),
        // A crash in between: the jobs are there, and took nothing.
        (AdmissionInOneCommit, ADMITTED),
        // Jobs that were admitted in time waited for a worker.
        (StartGate, STARTED),
        // Two workers with one bucket.
        (BucketLock, STARTED),
        // Who waited for the lock reckons with an old time.
        (ClockAfterLock, STARTED),
        (AheadIsForgotten, STUCK),
    ] {
        assert_eq!(without(Some(guard)), Err(violation), "{guard:?}");
    }
}
