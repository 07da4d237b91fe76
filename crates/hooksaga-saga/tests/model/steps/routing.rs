//! Step 2: a queued event becomes a saga. And the row that every saga starts as.

use super::{About, Actor, Steps};
use crate::model::{
    guards::{Guard, Model},
    state::{Core, FIRST_KEY, MAX_JOBS, Router, SagaRow, State, time},
};
use hooksaga_saga::Saga;

impl Steps<'_> {
    /// 2 route: lock the queue row, then read the subscription, insert the saga, delete the queue row.
    pub(super) fn routing(&mut self, copy: u8) {
        let actor = Actor::Router(copy);
        let lock_first = self.model.has(Guard::RouteReadsListAfterLock);
        let memory = self.before.routers[usize::from(copy)];
        let to = |memory: Router, mut state: State| {
            state.routers[usize::from(copy)] = memory;
            state
        };
        match memory {
            Router::Idle if !lock_first => {
                let list = Router::HasList(self.before.active);
                let calm = self.before.unrouted;
                self.quiet(actor, "reads the subscriptions", About::Nothing, calm, to(list, self.before));
            }
            Router::Idle if !self.before.unrouted => {}
            Router::Idle if !self.model.has(Guard::RouteLock) => {
                self.quiet(actor, "reads the queue", About::Nothing, true, to(Router::Took, self.before));
            }
            Router::Idle if !self.model.has(Guard::RouteDeletesInOneCommit) => {
                let after = State { unrouted: false, ..to(Router::Deleted, self.before) };
                self.transaction(actor, "takes the event off the queue", About::Nothing, after);
            }
            Router::Idle | Router::Took | Router::Deleted => {
                self.route(copy, to(Router::Idle, self.before), self.before.active);
            }
            Router::HasList(active) if self.before.unrouted => {
                self.route(copy, to(Router::Idle, self.before), active);
            }
            Router::HasList(_) => {
                let after = to(Router::Idle, self.before);
                self.quiet(actor, "finds the queue empty", About::Nothing, true, after);
            }
        }
    }

    fn route(&mut self, copy: u8, mut after: State, active: bool) {
        if active {
            insert_saga(self.model, &mut after, 0, &first_saga(self.model));
        }
        after.unrouted = false;
        let (actor, does) = (Actor::Router(copy), "routes the event");
        if let Router::Deleted = self.before.routers[usize::from(copy)] {
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

/// Inserts a saga, on conflict nothing.
pub(super) fn insert_saga(model: &Model, state: &mut State, generation: u8, saga: &Saga) {
    let taken = state.sagas.iter().flatten().any(|row| row.generation == generation);
    if taken && model.has(Guard::SagaKey) {
        return;
    }
    if let Some(free) = state.sagas.iter_mut().find(|row| row.is_none()) {
        *free = Some(SagaRow {
            generation,
            core: Core::of(saga),
            jobs: [None; MAX_JOBS],
            letter_queued: false,
            letters: 0,
        });
    }
}
