//! Breadth-first search over every reachable state, and the proof that everything finishes.
//!
//! Liveness is stronger than "can still finish": once faults stop and the subscription is active, EVERY
//! schedule finishes. The calm steps alone form a graph; where it has no cycle and each of its dead ends
//! is finished, every path through it ends finished, and from every state there is one.

use super::{
    guards::Model,
    invariants::{self, ENDLESS, STUCK, Violation},
    state::State,
    steps::{self, Successor},
};
use std::{
    fmt,
    hash::{Hash, Hasher},
};

/// A run that found no violation.
#[derive(Debug)]
pub(super) struct Explored {
    pub states: Vec<State>,
    pub steps: usize,
}

/// A shortest way to a violation.
pub(super) struct Counterexample {
    pub violation: Violation,
    model: Model,
    states: usize,
    trace: Vec<String>,
}

/// Explores the whole model.
pub(super) fn explore(model: &Model) -> Result<Explored, Box<Counterexample>> {
    let mut search = Search::new(model);
    let mut found = Vec::new();
    let mut calm = Calm::default();
    let mut steps = 0;
    let mut current = 0;
    while let Some(&before) = search.states.get(current) {
        steps::successors(model, &before, &mut found);
        steps += found.len();
        for Successor { step, after } in &found {
            if let Err(violation) = invariants::check(model, &before, step, after) {
                return Err(search.counterexample(violation, current, &format!("{step}\n{}", show(after))));
            }
            let id = search.add(after.canonical(), current);
            if step.calm && id != current {
                calm.targets.push(u32::try_from(id).unwrap());
            }
        }
        if calm.close_row() == 0 && !invariants::finished(model, &before) {
            return Err(search.counterexample(STUCK, current, "nothing more"));
        }
        current += 1;
    }
    match calm.state_on_a_cycle() {
        Some(state) => Err(search.counterexample(ENDLESS, state, "comes back here")),
        None => Ok(Explored { states: search.states, steps }),
    }
}

/// The states found so far, in the order of their distance, each with the one it was found from.
struct Search<'a> {
    model: &'a Model,
    states: Vec<State>,
    parents: Vec<u32>,
    /// Open addressing over indices into `states`, so that each state is stored once.
    slots: Vec<u32>,
}

const FREE: u32 = u32::MAX;

impl<'a> Search<'a> {
    fn new(model: &'a Model) -> Self {
        let mut search = Self { model, states: Vec::new(), parents: Vec::new(), slots: vec![FREE; 1 << 12] };
        search.add(State::initial(!model.pausing), 0);
        search
    }

    /// The state's number; a new one if it was not seen before.
    fn add(&mut self, state: State, parent: usize) -> usize {
        let slot = self.slot(&state);
        if self.slots[slot] != FREE {
            return self.slots[slot] as usize;
        }
        let id = self.states.len();
        self.slots[slot] = u32::try_from(id).unwrap();
        self.states.push(state);
        self.parents.push(u32::try_from(parent).unwrap());
        if self.states.len() * 2 > self.slots.len() {
            self.slots = vec![FREE; self.slots.len() * 2];
            for id in 0..self.states.len() {
                let slot = self.slot(&self.states[id]);
                self.slots[slot] = u32::try_from(id).unwrap();
            }
        }
        id
    }

    /// Where the state is, or the free slot where it belongs.
    fn slot(&self, state: &State) -> usize {
        let mut hasher = Mix(0);
        state.hash(&mut hasher);
        let mask = self.slots.len() - 1;
        let mut slot = usize::try_from(hasher.finish() & mask as u64).unwrap();
        while self.slots[slot] != FREE && self.states[self.slots[slot] as usize] != *state {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// The way to a state, step by step: the steps are found again by taking them again.
    fn counterexample(&self, violation: Violation, last: usize, then: &str) -> Box<Counterexample> {
        let mut trace = vec![then.to_owned()];
        let mut found = Vec::new();
        let mut id = last;
        while id != 0 {
            let parent = self.parents[id] as usize;
            steps::successors(self.model, &self.states[parent], &mut found);
            let taken = found.iter().find(|next| next.after.canonical() == self.states[id]).unwrap();
            trace.push(format!("{}\n{}", taken.step, show(&self.states[id])));
            id = parent;
        }
        trace.reverse();
        Box::new(Counterexample { model: *self.model, violation, states: self.states.len(), trace })
    }
}

/// The graph of calm steps: row by row, as states are expanded.
#[derive(Default)]
struct Calm {
    targets: Vec<u32>,
    row_ends: Vec<usize>,
}

impl Calm {
    /// Ends the current state's row and returns its length.
    fn close_row(&mut self) -> usize {
        let start = self.row_ends.last().copied().unwrap_or(0);
        self.row_ends.push(self.targets.len());
        self.targets.len() - start
    }

    fn row(&self, state: usize) -> &[u32] {
        let start = if state == 0 { 0 } else { self.row_ends[state - 1] };
        &self.targets[start..self.row_ends[state]]
    }

    /// Takes away dead ends until none is left: what remains leads into a cycle.
    fn state_on_a_cycle(&self) -> Option<usize> {
        let states = self.row_ends.len();
        let mut open: Vec<usize> = (0..states).map(|state| self.row(state).len()).collect();
        let (starts, sources) = self.reversed();
        let mut dead_ends: Vec<usize> = (0..states).filter(|state| open[*state] == 0).collect();
        while let Some(state) = dead_ends.pop() {
            for source in &sources[starts[state]..starts[state + 1]] {
                let source = *source as usize;
                open[source] -= 1;
                if open[source] == 0 {
                    dead_ends.push(source);
                }
            }
        }
        let mut state = (0..states).find(|state| open[*state] > 0)?;
        let mut seen = vec![false; states];
        while !std::mem::replace(&mut seen[state], true) {
            let next = self.row(state).iter().find(|next| open[**next as usize] > 0)?;
            state = *next as usize;
        }
        Some(state)
    }

    /// For every state, the states with a calm step to it: those of `state` are
    /// `sources[starts[state]..starts[state + 1]]`.
    fn reversed(&self) -> (Vec<usize>, Vec<u32>) {
        let states = self.row_ends.len();
        let mut starts = vec![0; states + 1];
        for target in &self.targets {
            starts[*target as usize + 1] += 1;
        }
        for state in 0..states {
            starts[state + 1] += starts[state];
        }
        let mut next = starts.clone();
        let mut sources = vec![0; self.targets.len()];
        for state in 0..states {
            for target in self.row(state) {
                let place = &mut next[*target as usize];
                sources[*place] = u32::try_from(state).unwrap();
                *place += 1;
            }
        }
        (starts, sources)
    }
}

/// A quick hash; the states come from us, so nobody chooses collisions.
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.unsigned_abs() as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// One line per saga: enough to follow a trace.
fn show(state: &State) -> String {
    let mut lines = vec![format!(
        "      unrouted={:?} active={} {:?} {:?}",
        state.unrouted, state.active, state.schedulers, state.workers
    )];
    for saga in state.sagas.iter().flatten() {
        let jobs: Vec<String> = saga
            .job_rows()
            .map(|job| {
                let queued = if job.queued { " queued" } else { "" };
                format!("@{} {} {:?}{queued}", job.attempt_at, job.status, job.token)
            })
            .collect();
        lines.push(format!(
            "      s{} g{} {} next@{} attempts {} letters {} jobs [{}]",
            saga.subscription,
            saga.generation,
            saga.core.status,
            saga.core.next_attempt_at,
            saga.core.attempts,
            saga.letters,
            jobs.join(", ")
        ));
    }
    lines.join("\n")
}

impl fmt::Debug for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({:?}, {} states)", self.violation, self.model, self.states)?;
        writeln!(f, "The copies of a component are interchangeable, and may swap numbers on the way.")?;
        for (number, step) in (1..).zip(&self.trace) {
            writeln!(f, "{number:4}. {step}")?;
        }
        Ok(())
    }
}
