//! Steps 7 and 8: dead letters are written, what has ended is sent again as a new saga, and a test event gets its saga.

use super::{
    About, Actor, Steps,
    routing::{first_saga, insert_saga},
};
use crate::model::{
    guards::Guard,
    state::{Burier, Core, FIRST_KEY, Operator, State, time},
};
use hooksaga_saga::send_again;

impl Steps<'_> {
    /// 7 bury: lock the queue row, insert the letter on conflict nothing, delete the queue row.
    pub(super) fn burying(&mut self, copy: u8) {
        let actor = Actor::Burier(copy);
        let to = |memory: Burier, mut state: State| {
            state.buriers[usize::from(copy)] = memory;
            state
        };
        match self.before.buriers[usize::from(copy)] {
            Burier::Idle => {
                let queued = |saga: &u8| self.before.saga(*saga).letter_queued;
                for saga in self.before.saga_ids().filter(queued).collect::<Vec<_>>() {
                    if !self.model.has(Guard::BuryLock) {
                        let after = to(Burier::Took(saga), self.before);
                        self.quiet(actor, "reads the letter queue", self.about_saga(saga), true, after);
                    } else if self.model.has(Guard::BuryDeletesInOneCommit) {
                        self.bury(copy, saga);
                    } else {
                        let mut after = to(Burier::Deleted(saga), self.before);
                        after.saga_mut(saga).letter_queued = false;
                        let does = "takes the letter off the queue";
                        self.transaction(actor, does, self.about_saga(saga), after);
                    }
                }
            }
            Burier::Took(saga) | Burier::Deleted(saga) => self.bury(copy, saga),
        }
    }

    fn bury(&mut self, copy: u8, saga: u8) {
        let mut after = self.before;
        after.buriers[usize::from(copy)] = Burier::Idle;
        let row = after.saga_mut(saga);
        row.letter_queued = false;
        if row.letters == 0 || !self.model.has(Guard::LetterKey) {
            row.letters += 1;
        }
        let (actor, does, about) = (Actor::Burier(copy), "writes the dead letter", self.about_saga(saga));
        if let Burier::Deleted(_) = self.before.buriers[usize::from(copy)] {
            self.transaction(actor, does, about, after);
        } else {
            // Unheard of, the whole transaction is tried again, from the queue on: nothing is remembered.
            self.quiet(actor, does, about, true, after);
        }
    }

    /// 8 requeue, resend: a letter's saga again, or any that has ended, as the next generation, on conflict nothing. Read
    /// and insert are two steps: two operators may read the same saga.
    pub(super) fn requeueing(&mut self, copy: u8) {
        let actor = Actor::Operator(copy);
        match self.before.operators[usize::from(copy)] {
            Operator::Idle => {
                if self.model.testing && self.before.ingested && self.before.active {
                    let mut after = self.before;
                    after.operators[usize::from(copy)] =
                        Operator::Requeues { subscription: 0, generation: 0 };
                    self.quiet(actor, "asks for the test event's saga", About::Nothing, false, after);
                }
                for saga in self.before.saga_ids() {
                    let row = self.before.saga(saga);
                    let generation = row.generation + 1;
                    let ended = row.letters > 0 || (self.model.resending && row.core.status.is_final());
                    if self.before.active && ended && generation < self.model.generations {
                        let mut after = self.before;
                        after.operators[usize::from(copy)] =
                            Operator::Requeues { subscription: row.subscription, generation };
                        self.quiet(actor, "asks to send it again", self.about_saga(saga), false, after);
                    }
                }
            }
            // 8' test event: the saga that routing would insert, for the one subscription, on conflict nothing.
            Operator::Requeues { subscription, generation: 0 } => {
                let mut after = self.before;
                after.operators[usize::from(copy)] = Operator::Idle;
                insert_saga(self.model, &mut after, subscription, 0, &first_saga(self.model));
                self.transaction(actor, "inserts the test event's saga", About::Saga(0), after);
            }
            Operator::Requeues { subscription, generation } => {
                let mut after = self.before;
                after.operators[usize::from(copy)] = Operator::Idle;
                let ended = self
                    .before
                    .sagas
                    .iter()
                    .flatten()
                    .find(|row| (row.subscription, row.generation + 1) == (subscription, generation));
                let ended: Core = ended.unwrap().core;
                let now = time(FIRST_KEY);
                let next = send_again(&ended.to_saga(), (generation - 1).into(), ended.limit.into(), now);
                let (next_generation, saga) = next.unwrap();
                let generation = u8::try_from(next_generation).unwrap();
                insert_saga(self.model, &mut after, subscription, generation, &saga);
                let about = About::Saga(generation);
                self.transaction(actor, "inserts the next saga", about, after);
            }
        }
    }
}
