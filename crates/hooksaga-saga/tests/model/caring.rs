//! The caretaker's transactions, explored like the others: two caretakers, crashes at any point, and an endpoint that
//! fails, recovers, says that it is gone, is paused by hand, is activated again and moves to another URL meanwhile.
//!
//! A small model of its own: to a delivery, disabling is the pause that the large model has, and nothing else of the
//! caretaker touches a saga or a job. `announcing` has what it does about verifications.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    hash::Hash,
};

/// Runs of failures, by the time at which they began.
type Run = u8;
const RUNS: Run = 3;

/// The callback URLs that the subscription has one after another.
type Url = u8;
const URLS: Url = 2;

/// How often an attempt gets a 410.
const GONES: u8 = 2;

/// A 410, and the URL that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Gone {
    url: Url,
    /// Ghost: which one it is. The database has the URL alone.
    which: u8,
}

/// Why a subscription is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Cause {
    Failing(Run),
    Gone(Gone),
}

/// What one caretaker remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Caretaker {
    Idle,
    /// It has read this run, and that half of the time has passed.
    Troubled(Run),
    /// It has read this run, and that it lasts long enough.
    Judged(Run),
    /// It has read that this URL is gone.
    Missed(Gone),
    /// The protocol with a guard left out: disabled, and not noted yet.
    OwesNote(Cause),
    /// It has read these announcements.
    Announces(BTreeSet<Cause>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    active: bool,
    /// It is not active, and says why.
    has_reason: bool,
    url: Url,
    run: Option<Run>,
    /// Somebody was told of this run.
    announced: bool,
    began: Run,
    gone: Option<Gone>,
    gones: u8,
    /// What ended with a success (runs only), an activation, or a change of the URL.
    over: BTreeSet<Cause>,
    /// What a subscription was disabled for, in this order.
    disabled: Vec<Cause>,
    /// Ghost: it was disabled for what another URL than its own had said.
    mistaken: bool,
    /// Ghost: it was disabled while it was.
    again: bool,
    /// Ghost: a 410 of its own URL came to nothing, and it has no reason.
    forgotten: bool,
    noted: BTreeSet<Cause>,
    /// Runs of which it was noted that they fail. What becomes of such a note is as with the others.
    failing: Vec<Run>,
    /// Events that were appended.
    events: Vec<Cause>,
    caretakers: [Caretaker; 2],
}

/// The guards, each of which can be left out.
#[derive(Clone, Copy)]
struct Guards {
    /// A run is disabled, or noted, only if it is still the one that was read.
    same_run: bool,
    /// The same of a URL that is gone.
    same_gone: bool,
    /// A URL that is gone disables only the subscription that still has it.
    own_url: bool,
    /// It does so also where somebody has paused the subscription.
    paused_too: bool,
    /// One that is disabled is not disabled again.
    not_disabled: bool,
    /// A run is noted as failing only if nobody was told of it.
    not_announced: bool,
    /// Disabling and the note are one commit.
    one_commit: bool,
    /// The events' unique key.
    external_id: bool,
}

const ALL: Guards = Guards {
    same_run: true,
    same_gone: true,
    own_url: true,
    paused_too: true,
    not_disabled: true,
    not_announced: true,
    one_commit: true,
    external_id: true,
};

impl State {
    const START: Self = Self {
        active: true,
        has_reason: false,
        url: 0,
        run: None,
        announced: false,
        began: 0,
        gone: None,
        gones: 0,
        over: BTreeSet::new(),
        disabled: Vec::new(),
        mistaken: false,
        again: false,
        forgotten: false,
        noted: BTreeSet::new(),
        failing: Vec::new(),
        events: Vec::new(),
        caretakers: [Caretaker::Idle, Caretaker::Idle],
    };

    /// One whose endpoint only fails: it says no 410, and keeps its URL.
    fn that_fails() -> Self {
        Self { gones: GONES, url: URLS - 1, ..Self::START }
    }

    /// One that fails once at most, beside the rest.
    fn that_goes() -> Self {
        Self { began: RUNS - 1, ..Self::START }
    }

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
                state.announced = false;
                state.began += 1;
            });
        }
        // Also of an attempt that began at an earlier URL, or before it was disabled.
        for url in (0..=self.url).filter(|_| self.gones < GONES) {
            add(&|state| {
                state.gone = Some(Gone { url, which: state.gones });
                state.gones += 1;
            });
        }
        if let Some(run) = self.run {
            add(&|state| {
                state.run = None;
                state.over.insert(Cause::Failing(run));
            });
        }
        if self.active {
            // By hand: no reason is kept.
            add(&|state| state.active = false);
        } else {
            add(&|state| {
                (state.active, state.has_reason) = (true, false);
                state.begin_anew();
            });
        }
        if self.url + 1 < URLS {
            add(&|state| {
                state.url += 1;
                state.begin_anew();
            });
        }
        for (i, caretaker) in self.caretakers.iter().enumerate() {
            let idle = |state: &mut Self| state.caretakers[i] = Caretaker::Idle;
            match caretaker {
                Caretaker::Idle => {
                    if let Some(run) = self.run {
                        add(&|state| state.caretakers[i] = Caretaker::Judged(run));
                        if !self.announced {
                            add(&|state| state.caretakers[i] = Caretaker::Troubled(run));
                        }
                    }
                    if let Some(gone) = self.gone {
                        add(&|state| state.caretakers[i] = Caretaker::Missed(gone));
                    }
                    if !self.noted.is_empty() {
                        add(&|state| state.caretakers[i] = Caretaker::Announces(state.noted.clone()));
                    }
                    continue;
                }
                Caretaker::Troubled(run) => add(&|state| {
                    idle(state);
                    if (guards.same_run && state.run != Some(*run))
                        || (guards.not_announced && state.announced)
                    {
                        return;
                    }
                    state.announced = true;
                    if state.active {
                        state.failing.push(*run);
                    }
                }),
                Caretaker::Judged(run) => add(&|state| {
                    idle(state);
                    if guards.same_run && state.run != Some(*run) {
                        return;
                    }
                    state.run = None;
                    if state.active {
                        if !state.announced {
                            state.failing.push(*run);
                        }
                        state.disable(i, Cause::Failing(*run), guards);
                    }
                }),
                Caretaker::Missed(read) => add(&|state| {
                    idle(state);
                    // The URL is all that can be compared: it may have been said again.
                    let taken = state.gone.filter(|gone| gone.url == read.url);
                    if guards.same_gone && taken.is_none() {
                        return;
                    }
                    (state.gone, state.run) = (None, None);
                    let own = state.url == read.url;
                    let may = (state.active || guards.paused_too)
                        && (!state.has_reason || !guards.not_disabled)
                        && (own || !guards.own_url);
                    if may {
                        state.mistaken |= !own;
                        state.disable(i, Cause::Gone(taken.unwrap_or(*read)), guards);
                    }
                    state.forgotten |= own && !state.has_reason;
                }),
                Caretaker::OwesNote(cause) => add(&|state| {
                    idle(state);
                    state.noted.insert(*cause);
                }),
                Caretaker::Announces(read) => add(&|state| {
                    idle(state);
                    for cause in read {
                        if !guards.external_id || !state.events.contains(cause) {
                            state.events.push(*cause);
                        }
                        state.noted.remove(cause);
                    }
                }),
            }
            // A crash, or an acknowledgement that never came: what was not committed is forgotten.
            add(&idle);
        }
        next
    }

    /// An activation, or another URL: what was counted is forgotten.
    fn begin_anew(&mut self) {
        self.over.extend(self.run.take().map(Cause::Failing));
        self.over.extend(self.gone.take().map(Cause::Gone));
    }

    fn disable(&mut self, caretaker: usize, cause: Cause, guards: Guards) {
        self.again |= self.has_reason;
        (self.active, self.has_reason) = (false, true);
        self.disabled.push(cause);
        if guards.one_commit {
            self.noted.insert(cause);
        } else {
            self.caretakers[caretaker] = Caretaker::OwesNote(cause);
        }
    }

    fn complaint(&self) -> Option<&'static str> {
        fn twice<T: Eq + Hash>(list: &[T]) -> bool {
            list.iter().collect::<HashSet<_>>().len() < list.len()
        }
        let told = |cause: &Cause| self.noted.contains(cause) || self.events.contains(cause);
        let owed = |cause: &Cause| self.caretakers.contains(&Caretaker::OwesNote(*cause));
        let heard = |cause: &Cause| match cause {
            Cause::Failing(run) => self.failing.contains(run),
            Cause::Gone(_) => true,
        };
        if twice(&self.failing) {
            Some("said twice that it fails")
        } else if !self.disabled.iter().all(heard) {
            Some("disabled, and nobody heard before that it fails")
        } else if self.mistaken {
            Some("another URL than its own disables")
        } else if self.again {
            Some("disabled while it is disabled")
        } else if self.forgotten {
            Some("a 410 is forgotten")
        } else if self.disabled.iter().any(|cause| self.over.contains(cause)) {
            Some("a cause that was over disables")
        } else if twice(&self.disabled) {
            Some("a cause disables twice")
        } else if twice(&self.events) {
            Some("announced twice")
        } else if !self.disabled.iter().all(|cause| told(cause) || owed(cause)) {
            Some("never announced")
        } else {
            None
        }
    }
}

/// Every state that can be reached, or the first complaint.
pub(super) fn explore<S: Clone + Eq + Hash>(
    start: S,
    after: impl Fn(&S) -> Vec<S>,
    complaint: impl Fn(&S) -> Option<&'static str>,
) -> Result<HashSet<S>, &'static str> {
    let mut seen = HashSet::from([start.clone()]);
    let mut queue = VecDeque::from([start]);
    while let Some(state) = queue.pop_front() {
        if let Some(complaint) = complaint(&state) {
            return Err(complaint);
        }
        for next in after(&state) {
            if seen.insert(next.clone()) {
                queue.push_back(next);
            }
        }
    }
    Ok(seen)
}

fn explore_with(start: State, guards: Guards) -> Result<HashSet<State>, &'static str> {
    explore(start, |state| state.after(guards), State::complaint)
}

#[test]
fn a_run_disables_once_and_is_announced_once_whatever_dies() {
    let states = explore_with(State::that_fails(), ALL).unwrap();
    assert!(states.iter().any(|state| state.events.len() == usize::from(RUNS)), "every run was announced");
    assert!(states.iter().any(|state| !state.over.is_empty() && !state.disabled.is_empty()));
    assert!(
        states.iter().any(|state| !state.failing.is_empty() && state.disabled.is_empty()),
        "noted before it is disabled"
    );
}

#[test]
fn a_url_that_is_gone_disables_once_and_is_announced_once_whatever_dies() {
    let states = explore_with(State::that_goes(), ALL).unwrap();
    let all = usize::from(GONES) + 1;
    assert!(states.iter().any(|state| state.events.len() == all), "each 410 and the run were announced");
    assert!(
        states.iter().any(|state| state.gones > 0
            && state.gone.is_none()
            && state.over.is_empty()
            && state.disabled.is_empty()),
        "what another URL said is taken, and disables nobody"
    );
}

#[test]
fn each_guard_of_the_caretaker_is_needed() {
    let fails = |guards| explore_with(State::that_fails(), guards).map(|states| states.len());
    assert_eq!(fails(Guards { same_run: false, ..ALL }), Err("a cause that was over disables"));
    assert_eq!(fails(Guards { not_announced: false, ..ALL }), Err("said twice that it fails"));
    assert_eq!(fails(Guards { one_commit: false, ..ALL }), Err("never announced"));
    assert_eq!(fails(Guards { external_id: false, ..ALL }), Err("announced twice"));
    let goes = |guards| explore_with(State::that_goes(), guards).map(|states| states.len());
    assert_eq!(goes(Guards { same_gone: false, ..ALL }), Err("a cause that was over disables"));
    assert_eq!(goes(Guards { own_url: false, ..ALL }), Err("another URL than its own disables"));
    assert_eq!(goes(Guards { paused_too: false, ..ALL }), Err("a 410 is forgotten"));
    assert_eq!(goes(Guards { not_disabled: false, ..ALL }), Err("disabled while it is disabled"));
    assert_eq!(goes(Guards { one_commit: false, ..ALL }), Err("never announced"));
    assert_eq!(goes(Guards { external_id: false, ..ALL }), Err("announced twice"));
}
