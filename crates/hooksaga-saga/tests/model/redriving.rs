//! A model check of its own for redrives and for catching up after a verification: docs/STATE_MACHINE.md numbers them 9
//! to 11.
//!
//! A subscription is verified, its URL changes, and it is verified again. Two events come at any time, each in a
//! transaction that takes its time of creation at its beginning and may commit much later. A router routes them, and two
//! redrivers let the subscription catch up, with the real [`hooksaga_saga::choose`]. A redrive of events uses the same
//! scan. A separate run scans two dead letters instead, which an operator may requeue by hand at the same time; there a
//! "saga" is one of the next generation. Any process may die between any two of its transactions. What must hold: never
//! two sagas of one event, and once faults stop, exactly one of each, in every schedule.

use hooksaga_saga::{Fate, choose};
use std::collections::{HashMap, VecDeque};

const EVENTS: usize = 2;

/// What keeps it right. Each can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// The verification and the row that queues the catching up are one commit.
    QueuedWithVerification,
    /// The scan ends at the time of its first step, which is after the verification; else at the time when the challenge
    /// was answered, before the verification's commit.
    EndsAfterVerification,
    /// The router queues an event that it routes as unverified though it is older than the change of the URL, where the scan
    /// begins.
    EarlyMissQueued,
    /// The sagas of a step and how far it came are one commit; else the progress is written first.
    ProgressWithSagas,
    /// Unique key (event, subscription, generation), on conflict nothing.
    SagaKey,
    /// A step begins with the lock on its row (SKIP LOCKED), or ends only if the row stands where it was read.
    StepGuarded,
    /// The router reads the subscription after it has locked the event's queue row: SQLite, MySQL and MariaDB.
    RouteReadsAfterLock,
    /// The router reads queue and subscription in one snapshot, which is older than its lock, and routes nothing that it did
    /// not see queued: PostgreSQL.
    RouteOneSnapshot,
    /// A redrive that was cancelled does nothing more: the step asks for the status again when it writes.
    StatusChecked,
}

use Guard::{
    EarlyMissQueued, EndsAfterVerification, ProgressWithSagas, QueuedWithVerification, RouteOneSnapshot,
    RouteReadsAfterLock, SagaKey, StatusChecked, StepGuarded,
};

/// SQLite, MySQL and MariaDB.
const LOCKED_FIRST: [Guard; 8] = [
    EarlyMissQueued,
    QueuedWithVerification,
    EndsAfterVerification,
    ProgressWithSagas,
    SagaKey,
    StepGuarded,
    RouteReadsAfterLock,
    StatusChecked,
];
const POSTGRES: [Guard; 8] = [
    EarlyMissQueued,
    QueuedWithVerification,
    EndsAfterVerification,
    ProgressWithSagas,
    SagaKey,
    StepGuarded,
    RouteOneSnapshot,
    StatusChecked,
];
/// Each back end's form, with the guard of its router.
const FORMS: [([Guard; 8], Guard); 2] = [(LOCKED_FIRST, RouteReadsAfterLock), (POSTGRES, RouteOneSnapshot)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    /// In the order of their creation.
    events: [Event; EVENTS],
    /// Sagas of each event.
    sagas: [u8; EVENTS],
    verified: bool,
    verifier: Verifier,
    /// The events that were created before the URL changed.
    since: u8,
    /// The scan that the verification queues, or a redrive; and one for each event that the router queues.
    scans: [Option<Scan>; 1 + EVENTS],
    cancelled: bool,
    /// Ghost: sagas when it was cancelled.
    sagas_then: [u8; EVENTS],
    routers: [Router; 2],
    redrivers: [Redriver; 2],
    /// An operator has seen that this letter was not requeued, and will requeue it.
    operator: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Event {
    Absent,
    /// Created, in a transaction that has not committed.
    Open,
    Queued,
    Routed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verifier {
    /// The URL has not changed.
    Verified,
    Waiting,
    /// The number of events that existed when the challenge was returned.
    Answered(u8),
    /// Has verified, and has not queued the catching up.
    OwesQueue(u8),
    Done,
}

/// The row of a redrive, or of a subscription that catches up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Scan {
    /// Events behind this place are not examined; `None`: the first step says.
    until: Option<u8>,
    after: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Router {
    Idle,
    /// Has read whether the subscription is verified and which events are queued, and locked nothing.
    Read(bool, [bool; EVENTS]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Redriver {
    Idle,
    /// Has examined the events from here to there; `send`: this one has no saga.
    Examined {
        scan: u8,
        after: u8,
        until: u8,
        reached: u8,
        send: Option<u8>,
        end: bool,
    },
    /// Has stored the progress, and not the saga.
    Owes(u8),
}

struct Model {
    guards: Vec<Guard>,
    /// Somebody may cancel it.
    cancelling: bool,
    /// A redrive of dead letters, all of which are there from the beginning.
    letters: bool,
}

impl Model {
    fn has(&self, guard: Guard) -> bool {
        self.guards.contains(&guard)
    }

    /// The next states, and whether the step may be relied on.
    fn steps(&self, state: &State) -> Vec<(State, bool)> {
        let mut next = Vec::new();
        if let Some(event) = state.events.iter().position(|event| *event == Event::Absent) {
            let mut after = *state;
            after.events[event] = Event::Open;
            next.push((after, true));
        }
        for event in (0..EVENTS).filter(|event| state.events[*event] == Event::Open) {
            let mut after = *state;
            after.events[event] = Event::Queued;
            next.push((after, true));
        }
        self.verifying(state, &mut next);
        for copy in 0..2 {
            self.routing(state, copy, &mut next);
            self.redriving(state, copy, &mut next);
            for (after, faulty) in self.crashed(state, copy) {
                next.push((after, !faulty));
            }
        }
        if self.letters {
            self.requeueing(state, &mut next);
        }
        if self.cancelling && state.scans[0].is_some() && !state.cancelled {
            next.push((State { cancelled: true, sagas_then: state.sagas, ..*state }, false));
        }
        next
    }

    fn verifying(&self, state: &State, next: &mut Vec<(State, bool)>) {
        let there = state.created();
        let scans = |answered: u8| {
            let mut scans = state.scans;
            let until = (!self.has(EndsAfterVerification)).then_some(answered);
            scans[0] = Some(Scan { until, after: state.since });
            scans
        };
        match state.verifier {
            Verifier::Verified => {
                let verifier = Verifier::Waiting;
                next.push((State { verified: false, verifier, since: there, ..*state }, true));
            }
            Verifier::Waiting => next.push((State { verifier: Verifier::Answered(there), ..*state }, true)),
            Verifier::Answered(answered) if self.has(QueuedWithVerification) => {
                let verifier = Verifier::Done;
                next.push((State { verified: true, verifier, scans: scans(answered), ..*state }, true));
            }
            Verifier::Answered(answered) => {
                let verifier = Verifier::OwesQueue(answered);
                next.push((State { verified: true, verifier, ..*state }, true));
            }
            Verifier::OwesQueue(answered) => {
                next.push((State { verifier: Verifier::Done, scans: scans(answered), ..*state }, true));
                // It dies, and its successor finds the subscription verified.
                next.push((State { verifier: Verifier::Done, ..*state }, false));
            }
            Verifier::Done => {}
        }
    }

    fn routing(&self, state: &State, copy: usize, next: &mut Vec<(State, bool)>) {
        let queued = state.events.map(|event| event == Event::Queued);
        let (verified, seen) = match state.routers[copy] {
            Router::Read(verified, seen) if self.has(RouteOneSnapshot) => (verified, seen),
            Router::Read(verified, _) => (verified, queued),
            Router::Idle if self.has(RouteReadsAfterLock) => (state.verified, queued),
            Router::Idle => {
                let mut after = *state;
                after.routers[copy] = Router::Read(state.verified, queued);
                // Nobody has to read an empty queue.
                next.push((after, queued.contains(&true)));
                return;
            }
        };
        let mut after = *state;
        after.routers[copy] = Router::Idle;
        match (0..EVENTS).find(|event| queued[*event] && seen[*event]) {
            Some(event) => {
                after.events[event] = Event::Routed;
                if verified {
                    self.insert(&mut after, event);
                } else if self.has(EarlyMissQueued) && event < usize::from(state.since) {
                    let place = u8::try_from(event).unwrap();
                    after.scans[1 + event] = Some(Scan { until: Some(place + 1), after: place });
                }
                next.push((after, true));
            }
            // What it saw was routed by another.
            None if self.has(RouteOneSnapshot) => next.push((after, true)),
            None => {}
        }
    }

    /// By hand: the read and the insert are two steps, and nobody has to want it.
    fn requeueing(&self, state: &State, next: &mut Vec<(State, bool)>) {
        if let Some(letter) = state.operator {
            let mut after = State { operator: None, ..*state };
            next.push((after, false));
            self.insert(&mut after, usize::from(letter));
            next.push((after, false));
            return;
        }
        for letter in (0_u8..).zip(state.sagas).filter(|(_, sagas)| *sagas == 0).map(|(letter, _)| letter) {
            next.push((State { operator: Some(letter), ..*state }, false));
        }
    }

    fn insert(&self, state: &mut State, event: usize) {
        if state.sagas[event] == 0 || !self.has(SagaKey) {
            state.sagas[event] += 1;
        }
    }

    fn redriving(&self, state: &State, copy: usize, next: &mut Vec<(State, bool)>) {
        let mut after = *state;
        match state.redrivers[copy] {
            // One that is not verified waits.
            Redriver::Idle if !state.cancelled && state.verified => {
                for (number, scan) in (0_u8..).zip(state.scans) {
                    let Some(scan) = scan else { continue };
                    after.redrivers[copy] = examine(state, number, scan);
                    next.push((after, true));
                }
            }
            Redriver::Examined { scan: number, after: seen, until, reached, send, end } => {
                after.redrivers[copy] = Redriver::Idle;
                let scan = state.scans[usize::from(number)];
                let stands = scan.is_some_and(|scan| scan.after == seen);
                let refused =
                    (self.has(StepGuarded) && !stands) || (self.has(StatusChecked) && state.cancelled);
                if refused {
                    next.push((after, true));
                    return;
                }
                after.scans[usize::from(number)] =
                    (!end).then_some(Scan { until: Some(until), after: reached });
                match send {
                    Some(event) if !self.has(ProgressWithSagas) => {
                        after.redrivers[copy] = Redriver::Owes(event)
                    }
                    Some(event) => self.insert(&mut after, usize::from(event)),
                    None => {}
                }
                next.push((after, true));
            }
            Redriver::Owes(event) => {
                after.redrivers[copy] = Redriver::Idle;
                self.insert(&mut after, usize::from(event));
                next.push((after, true));
            }
            Redriver::Idle => {}
        }
    }

    /// A process dies; what it remembers is gone.
    fn crashed(&self, state: &State, copy: usize) -> Vec<(State, bool)> {
        let (mut router, mut redriver) = (*state, *state);
        router.routers[copy] = Router::Idle;
        redriver.redrivers[copy] = Redriver::Idle;
        [router, redriver].into_iter().filter(|after| after != state).map(|after| (after, true)).collect()
    }

    /// Every state that can be reached; or why one must not be.
    fn explore(&self) -> Result<usize, &'static str> {
        let mut first = State {
            events: [Event::Absent; EVENTS],
            sagas: [0; EVENTS],
            verified: true,
            verifier: Verifier::Verified,
            since: 0,
            scans: [None; 1 + EVENTS],
            cancelled: false,
            sagas_then: [0; EVENTS],
            routers: [Router::Idle; 2],
            redrivers: [Redriver::Idle; 2],
            operator: None,
        };
        if self.letters {
            first.events = [Event::Routed; EVENTS];
            first.verifier = Verifier::Done;
            first.scans[0] = Some(Scan { until: Some(u8::try_from(EVENTS).unwrap()), after: 0 });
        }
        let mut seen = HashMap::from([(first, ())]);
        let mut queue = VecDeque::from([first]);
        while let Some(state) = queue.pop_front() {
            if state.sagas.iter().any(|sagas| *sagas > 1) {
                return Err(TWICE);
            }
            let next = self.steps(&state);
            // Calm steps only lead on, so an end is reached by all of them or by none.
            let finished = state.sagas == [1; EVENTS] || state.cancelled;
            if !next.iter().any(|(after, calm)| *calm && *after != state) && !finished {
                return Err(LOST);
            }
            for (mut after, _) in next {
                let routed_now = (0..EVENTS).any(|event| after.events[event] != state.events[event]);
                let by_hand = after.operator != state.operator;
                if state.cancelled && !routed_now && !by_hand && after.sagas != state.sagas {
                    return Err(AFTER_CANCEL);
                }
                after.routers.sort_unstable();
                after.redrivers.sort_unstable();
                if seen.insert(after, ()).is_none() {
                    queue.push_back(after);
                }
            }
        }
        Ok(seen.len())
    }
}

impl State {
    fn created(&self) -> u8 {
        u8::try_from(self.events.iter().filter(|event| **event != Event::Absent).count()).unwrap()
    }
}

/// What a step finds behind where the scan is. What is not committed cannot be seen.
fn examine(state: &State, number: u8, scan: Scan) -> Redriver {
    let until = scan.until.unwrap_or_else(|| state.created());
    let seen = (scan.after..until).filter(|event| state.events[usize::from(*event)] > Event::Open);
    let fate = |event: u8| if state.sagas[usize::from(event)] > 0 { Fate::Skip } else { Fate::Send };
    let rows: Vec<(u8, Fate)> = seen.map(|event| (event, fate(event))).collect();
    // One saga a step: the smallest steps have the most places to die at.
    let chosen = choose(&rows, 1, true);
    Redriver::Examined {
        scan: number,
        after: scan.after,
        until,
        reached: chosen.reached.map_or(scan.after, |event| event + 1),
        send: chosen.send.first().copied(),
        end: chosen.is_end,
    }
}

const TWICE: &str = "an event has two sagas";
const LOST: &str = "everything has ended, and an event has no saga";
const AFTER_CANCEL: &str = "a redrive that was cancelled made a saga";

fn without(form: &[Guard], left_out: &[Guard], cancelling: bool) -> Result<usize, &'static str> {
    let guards = form.iter().copied().filter(|guard| !left_out.contains(guard)).collect();
    Model { guards, cancelling, letters: false }.explore()
}

/// No router has to do with letters: the forms are the same.
fn letters_without(left_out: &[Guard], cancelling: bool) -> Result<usize, &'static str> {
    let guards = LOCKED_FIRST.into_iter().filter(|guard| !left_out.contains(guard)).collect();
    Model { guards, cancelling, letters: true }.explore()
}

/// Beside an operator who requeues the same letters by hand.
#[test]
fn every_letter_is_sent_again_once() {
    for cancelling in [false, true] {
        let states = letters_without(&[], cancelling).unwrap();
        assert!(states >= 50, "{states} states: it explores what it should");
    }
    for (left_out, cancelling, violation) in [
        (&[ProgressWithSagas][..], false, LOST),
        (&[SagaKey], false, TWICE),
        (&[StatusChecked], true, AFTER_CANCEL),
    ] {
        assert_eq!(letters_without(left_out, cancelling), Err(violation), "{left_out:?}");
    }
}

fn every_event_gets_its_saga_once(form: &[Guard]) {
    for cancelling in [false, true] {
        let states = without(form, &[], cancelling).unwrap();
        assert!(states >= 200, "{states} states: it explores what it should");
    }
}

#[test]
fn every_event_gets_its_saga_once_on_sqlite_and_mysql() {
    every_event_gets_its_saga_once(&LOCKED_FIRST);
}

#[test]
fn every_event_gets_its_saga_once_on_postgres() {
    every_event_gets_its_saga_once(&POSTGRES);
}

/// Each alone, or with the one that backs it up: then there is a counterexample.
#[test]
fn each_guard_left_out_is_missed() {
    for (form, routers) in FORMS {
        for (left_out, cancelling, violation) in [
            // A crash after the verification: nobody catches up.
            (&[QueuedWithVerification][..], false, LOST),
            // An event that was routed between the answer and the commit of the verification.
            (&[EndsAfterVerification], false, LOST),
            // An event that was created before the URL changed, and routed after it.
            (&[EarlyMissQueued], false, LOST),
            // A crash after the progress.
            (&[ProgressWithSagas], false, LOST),
            // The router and a redriver make the same saga.
            (&[SagaKey], false, TWICE),
            // The list was read before the event came, and the scan has ended.
            (&[routers], false, LOST),
            // A redriver that had examined it before it was cancelled.
            (&[StatusChecked], true, AFTER_CANCEL),
        ] {
            assert_eq!(without(&form, left_out, cancelling), Err(violation), "{left_out:?} of {form:?}");
        }
    }
}

/// A step that two redrivers take is harmless for the sagas, whose key lets one in; it would count twice, and set the
/// progress back, which the schema refuses. So it is the key's backup here, and the counts' only guard.
#[test]
fn a_step_taken_twice_makes_no_second_saga() {
    for (form, _) in FORMS {
        assert!(without(&form, &[StepGuarded], false).is_ok());
        assert_eq!(without(&form, &[StepGuarded, SagaKey], false), Err(TWICE));
    }
}
