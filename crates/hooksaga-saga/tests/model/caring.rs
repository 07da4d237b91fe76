//! The caretaker's transactions, explored like the others: two caretakers, crashes at any point, and an endpoint that
//! fails, recovers and is activated again meanwhile.
//!
//! A small model of its own: to a delivery, disabling is the pause that the large model has, and nothing else of the
//! caretaker touches a saga or a job.

use std::collections::{BTreeSet, HashSet, VecDeque};

/// Runs of failures, by the time at which they began.
type Run = u8;
const RUNS: Run = 3;

/// What one caretaker remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Caretaker {
    Idle,
    /// It has read this run, and that it lasts long enough.
    Judged(Run),
    /// The protocol with a guard left out: disabled, and not noted yet.
    OwesNote(Run),
    /// It has read these announcements.
    Announces(BTreeSet<Run>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    active: bool,
    run: Option<Run>,
    began: Run,
    /// Runs that ended with a success or an activation.
    over: BTreeSet<Run>,
    /// Runs that a subscription was disabled for, in this order.
    disabled: Vec<Run>,
    noted: BTreeSet<Run>,
    /// Events that were appended.
    events: Vec<Run>,
    caretakers: [Caretaker; 2],
}

/// The guards, each of which can be left out.
#[derive(Clone, Copy)]
struct Guards {
    /// A run is disabled only if it is still the one that was read.
    same_run: bool,
    /// Disabling and the note are one commit.
    one_commit: bool,
    /// The events' unique key.
    external_id: bool,
}

const ALL: Guards = Guards { same_run: true, one_commit: true, external_id: true };

impl State {
    const START: Self = Self {
        active: true,
        run: None,
        began: 0,
        over: BTreeSet::new(),
        disabled: Vec::new(),
        noted: BTreeSet::new(),
        events: Vec::new(),
        caretakers: [Caretaker::Idle, Caretaker::Idle],
    };

    fn after(&self, guards: Guards) -> Vec<Self> {
        let mut next = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut state = self.clone();
            change(&mut state);
            next.push(state);
        };
        if self.active && self.run.is_none() && self.began < RUNS {
            add(&|state| {
                state.run = Some(state.began);
                state.began += 1;
            });
        }
        if let Some(run) = self.run {
            add(&|state| {
                state.run = None;
                state.over.insert(run);
            });
        }
        if !self.active {
            add(&|state| {
                state.active = true;
                state.over.extend(state.run.take());
            });
        }
        for (i, caretaker) in self.caretakers.iter().enumerate() {
            let idle = |state: &mut Self| state.caretakers[i] = Caretaker::Idle;
            match caretaker {
                Caretaker::Idle => {
                    if let Some(run) = self.run {
                        add(&|state| state.caretakers[i] = Caretaker::Judged(run));
                    }
                    if !self.noted.is_empty() {
                        add(&|state| state.caretakers[i] = Caretaker::Announces(state.noted.clone()));
                    }
                    continue;
                }
                Caretaker::Judged(run) => add(&|state| {
                    idle(state);
                    if guards.same_run && state.run != Some(*run) {
                        return;
                    }
                    state.run = None;
                    if state.active {
                        state.active = false;
                        state.disabled.push(*run);
                        if guards.one_commit {
                            state.noted.insert(*run);
                        } else {
                            state.caretakers[i] = Caretaker::OwesNote(*run);
                        }
                    }
                }),
                Caretaker::OwesNote(run) => add(&|state| {
                    idle(state);
                    state.noted.insert(*run);
                }),
                Caretaker::Announces(read) => add(&|state| {
                    idle(state);
                    for run in read {
                        if !guards.external_id || !state.events.contains(run) {
                            state.events.push(*run);
                        }
                        state.noted.remove(run);
                    }
                }),
            }
            // A crash, or an acknowledgement that never came: what was not committed is forgotten.
            add(&idle);
        }
        next
    }

    fn complaint(&self) -> Option<&'static str> {
        let twice = |list: &[Run]| list.iter().collect::<HashSet<_>>().len() < list.len();
        let told = |run: &Run| self.noted.contains(run) || self.events.contains(run);
        let owed = |run: &Run| self.caretakers.contains(&Caretaker::OwesNote(*run));
        if twice(&self.disabled) {
            Some("a run disables twice")
        } else if self.disabled.iter().any(|run| self.over.contains(run)) {
            Some("a run that was over disables")
        } else if twice(&self.events) {
            Some("announced twice")
        } else if !self.disabled.iter().all(|run| told(run) || owed(run)) {
            Some("never announced")
        } else {
            None
        }
    }
}

/// Every state that can be reached, or the first complaint.
fn explore(guards: Guards) -> Result<HashSet<State>, &'static str> {
    let mut seen = HashSet::from([State::START]);
    let mut queue = VecDeque::from([State::START]);
    while let Some(state) = queue.pop_front() {
        if let Some(complaint) = state.complaint() {
            return Err(complaint);
        }
        for next in state.after(guards) {
            if seen.insert(next.clone()) {
                queue.push_back(next);
            }
        }
    }
    Ok(seen)
}

#[test]
fn a_run_disables_once_and_is_announced_once_whatever_dies() {
    let states = explore(ALL).unwrap();
    assert!(states.iter().any(|state| state.events.len() == usize::from(RUNS)), "every run was announced");
    assert!(states.iter().any(|state| !state.over.is_empty() && !state.disabled.is_empty()));
}

#[test]
fn each_guard_of_the_caretaker_is_needed() {
    let complaint = |guards| explore(guards).map(|states| states.len());
    assert_eq!(complaint(Guards { same_run: false, ..ALL }), Err("a run that was over disables"));
    assert_eq!(complaint(Guards { one_commit: false, ..ALL }), Err("never announced"));
    assert_eq!(complaint(Guards { external_id: false, ..ALL }), Err("announced twice"));
}
