//! Which sagas are known to have their jobs.
//!
//! Jobs are committed without waiting for the disk: a crash of the database can lose some that it had answered, and a
//! saga that is moved to InProgress without its job would be stuck. But a crash ends every session. What a session has
//! been answered is there as long as that session lives, and only a move in another one has to look for the jobs. (A
//! pooler in between that changes sessions under a connection is not supported.)

use deadpool_postgres::{Client, StatementCache};
use hooksaga_saga::{SagaId, Timestamp};
use hooksaga_store::ScheduledSaga;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sagas that the last pass gave jobs, and its session.
#[derive(Default)]
pub(crate) struct LastPass(Mutex<Option<Pass>>);

struct Pass {
    /// Every session has a cache of its own. It is kept, so that no later session's can come to lie in its place.
    session: Arc<StatementCache>,
    /// The keys of its jobs, in their order. What had a job before, by whichever key, is not among them.
    jobs: Vec<(SagaId, Timestamp)>,
}

impl LastPass {
    fn slot(&self) -> MutexGuard<'_, Option<Pass>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remember(&self, client: &Client, sagas: &[ScheduledSaga]) {
        let made = sagas.iter().filter(|saga| saga.job_id.is_some());
        let mut jobs: Vec<_> = made.map(|saga| (saga.saga_id, saga.attempt_at)).collect();
        jobs.sort_unstable();
        *self.slot() = Some(Pass { session: Arc::clone(&client.statement_cache), jobs });
    }

    /// Whether these are the keys of the jobs that the last pass made, in their order, and this is its session.
    pub(super) fn made(&self, client: &Client, jobs: &[(SagaId, Timestamp)]) -> bool {
        self.slot()
            .as_ref()
            .is_some_and(|pass| Arc::ptr_eq(&pass.session, &client.statement_cache) && pass.jobs == jobs)
    }
}
