//! A model check of its own for rate limits, with the real [`hooksaga_saga::RateLimit`]: two orchestrators that create
//! jobs, two workers that start them, both gates, in steps of a quarter of a second.
//!
//! Times are kept relative to now. Any process may die between any two of its transactions; jobs may wait for a worker
//! for any time; commits of starts may take any time, and each worker may ask with any of the leads; a clock that was ahead
//! may have written a bucket. What must hold: in no second are more admitted, or
//! started, than the rate and its burst; and everything that waits is started in the end, in every schedule.

use hooksaga_saga::{Lead, RateLimit, Timestamp};
use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

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
    /// A start is counted for the moment at which it will happen, not for that of the question.
    CountedForItsMoment,
    /// What was counted for a moment that has passed when the answer comes is not started.
    LateIsVoid,
    /// A bucket that a clock which was ahead has written is stored as an empty one, also if nothing passes.
    AheadIsForgotten,
}

use Guard::{
    AdmissionGate, AdmissionInOneCommit, AheadIsForgotten, BucketLock, ClockAfterLock, CountedForItsMoment,
    LateIsVoid, StartGate,
};

const ALL: [Guard; 8] = [
    AdmissionGate,
    AdmissionInOneCommit,
    StartGate,
    BucketLock,
    ClockAfterLock,
    CountedForItsMoment,
    LateIsVoid,
    AheadIsForgotten,
];

/// How far ahead a worker may ask, in ticks: not at all, and by half a second, and as far as any.
const LEADS: [u8; 3] = [0, 2, 16];

/// Where a clock that was ahead puts a bucket: a year, which no run waits for.
const AHEAD: i8 = 100;
/// As long as anybody waits for a lock, and as far back as a bucket's time makes a difference.
const LOCK_WAIT: u8 = 5 * SECOND;
/// Further back than a clock that was read before such a wait.
const LONG_FULL: i8 = -24;

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
    /// A start is counted for a moment so many ticks from now, and the answer may be there; -1: the moment has passed.
    Reserved(i8),
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
        // What was counted before the clock was set, and has not started yet, is counted on another clock.
        let reserved = |worker: &Worker| matches!(worker, Worker::Reserved(_));
        if !state.was_ahead && !state.workers.iter().any(reserved) {
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
        let (passed, stored) = admit(state.admission);
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
            Worker::Claimed => self.reserve(state.start, state.start, 0, &mut to),
            Worker::Waits(since) => self.reserve(state.start, state.start, since, &mut to),
            Worker::Read(full_at) => self.reserve(full_at, state.start, 0, &mut to),
            Worker::Reserved(0) => to(Worker::Idle, true, &begin),
            Worker::Reserved(-1) if !self.has(LateIsVoid) => to(Worker::Idle, true, &begin),
            Worker::Reserved(-1) => to(Worker::Idle, true, &|after| after.jobs += 1),
            Worker::Reserved(_) => {}
        }
        // It dies, or hands the job back: that is there again.
        if state.workers[copy] != Worker::Idle {
            to(Worker::Idle, false, &|after| after.jobs += 1);
        }
    }

    /// Under the lock: what the bucket counts starts when the answer is there and its moment has come. `read`: what this worker
    /// has read, and how many ticks ago it has read the clock.
    fn reserve(
        &self,
        read: i8,
        stored: i8,
        since: u8,
        to: &mut impl FnMut(Worker, bool, &dyn Fn(&mut State)),
    ) {
        for lead in LEADS {
            let counted = if self.has(CountedForItsMoment) { lead } else { 0 };
            match reserve(read, since, counted) {
                (Some(moment), full_at) => {
                    let moment = if self.has(CountedForItsMoment) { moment } else { moment + ticks(lead) };
                    to(Worker::Reserved(moment.max(PASSED)), true, &|after| after.start = full_at);
                }
                (None, full_at) if full_at != stored && self.has(AheadIsForgotten) => {
                    to(Worker::Claimed, true, &|after| after.start = full_at);
                }
                (None, _) => {}
            }
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
                Worker::Reserved(moment) => *moment = (*moment - 1).max(PASSED),
                Worker::Idle | Worker::Claimed => {}
            }
        }
        after
    }
}

/// A moment that has passed.
const PASSED: i8 = -1;

fn at(ticks: i8) -> Timestamp {
    Timestamp::from_micros((1_000 + i64::from(ticks)) * TICK)
}

fn ticks_until(at_last: Timestamp) -> i8 {
    i8::try_from((at_last.as_micros() - at(0).as_micros()).div_euclid(TICK)).unwrap().max(LONG_FULL)
}

fn ticks(number: u8) -> i8 {
    i8::try_from(number).unwrap()
}

fn time_of(ticks: u8) -> Duration {
    Duration::from_millis(250) * ticks.into()
}

/// Whether one more is admitted by a bucket that is full in `full_at` ticks, and the bucket afterwards.
fn admit(full_at: i8) -> (bool, i8) {
    let passage = RateLimit::per_second(RATE).pass(Some(at(full_at)), 1, at(0));
    (passage.passed == 1, ticks_until(passage.full_at))
}

/// In how many ticks one more may start by a bucket that is full in `full_at` ticks, by a clock that was read that many ticks
/// ago; and the bucket afterwards.
fn reserve(full_at: i8, clock_read: u8, lead: u8) -> (Option<i8>, i8) {
    let (now, lead) = (at(-ticks(clock_read)), Lead::new(time_of(lead)));
    let reserved = RateLimit::per_second(RATE).reserve(Some(at(full_at)), 1, now, lead);
    let moment = now.after(lead.shortest() + reserved.last);
    ((reserved.jobs == 1).then(|| ticks_until(moment)), ticks_until(reserved.full_at))
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
        // To somebody who waited for the lock, what others have reserved since lies further ahead than anybody reserves.
        (ClockAfterLock, STARTED),
        // Two workers that ask with different leads.
        (CountedForItsMoment, STARTED),
        // Two workers whose commits take different times.
        (LateIsVoid, STARTED),
        (AheadIsForgotten, STUCK),
    ] {
        assert_eq!(without(Some(guard)), Err(violation), "{guard:?}");
    }
}
