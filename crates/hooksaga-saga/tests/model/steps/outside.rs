//! Step 1, and the people outside: an event comes in, the subscription is paused, resumed and deleted.

use super::{About, Actor, Steps};
use crate::model::{guards::Guard, state::State};
use hooksaga_saga::SagaStatus;

/// As far as a broken pause may push a saga's next attempt.
const LAST_KEY: u8 = 4;

impl Steps<'_> {
    pub(super) fn outside(&mut self) {
        self.ingest();
        if self.model.pausing && !self.before.deleted {
            self.pause_or_resume();
        }
        if self.model.deleting && !self.before.deleted {
            let mut after = State { deleted: true, active: false, ..self.before };
            after.must_route &= after.routed_to_all(self.model.subscriptions);
            self.quiet(Actor::Outside, "deletes the subscription", About::Nothing, false, after);
        }
    }

    /// 1 ingest: the event, and its id into the queue.
    fn ingest(&mut self) {
        if !self.before.ingested {
            let one_commit = self.model.has(Guard::IngestQueuesInOneCommit);
            // What a test event has to reach its operator says, who may be gone by then.
            let must_route = self.before.active && !self.model.testing;
            let mut after = State { ingested: true, must_route, ..self.before };
            after.unrouted = one_commit.then_some(0);
            after.ingest_owes = !one_commit;
            self.quiet(Actor::Outside, "ingests the event", About::Nothing, false, after);
        }
        if self.before.ingest_owes {
            let after = State { unrouted: Some(0), ingest_owes: false, ..self.before };
            self.quiet(Actor::Outside, "queues the event", About::Nothing, true, after);
            let after = State { ingest_owes: false, ..self.before };
            self.quiet(Actor::Outside, "crashes", About::Nothing, false, after);
        }
    }

    fn pause_or_resume(&mut self) {
        let mut after = self.before;
        after.active = !self.before.active;
        if after.active {
            self.quiet(Actor::Outside, "resumes the subscription", About::Nothing, true, after);
            return;
        }
        after.must_route &= after.routed_to_all(self.model.subscriptions);
        if !self.model.has(Guard::PauseLeavesSagas) {
            for core in after.sagas.iter_mut().flatten().map(|saga| &mut saga.core) {
                if matches!(core.status, SagaStatus::Pending | SagaStatus::PendingRetry) {
                    core.next_attempt_at = (core.next_attempt_at + 1).min(LAST_KEY);
                }
            }
        }
        self.quiet(Actor::Outside, "pauses the subscription", About::Nothing, false, after);
    }
}
