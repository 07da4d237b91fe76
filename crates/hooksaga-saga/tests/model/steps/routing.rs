//! Step 2: a queued event becomes sagas, one subscription after another. And the row that every saga starts as.

use super::{About, Actor, Steps};
use crate::model::{
    guards::{Guard, Model},
    state::{Core, Deferred, FIRST_KEY, MAX_JOBS, Router, SagaRow, State, time},
};
use hooksaga_saga::Saga;

impl Steps<'_> {
    /// 2 route: lock the queue row, then read the next subscription, insert its saga, and write how far the event has
    /// come; with the last subscription the queue row goes.
    pub(super) fn routing(&mut self, copy: u8) {
        let actor = Actor::Router(copy);
        let lock_first = self.model.has(Guard::RouteReadsListAfterLock);
        let memory = self.before.routers[usize::from(copy)];
        let to = |memory: Router, mut state: State| {
            state.routers[usize::from(copy)] = memory;
            state
        };
        match (memory, self.before.unrouted) {
            (Router::Idle, Some(next)) if !lock_first && !self.model.has(Guard::RouteLock) => {
                let after = to(Router::Saw { next, active: self.before.active }, self.before);
                self.quiet(actor, "reads the queue and the subscriptions", About::Nothing, true, after);
            }
            (Router::Saw { next, active }, _) => {
                let after = State { unrouted: self.past(next), ..to(Router::Idle, self.before) };
                self.route(copy, after, next, active);
            }
            (Router::Idle, queued) if !lock_first => {
                let calm = queued.is_some();
                if calm || !self.model.has(Guard::RouteListNotOlderThanQueue) {
                    let after = to(Router::HasList(self.before.active), self.before);
                    self.quiet(actor, "reads the subscriptions", About::Nothing, calm, after);
                }
            }
            (Router::Idle, None) => {}
            (Router::Idle, Some(next)) if !self.model.has(Guard::RouteLock) => {
                let after = to(Router::Took(next), self.before);
                self.quiet(actor, "reads the queue", About::Nothing, true, after);
            }
            (Router::Idle, Some(next)) if !self.writes_at_once(next) => {
                self.mark(copy, next);
            }
            (Router::Idle, Some(next)) | (Router::Took(next), _) => {
                let after = State { unrouted: self.past(next), ..to(Router::Idle, self.before) };
                self.route(copy, after, next, self.before.active);
            }
            (Router::Owes(next), _) => {
                self.route(copy, to(Router::Idle, self.before), next, self.before.active);
            }
            (Router::HasList(_), Some(next)) if !self.writes_at_once(next) => self.mark(copy, next),
            (Router::HasList(active), Some(next)) => {
                let after = State { unrouted: self.past(next), ..to(Router::Idle, self.before) };
                self.route(copy, after, next, active);
            }
            (Router::HasList(_), None) => {
                let after = to(Router::Idle, self.before);
                self.quiet(actor, "finds the queue empty", About::Nothing, true, after);
            }
        }
    }

    /// How far the event has come is written before the saga, in a commit of its own.
    fn mark(&mut self, copy: u8, next: u8) {
        let mut after = State { unrouted: self.past(next), ..self.before };
        after.routers[usize::from(copy)] = Router::Owes(next);
        if self.model.deferred_commits {
            after.defer(Deferred::Routed { progress: next, saga: None });
        }
        self.transaction(Actor::Router(copy), "marks the event as routed so far", About::Nothing, after);
    }

    /// The queue row after the step of this subscription.
    fn past(&self, subscription: u8) -> Option<u8> {
        Some(subscription + 1).filter(|next| *next < self.model.subscriptions)
    }

    fn writes_at_once(&self, subscription: u8) -> bool {
        let guard = if self.past(subscription).is_some() {
            Guard::RouteProgressInOneCommit
        } else {
            Guard::RouteDeletesInOneCommit
        };
        self.model.has(guard)
    }

    fn route(&mut self, copy: u8, mut after: State, subscription: u8, active: bool) {
        let matches = !(self.model.testing && self.model.has(Guard::TestTypeMatchesNothing));
        let saga = if active && matches {
            insert_saga(self.model, &mut after, subscription, 0, &first_saga(self.model))
        } else {
            None
        };
        let was_marked = matches!(self.before.routers[usize::from(copy)], Router::Owes(_));
        if self.model.deferred_commits && was_marked {
            saga.into_iter().for_each(|saga| after.defer(Deferred::Saga(saga)));
        } else if self.model.deferred_commits {
            after.defer(Deferred::Routed { progress: subscription, saga });
        }
        let (actor, does) = (Actor::Router(copy), "routes the event");
        if was_marked {
            self.transaction(actor, does, About::Nothing, after);
        } else {
            // Unheard of, the whole transaction is tried again, from the queue on: nothing is remembered.
            self.quiet(actor, does, About::Nothing, true, after);
        }
    }
}

/// A saga as routing creates it.
pub(super) fn first_saga(model: &Model) -> Saga {
    Saga::new(model.limit.into(), time(FIRST_KEY))
}

/// Inserts a saga, on conflict nothing, and returns its place.
pub(super) fn insert_saga(
    model: &Model,
    state: &mut State,
    subscription: u8,
    generation: u8,
    saga: &Saga,
) -> Option<u8> {
    let same = |row: &SagaRow| (row.subscription, row.generation) == (subscription, generation);
    if state.sagas.iter().flatten().any(same) && model.has(Guard::SagaKey) {
        return None;
    }
    let (place, free) = (0_u8..).zip(&mut state.sagas).find(|(_, row)| row.is_none())?;
    *free = Some(SagaRow {
        subscription,
        generation,
        core: Core::of(saga),
        jobs: [None; MAX_JOBS],
        letter_queued: false,
        letters: 0,
    });
    Some(place)
}
