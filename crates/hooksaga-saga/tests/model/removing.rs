//! A model check of its own for the janitor: one event with what was sent of it, two janitors, and an operator who sends it
//! again meanwhile, with the real [`hooksaga_saga::may_go`].
//!
//! The sagas of the event go one at a time, the event with the last. The first step decides about the whole event and
//! lists it; later ones look at their own saga only, as the SQL does (`remove_part`). Times are kept as ages, which stop
//! growing when they no longer make a difference, so that time itself needs no end. Any janitor may die between any two
//! of its transactions; a removal may be forgotten by a crash of the database although it was acknowledged (its commit
//! does not wait for the disk).
//!
//! There are two named runs. On one server both sides lock the event, so a decision and its commit are one step. In a Galera
//! Cluster locks do not reach the other node: a decision and its commit are two, and the commit fails if the other side has
//! written the common key (`event_locks`) in between.
//!
//! What must hold: nothing goes that is open, too young, or not in the archive; no saga is left without its event;
//! nothing is sent again of which a part is gone; and once nobody sends anything again, everything goes, in every
//! schedule.

use hooksaga_saga::{EventRemains, Retention, Timestamp, may_go};
use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

/// A minute: the shortest time for which anything is kept.
const TICK: u64 = 60;
const RETENTION: Retention =
    Retention { finished: Duration::from_secs(TICK), dead_letters: Some(Duration::from_secs(2 * TICK)) };
/// Older is all the same: a letter is kept for two ticks, and was found one tick before.
const OLDEST: u8 = 4;
const SAGAS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// What goes is in the archive, on disk, before it goes.
    ArchivedFirst,
    /// What may go is decided once more by the transaction that removes it.
    DecidedAgain,
    /// … as of the time at which the event was found: what changed since then is not in the archive.
    DecidedAsFound,
    /// The event is locked from that decision to the commit.
    RemovalLocks,
    /// Whoever sends an event again locks it, and makes nothing if it is gone.
    SendingAgainLocks,
    /// An event of which some went is listed (`removals`) until it is gone.
    ListedUntilGone,
    /// Whoever sends again makes nothing of an event that is listed (`is_going`).
    GoingIsNotSent,
    /// Both sides write one key before they decide: of two at once, only one commits.
    CommonKey,
}

use Guard::{
    ArchivedFirst, CommonKey, DecidedAgain, DecidedAsFound, GoingIsNotSent, ListedUntilGone, RemovalLocks,
    SendingAgainLocks,
};

/// One server: SQLite, PostgreSQL, MySQL, MariaDB.
const ONE_SERVER: [Guard; 7] = [
    ArchivedFirst,
    DecidedAgain,
    DecidedAsFound,
    RemovalLocks,
    SendingAgainLocks,
    ListedUntilGone,
    GoingIsNotSent,
];
/// The janitor on one node, the operator on another.
const GALERA: [Guard; 6] =
    [ArchivedFirst, DecidedAgain, DecidedAsFound, ListedUntilGone, GoingIsNotSent, CommonKey];

/// How long ago, in ticks.
type Age = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Status {
    Open,
    Completed,
    /// With the age of its letter, once that is written.
    Dead(Option<Age>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Saga {
    status: Status,
    changed: Age,
    /// Its end, and its letter, are in the archive.
    archived: bool,
}

impl Saga {
    /// Nothing of it changes any more.
    fn is_settled(self) -> bool {
        matches!(self.status, Status::Completed | Status::Dead(Some(_)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Janitor {
    Idle,
    /// Has found the event this many ticks ago.
    Found(Age),
    /// Has written what it found to the archive.
    Archived(Age),
    /// Has decided, and holds no lock; the key was as it was then.
    Decided(Age, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operator {
    Idle,
    /// Has read an ended saga, to make the next one.
    Asked,
    /// Has seen that the event is there and not going, and holds no lock; the key was as it was then.
    Decided(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The event's age; nothing when it is gone.
    event: Option<Age>,
    queued: bool,
    event_archived: bool,
    sagas: [Option<Saga>; SAGAS],
    /// The next place: one saga is routed, the others are sent again.
    next: u8,
    janitors: [Janitor; 2],
    operator: Operator,
    /// On the list of what is being removed.
    listed: bool,
    /// Ghost: a part of it is gone.
    begun: bool,
    /// How often the common key was written.
    key: u8,
}

/// A step: where it leads, whether it may be relied on, and whether it removes.
struct Step {
    after: State,
    calm: bool,
}

struct Model(Vec<Guard>);

impl Model {
    fn has(&self, guard: Guard) -> bool {
        self.0.contains(&guard)
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        let mut next = Vec::new();
        let mut add = |calm: bool, after: State| {
            if after != *state {
                next.push(Step { after, calm });
            }
        };
        add(true, state.older());
        if state.queued {
            let mut after = State { queued: false, next: 1, ..*state };
            after.sagas[0] = Some(OPEN);
            add(true, after);
        }
        for (place, saga) in state.sagas.iter().enumerate() {
            let Some(saga) = saga else { continue };
            let ends: &[Status] = match saga.status {
                Status::Open => &[Status::Completed, Status::Dead(None)],
                Status::Dead(None) => &[Status::Dead(Some(0))],
                Status::Completed | Status::Dead(Some(_)) => &[],
            };
            for status in ends {
                let changed = if saga.status == Status::Open { 0 } else { saga.changed };
                let mut after = *state;
                after.sagas[place] = Some(Saga { status: *status, changed, archived: false });
                add(true, after);
            }
        }
        self.operator(state, &mut add);
        for copy in 0..2 {
            self.janitor(state, copy, &mut add);
        }
        next
    }

    fn operator(&self, state: &State, add: &mut impl FnMut(bool, State)) {
        let idle = State { operator: Operator::Idle, ..*state };
        let sent = || {
            let mut after = idle;
            after.sagas[usize::from(state.next)] = Some(OPEN);
            after.next += 1;
            after.key += u8::from(self.has(CommonKey));
            after
        };
        let is_there = state.event.is_some() && !(self.has(GoingIsNotSent) && state.listed);
        let ended = state.sagas.iter().flatten().any(|saga| saga.status != Status::Open);
        match state.operator {
            Operator::Idle if ended && state.event.is_some() && usize::from(state.next) < SAGAS => {
                add(false, State { operator: Operator::Asked, ..*state });
            }
            Operator::Idle => {}
            Operator::Asked => {
                add(false, idle);
                add(
                    true,
                    match () {
                        () if self.has(SendingAgainLocks) => {
                            if is_there {
                                sent()
                            } else {
                                idle
                            }
                        }
                        () if !is_there && self.has(CommonKey) => idle,
                        () if self.has(CommonKey) => {
                            State { operator: Operator::Decided(state.key), ..*state }
                        }
                        () => sent(),
                    },
                );
            }
            Operator::Decided(key) => {
                add(false, idle);
                add(true, if key == state.key { sent() } else { idle });
            }
        }
    }

    fn janitor(&self, state: &State, copy: usize, add: &mut impl FnMut(bool, State)) {
        let to = |memory: Janitor, mut state: State| {
            state.janitors[copy] = memory;
            state
        };
        match state.janitors[copy] {
            Janitor::Idle => {
                if state.may_go(0) {
                    add(true, to(Janitor::Found(0), *state));
                }
                return;
            }
            Janitor::Found(age) if self.has(ArchivedFirst) => {
                let mut after = to(Janitor::Archived(age), *state);
                after.event_archived |= after.event.is_some();
                for saga in after.sagas.iter_mut().flatten() {
                    saga.archived |= saga.is_settled();
                }
                add(true, after);
            }
            Janitor::Found(age) | Janitor::Archived(age) if self.has(RemovalLocks) => {
                if state.event.is_some() && self.decides(state, age) {
                    self.remove(state, copy, age, add);
                } else {
                    add(true, to(Janitor::Idle, *state));
                }
            }
            Janitor::Found(age) | Janitor::Archived(age) => {
                let goes = state.event.is_some() && self.decides(state, age);
                let memory = if goes { Janitor::Decided(age, state.key) } else { Janitor::Idle };
                add(true, to(memory, *state));
            }
            Janitor::Decided(age, key) => {
                if state.event.is_some() && (!self.has(CommonKey) || key == state.key) {
                    self.remove(state, copy, age, add);
                } else {
                    add(true, to(Janitor::Idle, *state));
                }
            }
        }
        // It dies.
        add(false, to(Janitor::Idle, *state));
    }

    /// The first step looks at the whole event, later ones at the saga that is to go.
    fn decides(&self, state: &State, found: Age) -> bool {
        let as_of = if self.has(DecidedAsFound) { found } else { 0 };
        let mut looked_at = *state;
        if state.listed
            && let Some(place) = state.sagas.iter().position(Option::is_some)
        {
            looked_at.sagas = [None; SAGAS];
            looked_at.sagas[0] = state.sagas[place];
        }
        !self.has(DecidedAgain) || looked_at.may_go(as_of)
    }

    /// One saga goes; with the last one the event. A crash of the database may forget it, and the janitor may not hear of
    /// it.
    fn remove(&self, state: &State, copy: usize, age: Age, add: &mut impl FnMut(bool, State)) {
        let mut after = *state;
        if let Some(saga) = after.sagas.iter_mut().find(|saga| saga.is_some()) {
            *saga = None;
        }
        after.key += u8::from(self.has(CommonKey));
        let memory = if after.sagas.iter().all(Option::is_none) {
            (after.event, after.listed, after.begun) = (None, false, false);
            Janitor::Idle
        } else {
            (after.listed, after.begun) = (self.has(ListedUntilGone), true);
            Janitor::Archived(age)
        };
        add(false, after);
        for (calm, mut after) in [(true, after), (false, *state)] {
            after.janitors[copy] = memory;
            add(calm, after);
        }
    }

    /// How many states there are; or why one must not be.
    fn explore(&self) -> Result<usize, &'static str> {
        let first = State {
            event: Some(0),
            queued: true,
            event_archived: false,
            sagas: [None; SAGAS],
            next: 0,
            janitors: [Janitor::Idle; 2],
            operator: Operator::Idle,
            listed: false,
            begun: false,
            key: 0,
        };
        let mut seen = HashSet::from([first]);
        let mut queue = VecDeque::from([first]);
        while let Some(state) = queue.pop_front() {
            let next = self.steps(&state);
            if !next.iter().any(|step| step.calm) && state.event.is_some() {
                return Err(STAYS);
            }
            for Step { mut after, .. } in next {
                check(&state, &after)?;
                after.janitors.sort_unstable();
                if seen.insert(after) {
                    queue.push_back(after);
                }
            }
        }
        Ok(seen.len())
    }
}

const OPEN: Saga = Saga { status: Status::Open, changed: 0, archived: false };

impl State {
    /// A tick later.
    fn older(mut self) -> Self {
        let grow = |age: &mut Age| *age = (*age + 1).min(OLDEST);
        self.event.iter_mut().for_each(grow);
        for saga in self.sagas.iter_mut().flatten() {
            grow(&mut saga.changed);
            if let Status::Dead(Some(letter)) = &mut saga.status {
                grow(letter);
            }
        }
        for janitor in &mut self.janitors {
            match janitor {
                Janitor::Found(age) | Janitor::Archived(age) | Janitor::Decided(age, _) => grow(age),
                Janitor::Idle => {}
            }
        }
        self
    }

    /// What the product's code says, as of this many ticks ago.
    fn may_go(&self, as_of: Age) -> bool {
        let Some(created) = self.event else { return false };
        let at =
            |age: Age| Timestamp::from_micros(1_000_000 * i64::try_from(TICK).unwrap() * i64::from(10 - age));
        let sagas = || self.sagas.iter().flatten();
        let count = |fits: &dyn Fn(Status) -> bool| {
            u32::try_from(sagas().filter(|saga| fits(saga.status)).count()).unwrap()
        };
        let letter = |saga: &Saga| match saga.status {
            Status::Dead(letter) => letter,
            Status::Open | Status::Completed => None,
        };
        let event = EventRemains {
            created_at: at(created),
            is_queued: self.queued,
            open_sagas: count(&|status| status == Status::Open),
            dead_sagas: count(&|status| matches!(status, Status::Dead(_))),
            last_change: sagas().map(|saga| at(saga.changed)).max(),
            letters: count(&|status| matches!(status, Status::Dead(Some(_)))),
            last_letter: sagas().filter_map(letter).map(at).max(),
        };
        may_go(&event, &RETENTION, at(as_of))
    }
}

const REMOVED_OPEN: &str = "something went that was open or too young";
const NOT_ARCHIVED: &str = "something went that is not in the archive";
const ORPHAN: &str = "a saga without its event";
const HALF_SENT: &str = "something was sent again of which a part is gone";
const STAYS: &str = "everything has ended, and history stays";

fn check(before: &State, after: &State) -> Result<(), &'static str> {
    if after.event.is_none() && after.sagas.iter().any(Option::is_some) {
        return Err(ORPHAN);
    }
    if before.begun && after.next > before.next {
        return Err(HALF_SENT);
    }
    for (old, new) in before.sagas.iter().zip(&after.sagas) {
        let (Some(old), None) = (old, new) else { continue };
        let is_old = match old.status {
            Status::Open | Status::Dead(None) => false,
            Status::Completed => old.changed >= 1,
            Status::Dead(Some(letter)) => letter >= 2,
        };
        if !is_old {
            return Err(REMOVED_OPEN);
        }
        if !old.archived {
            return Err(NOT_ARCHIVED);
        }
    }
    if before.event.is_some() && after.event.is_none() && !before.event_archived {
        return Err(NOT_ARCHIVED);
    }
    Ok(())
}

fn without(run: &[Guard], left_out: Option<Guard>) -> Result<usize, &'static str> {
    Model(run.iter().copied().filter(|guard| Some(*guard) != left_out).collect()).explore()
}

#[test]
fn what_goes_is_old_final_and_archived_and_everything_goes() {
    let states = without(&ONE_SERVER, None).unwrap();
    assert!(states >= 5_000, "{states} states: it explores what it should");
}

#[test]
fn the_same_on_two_nodes_of_a_galera_cluster() {
    let states = without(&GALERA, None).unwrap();
    assert!(states >= 5_000, "{states} states: it explores what it should");
}

#[test]
fn each_guard_of_the_janitor_is_needed() {
    for (guard, violation) in [
        (ArchivedFirst, NOT_ARCHIVED),
        // Sent again after it was found.
        (DecidedAgain, REMOVED_OPEN),
        // Sent again after it was archived, and that ended long ago by now.
        (DecidedAsFound, NOT_ARCHIVED),
        // Sent again between the decision and the removal.
        (RemovalLocks, REMOVED_OPEN),
        // The event went after an operator had looked at it.
        (SendingAgainLocks, ORPHAN),
        // Sent again between two steps.
        (ListedUntilGone, HALF_SENT),
        (GoingIsNotSent, HALF_SENT),
    ] {
        assert_eq!(without(&ONE_SERVER, Some(guard)), Err(violation), "{guard:?}");
    }
}

#[test]
fn each_guard_of_the_janitor_is_needed_on_galera() {
    for (guard, violation) in [
        (ArchivedFirst, NOT_ARCHIVED),
        (DecidedAgain, REMOVED_OPEN),
        (DecidedAsFound, NOT_ARCHIVED),
        (ListedUntilGone, HALF_SENT),
        (GoingIsNotSent, HALF_SENT),
        // Both commit, each on its node.
        (CommonKey, ORPHAN),
    ] {
        assert_eq!(without(&GALERA, Some(guard)), Err(violation), "{guard:?}");
    }
}
