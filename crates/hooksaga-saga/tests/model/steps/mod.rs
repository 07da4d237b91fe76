//! What can happen next. Each component's file lists its transactions as atomic steps; a guard that is
//! left out splits a transaction, or widens its WHERE clause.

mod applying;
mod burying;
mod outside;
mod routing;
mod scheduling;
mod working;

use super::{
    guards::Model,
    state::{Applier, Burier, Operator, Router, Scheduler, State, Worker},
};
use std::fmt;

/// Who acts: a component and which of its two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    Outside,
    Router(u8),
    Scheduler(u8),
    Worker(u8),
    Cleaner,
    Unparker,
    Applier(u8),
    Burier(u8),
    Operator(u8),
    Database,
}

/// What a step is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Nothing,
    /// The saga of this generation.
    Saga(u8),
    /// The job with this attempt_at, of the saga of this generation.
    Job(u8, u8),
}

/// One step of the world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub actor: Actor,
    pub does: &'static str,
    pub about: About,
    pub acknowledged: bool,
    /// It may be relied on: no fault, and nothing that somebody outside has to want.
    pub calm: bool,
}

/// A step and where it leads.
pub(super) struct Successor {
    pub step: Step,
    /// Exactly what the step made.
    pub after: State,
}

/// Collects the successors of one state.
pub(super) struct Steps<'a> {
    model: &'a Model,
    before: State,
    found: &'a mut Vec<Successor>,
}

/// Fills `found` with every step that `before` allows. A step that changes nothing is no step.
pub(super) fn successors(model: &Model, before: &State, found: &mut Vec<Successor>) {
    found.clear();
    let mut steps = Steps { model, before: *before, found };
    steps.outside();
    for copy in 0..2 {
        steps.routing(copy);
        steps.scheduling(copy);
        steps.working(copy);
        steps.applying(copy);
        steps.burying(copy);
        steps.requeueing(copy);
        steps.crashes(copy);
        steps.lost_session(copy);
    }
    steps.cleaning();
    steps.unparking();
    steps.database_crash();
}

impl Steps<'_> {
    /// A step that commits nothing, or that nobody waits for.
    fn quiet(&mut self, actor: Actor, does: &'static str, about: About, calm: bool, after: State) {
        self.push(Step { actor, does, about, acknowledged: true, calm }, after);
    }

    /// A transaction: it commits, and its process hears of it or does not. One that does not hear of it
    /// remembers what it remembered before, and so does the same again (or crashes, another step).
    fn transaction(&mut self, actor: Actor, does: &'static str, about: About, after: State) {
        self.quiet(actor, does, about, true, after);
        let mut unheard = after;
        unheard.restore_memory(actor, &self.before);
        if unheard != after {
            self.push(Step { actor, does, about, acknowledged: false, calm: false }, unheard);
        }
    }

    fn push(&mut self, step: Step, after: State) {
        // While the subscription is paused only its resuming is relied on: held work waits.
        let calm = step.calm && (self.delivers() || step.actor == Actor::Outside);
        let mut after = after;
        if !matches!(step.actor, Actor::Router(_) | Actor::Scheduler(_))
            && after.differs_on_disk(&self.before)
        {
            // A durable commit: all that was committed before it is on disk with it.
            after.deferred = Default::default();
        }
        if after != self.before {
            self.found.push(Successor { step: Step { calm, ..step }, after });
        }
    }

    /// Whether work for the subscription goes on: to a request, or, if it is deleted, to its end without one.
    fn delivers(&self) -> bool {
        self.before.active || self.before.deleted
    }

    /// Any process may die between any two of its transactions; what it remembered is gone.
    fn crashes(&mut self, copy: u8) {
        let actors = [
            Actor::Router(copy),
            Actor::Scheduler(copy),
            Actor::Applier(copy),
            Actor::Burier(copy),
            Actor::Operator(copy),
        ];
        for actor in actors {
            let mut after = self.before;
            after.restore_memory(actor, &State::initial(true));
            self.quiet(actor, "crashes", About::Nothing, false, after);
        }
        let mut after = self.before;
        after.forget_worker(copy);
        self.quiet(Actor::Worker(copy), "crashes", About::Nothing, false, after);
    }

    /// The database crashes: the last of its deferred commits are gone, acknowledged or not, and every connection.
    /// Processes live on and remember what they were told.
    fn database_crash(&mut self) {
        let mut after = self.before;
        while after.deferred[0].is_some() {
            after.forget_last();
            let mut crashed = State { deferred: Default::default(), ..after };
            // An applier that has read or decided, and written nothing, is in the middle of its transaction.
            crashed.appliers = crashed.appliers.map(|applier| match applier {
                Applier::SawUnfinished(_) | Applier::Took(_) | Applier::Decided { .. } => Applier::Idle,
                other => other,
            });
            crashed.schedulers = crashed.schedulers.map(without_session);
            // Nor does a router's statement live on.
            crashed.routers = crashed.routers.map(Router::without_transaction);
            self.quiet(Actor::Database, "crashes and forgets", About::Nothing, false, crashed);
        }
    }

    /// A connection breaks, and nothing else.
    fn lost_session(&mut self, copy: u8) {
        if !self.model.deferred_commits {
            // Whatever was acknowledged is there: a session is worth nothing.
            return;
        }
        let mut after = self.before;
        let scheduler = &mut after.schedulers[usize::from(copy)];
        *scheduler = without_session(*scheduler);
        self.quiet(Actor::Scheduler(copy), "loses its connection", About::Nothing, false, after);
    }

    fn about_saga(&self, saga: u8) -> About {
        About::Saga(self.before.saga(saga).generation)
    }

    fn about_job(&self, job: super::state::JobRef) -> About {
        About::Job(self.before.saga(job.saga).generation, self.before.job(job).attempt_at)
    }
}

/// A scheduler whose connection is gone. Read and insert are one statement, or one transaction: it is undone. The move
/// comes later.
fn without_session(scheduler: Scheduler) -> Scheduler {
    match scheduler {
        Scheduler::HalfWay { saga, attempt_at, .. } => {
            Scheduler::HalfWay { saga, attempt_at, session: false }
        }
        Scheduler::Idle | Scheduler::Read { .. } => Scheduler::Idle,
    }
}

impl State {
    /// Whether a table differs: what only a process remembers does not count.
    fn differs_on_disk(&self, other: &Self) -> bool {
        (self.ingested, self.unrouted, self.active, self.deleted)
            != (other.ingested, other.unrouted, other.active, other.deleted)
            || self.sagas != other.sagas
    }

    /// Gives the actor the memory that it has in `other`.
    fn restore_memory(&mut self, actor: Actor, other: &Self) {
        fn copy<T: Copy>(to: &mut [T; 2], from: &[T; 2], copy: u8) {
            to[usize::from(copy)] = from[usize::from(copy)];
        }
        match actor {
            Actor::Outside => self.ingest_owes = other.ingest_owes,
            Actor::Router(i) => copy::<Router>(&mut self.routers, &other.routers, i),
            Actor::Scheduler(i) => copy::<Scheduler>(&mut self.schedulers, &other.schedulers, i),
            Actor::Worker(i) => copy::<Worker>(&mut self.workers, &other.workers, i),
            Actor::Cleaner | Actor::Unparker | Actor::Database => {}
            Actor::Applier(i) => copy::<Applier>(&mut self.appliers, &other.appliers, i),
            Actor::Burier(i) => copy::<Burier>(&mut self.buriers, &other.buriers, i),
            Actor::Operator(i) => copy::<Operator>(&mut self.operators, &other.operators, i),
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside => write!(f, "outside"),
            Self::Router(i) => write!(f, "router {i}"),
            Self::Scheduler(i) => write!(f, "scheduler {i}"),
            Self::Worker(i) => write!(f, "worker {i}"),
            Self::Cleaner => write!(f, "cleaner"),
            Self::Unparker => write!(f, "unparker"),
            Self::Applier(i) => write!(f, "applier {i}"),
            Self::Burier(i) => write!(f, "burier {i}"),
            Self::Operator(i) => write!(f, "operator {i}"),
            Self::Database => write!(f, "the database"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.actor, self.does)?;
        match self.about {
            About::Nothing => {}
            About::Saga(generation) => write!(f, ": saga g{generation}")?,
            About::Job(generation, attempt_at) => write!(f, ": job g{generation}@{attempt_at}")?,
        }
        if !self.acknowledged {
            write!(f, " — committed, but the acknowledgement is lost")?;
        }
        Ok(())
    }
}
