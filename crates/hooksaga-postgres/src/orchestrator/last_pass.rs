//! Which sagas are known to have their jobs.
//!
//! Jobs are committed without waiting for the disk: a crash of the database can lose some that it had answered, and a
//! saga that is moved to InProgress without its job would be stuck. But a crash ends every session. What a session has
//! been answered is there as long as that session lives, and only a move in another one has to look for the jobs.

use deadpool_postgres::{Client, StatementCache};
use hooksaga_store::ScheduledSaga;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sagas of the last pass, and its session.
#[derive(Default)]
pub(crate) struct LastPass(Mutex<Option<Pass>>);

struct Pass {
    /// Every session has a cache of its own. It is kept, so that no later session's can come to lie in its place.
    session: Arc<StatementCache>,
    /// In the order of their ids.
    sagas: Vec<i64>,
}

impl LastPass {
    fn slot(&self) -> MutexGuard<'_, Option<Pass>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remember(&self, client: &Client, sagas: &[ScheduledSaga]) {
        let mut sagas: Vec<i64> = sagas.iter().map(|saga| saga.saga_id.0).collect();
        sagas.sort_unstable();
        *self.slot() = Some(Pass { session: Arc::clone(&client.statement_cache), sagas });
    }

    /// Whether these sagas, in the order of their ids, are those of the last pass, and this is its session.
    pub(super) fn is(&self, client: &Client, sagas: &[i64]) -> bool {
        self.slot()
            .as_ref()
            .is_some_and(|pass| Arc::ptr_eq(&pass.session, &client.statement_cache) && pass.sagas == sagas)
    }
}
