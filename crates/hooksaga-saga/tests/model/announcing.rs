//! How a verification is noted and announced: two caretakers, beside a verifier that verifies at any time, also what is
//! verified already, and somebody who changes the URL, and back.
//!
//! The verifier tells the caretaker nothing. It writes `verified_url`, and the caretaker looks for what differs from
//! `announced_url`.

use super::caring::explore;
use std::collections::{BTreeSet, HashSet};

/// How often the URL changes, and how often a check ends well.
const CHANGES: u8 = 2;
const CHECKS: u8 = 4;

/// One of two URLs.
type Url = bool;

/// A verification that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Note {
    /// With the subscription, the note's key, and the event's `external_id`.
    at: u8,
    url: Url,
    /// Ghost: which verification it is.
    occurrence: u8,
}

/// What one caretaker remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Caretaker {
    Idle,
    /// It has read a verification that is not announced, and holds the row's lock, where there is one.
    Found(Note),
    /// The protocol with a guard left out: it has set `announced_url`, and owes the note.
    OwesNote(Note),
    /// It has read these notes.
    Announces(BTreeSet<Note>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    callback_url: Url,
    changes: u8,
    verified_url: Option<Url>,
    /// The number of the last check that ended well. A change of the URL clears it.
    checked_at: Option<u8>,
    checks: u8,
    announced_url: Option<Url>,
    /// Ghost: how often another URL was verified than the one before.
    occurrence: u8,
    noted: BTreeSet<Note>,
    /// Events that were appended.
    events: Vec<Note>,
    caretakers: [Caretaker; 2],
}

/// The guards, each of which can be left out.
#[derive(Clone, Copy)]
struct Guards {
    /// The row is locked as it is read (PostgreSQL: SKIP LOCKED; SQLite: there is one writer).
    locked: bool,
    /// `announced_url` and the note are one commit.
    one_commit: bool,
    /// The events' unique key.
    external_id: bool,
}

const ALL: Guards = Guards { locked: true, one_commit: true, external_id: true };

const START: State = State {
    callback_url: false,
    changes: 0,
    verified_url: None,
    checked_at: None,
    checks: 0,
    announced_url: None,
    occurrence: 0,
    noted: BTreeSet::new(),
    events: Vec::new(),
    caretakers: [Caretaker::Idle, Caretaker::Idle],
};

impl State {
    fn after(&self, guards: Guards) -> Vec<Self> {
        let mut next = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut state = self.clone();
            change(&mut state);
            next.push(state);
        };
        let locked = guards.locked && self.caretakers.iter().any(|one| matches!(one, Caretaker::Found(_)));
        if !locked && self.changes < CHANGES {
            add(&|state| {
                state.callback_url = !state.callback_url;
                state.changes += 1;
                state.checked_at = None;
            });
        }
        if !locked && self.checks < CHECKS {
            add(&|state| {
                let url = Some(state.callback_url);
                state.occurrence += u8::from(state.verified_url != url);
                state.verified_url = url;
                state.checks += 1;
                state.checked_at = Some(state.checks);
            });
        }
        for (i, caretaker) in self.caretakers.iter().enumerate() {
            let idle = |state: &mut Self| state.caretakers[i] = Caretaker::Idle;
            match caretaker {
                Caretaker::Idle => {
                    if let (false, Some(note)) = (locked, self.to_note(i)) {
                        add(&|state| state.caretakers[i] = Caretaker::Found(note));
                    }
                    if !self.noted.is_empty() {
                        add(&|state| state.caretakers[i] = Caretaker::Announces(state.noted.clone()));
                    }
                    continue;
                }
                Caretaker::Found(note) => add(&|state| {
                    idle(state);
                    state.announced_url = state.verified_url;
                    if guards.one_commit {
                        state.note(*note);
                    } else {
                        state.caretakers[i] = Caretaker::OwesNote(*note);
                    }
                }),
                Caretaker::OwesNote(note) => add(&|state| {
                    idle(state);
                    state.note(*note);
                }),
                Caretaker::Announces(read) => add(&|state| {
                    idle(state);
                    for note in read {
                        if !guards.external_id || state.events.iter().all(|event| event.at != note.at) {
                            state.events.push(*note);
                        }
                        state.noted.retain(|noted| noted.at != note.at);
                    }
                }),
            }
            // A crash: what was not committed is forgotten.
            add(&idle);
        }
        next
    }

    /// What a caretaker finds. A URL that has changed meanwhile took the time of the check with it: then the time is now,
    /// which differs from everybody else's.
    fn to_note(&self, caretaker: usize) -> Option<Note> {
        let url = self.verified_url.filter(|_| self.announced_url != self.verified_url)?;
        let now = CHECKS + 1 + 2 * self.occurrence + u8::from(caretaker > 0);
        Some(Note { at: self.checked_at.unwrap_or(now), url, occurrence: self.occurrence })
    }

    /// On conflict nothing.
    fn note(&mut self, note: Note) {
        if self.noted.iter().all(|noted| noted.at != note.at) {
            self.noted.insert(note);
        }
    }

    fn complaint(&self) -> Option<&'static str> {
        let told = |event: &Note| event.occurrence;
        let twice = self.events.iter().map(told).collect::<HashSet<_>>().len() < self.events.len();
        let last = self.noted.iter().chain(&self.events).max_by_key(|note| note.occurrence);
        let owed = self.caretakers.iter().any(|one| matches!(one, Caretaker::OwesNote(_)));
        if twice {
            Some("announced twice")
        } else if !owed
            && self.announced_url == self.verified_url
            && last.map(|note| note.url) != self.verified_url
        {
            // Nobody looks at it again.
            Some("never announced")
        } else {
            None
        }
    }
}

fn explore_with(guards: Guards) -> Result<HashSet<State>, &'static str> {
    explore(START, |state| state.after(guards), State::complaint)
}

#[test]
fn a_verification_is_announced_once_whatever_dies() {
    let states = explore_with(ALL).unwrap();
    assert!(
        states.iter().any(|state| state.events.len() == usize::from(CHANGES) + 1),
        "every verification was announced"
    );
    assert!(
        states.iter().any(|state| state.occurrence == 3 && state.events.len() == 2 && state.noted.is_empty())
    );
}

#[test]
fn each_guard_of_an_announced_verification_is_needed() {
    let complaint = |guards| explore_with(guards).map(|states| states.len());
    // What is verified between the look and the write counts as announced.
    assert_eq!(complaint(Guards { locked: false, ..ALL }), Err("never announced"));
    assert_eq!(complaint(Guards { one_commit: false, ..ALL }), Err("never announced"));
    assert_eq!(complaint(Guards { external_id: false, ..ALL }), Err("announced twice"));
}
