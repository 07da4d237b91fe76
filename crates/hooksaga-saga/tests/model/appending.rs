//! Two who append one `external_id`: the API, and an application whose own transaction stays open as long as it likes and may be
//! rolled back. Both may fail at any point, and are repeated.

use super::caring::explore;
use std::collections::HashSet;

/// How often each tries.
const TRIES: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Appender {
    /// It has yet to insert.
    Begins,
    /// It has inserted, and its transaction is open.
    Open,
    /// It found that another open transaction has inserted this `external_id`.
    Waits,
    /// A guard left out: it has committed the event, and owes the queue row.
    OwesQueueRow,
    /// It was told that the event is stored: its own, or the one that was there.
    Acknowledged,
    /// It was told that nothing happened, and does not come again.
    GaveUp,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    appenders: [Appender; 2],
    tries: [u8; 2],
    /// Committed events, and whether each was queued.
    events: Vec<bool>,
}

/// The guards, each of which can be left out.
#[derive(Clone, Copy)]
struct Guards {
    /// Of tenant and `external_id`: whoever meets an open transaction's row waits for its end.
    unique_key: bool,
    /// Whoever waited looks whether the other's event is there before saying that it is.
    look_again: bool,
    /// Event and queue row are one commit.
    one_commit: bool,
}

const ALL: Guards = Guards { unique_key: true, look_again: true, one_commit: true };

const START: State = State { appenders: [Appender::Begins; 2], tries: [1, 1], events: Vec::new() };

impl State {
    fn after(&self, guards: Guards) -> Vec<Self> {
        let mut next = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut state = self.clone();
            change(&mut state);
            next.push(state);
        };
        for (i, appender) in self.appenders.iter().enumerate() {
            let becomes = |state: &mut Self, to| state.appenders[i] = to;
            let held = self.appenders[1 - i] == Appender::Open;
            match appender {
                Appender::Begins => add(&|state| {
                    let to = match guards.unique_key {
                        true if held => Appender::Waits,
                        true if !self.events.is_empty() => Appender::Acknowledged,
                        _ => Appender::Open,
                    };
                    becomes(state, to);
                }),
                Appender::Open => add(&|state| {
                    state.events.push(guards.one_commit);
                    let owed =
                        if guards.one_commit { Appender::Acknowledged } else { Appender::OwesQueueRow };
                    becomes(state, owed);
                }),
                Appender::Waits if !held => add(&|state| {
                    let stored = !guards.look_again || !self.events.is_empty();
                    becomes(state, if stored { Appender::Acknowledged } else { Appender::Begins });
                }),
                Appender::OwesQueueRow => add(&|state| {
                    state.events.iter_mut().for_each(|queued| *queued = true);
                    becomes(state, Appender::Acknowledged);
                }),
                Appender::Waits | Appender::Acknowledged | Appender::GaveUp => {}
            }
            // A crash, a rollback, a wait that took too long, a response that got lost: what is open is undone, and it is tried
            // again, or not.
            if self.tries[i] < TRIES && *appender != Appender::GaveUp {
                add(&|state| {
                    state.tries[i] += 1;
                    becomes(state, Appender::Begins);
                });
            }
            if *appender != Appender::Acknowledged {
                add(&|state| becomes(state, Appender::GaveUp));
            }
        }
        next
    }

    fn complaint(&self) -> Option<&'static str> {
        let owed = self.appenders.contains(&Appender::OwesQueueRow);
        if self.events.len() > 1 {
            Some("stored twice")
        } else if self.events.is_empty() && self.appenders.contains(&Appender::Acknowledged) {
            Some("acknowledged, and not stored")
        } else if self.events.contains(&false) && !owed {
            // Whoever comes later finds the event, and queues nothing.
            Some("never routed")
        } else {
            None
        }
    }
}

fn explore_with(guards: Guards) -> Result<HashSet<State>, &'static str> {
    explore(START, |state| state.after(guards), State::complaint)
}

#[test]
fn an_external_id_is_stored_once_whoever_appends_it_and_whatever_is_rolled_back() {
    let states = explore_with(ALL).unwrap();
    let is_there = |appenders, stored| {
        states.iter().any(|state| state.appenders == appenders && state.events.len() == stored)
    };
    assert!(is_there([Appender::Acknowledged, Appender::Acknowledged], 1), "both are told of the same");
    assert!(is_there([Appender::GaveUp, Appender::Acknowledged], 1), "one after the other was rolled back");
    assert!(is_there([Appender::GaveUp, Appender::GaveUp], 0), "rolled back by both: nothing happened");
    assert!(is_there([Appender::Open, Appender::Waits], 0));
}

#[test]
fn each_guard_of_an_append_is_needed() {
    let complaint = |guards| explore_with(guards).map(|states| states.len());
    assert_eq!(complaint(Guards { unique_key: false, ..ALL }), Err("stored twice"));
    // The other's transaction was rolled back meanwhile.
    assert_eq!(complaint(Guards { look_again: false, ..ALL }), Err("acknowledged, and not stored"));
    assert_eq!(complaint(Guards { one_commit: false, ..ALL }), Err("never routed"));
}
