//! `saga_orchestrator`: creates jobs and applies their results. The only role that changes a saga.

mod apply;
mod schedule;

use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{Admission, ApplyBatch, Decide, OrchestratorStore, Scheduled, StoreResult};
use std::{
    collections::HashMap,
    sync::atomic::{AtomicI64, Ordering},
};

#[cfg(feature = "test-support")]
pub(crate) use {apply::HOT as HOT_APPLY, schedule::HOT as HOT_SCHEDULE, schedule::HOT_OPEN_JOBS};

/// `+status`: found by id; the planner must not consider the index on status.
const MARK_IN_PROGRESS: &str = "/* saga_orchestrator: mark_in_progress */
UPDATE OR FAIL webhook_delivery_sagas SET status = 'InProgress', updated_at = ?3
 WHERE id = ?1 AND +status IN ('Pending', 'PendingRetry') AND +next_attempt_at = ?2";

#[cfg(feature = "test-support")]
pub(crate) const HOT_MARK: &[&str] = &[MARK_IN_PROGRESS];

pub(crate) struct Orchestrator {
    handle: RoleHandle,
    /// The subscription at which the last full pass stopped: the next begins behind it, so that all get
    /// their turn when there are more than one pass can serve.
    stopped_at: AtomicI64,
}

impl Orchestrator {
    pub(crate) fn new(handle: RoleHandle) -> Self {
        Self { handle, stopped_at: AtomicI64::new(0) }
    }
}

#[async_trait]
impl OrchestratorStore for Orchestrator {
    async fn schedule(&self, admission: &Admission) -> StoreResult<Scheduled> {
        let admission = admission.clone();
        let behind = SubscriptionId(self.stopped_at.load(Ordering::Relaxed));
        let pass = self.handle.write(move |tx| schedule::schedule(tx, &admission, behind)).await?;
        self.stopped_at.store(pass.stopped_at.0, Ordering::Relaxed);
        Ok(pass.scheduled)
    }

    async fn open_jobs(&self) -> StoreResult<HashMap<SubscriptionId, u32>> {
        self.handle.read(schedule::open_jobs).await
    }

    async fn mark_in_progress(&self, sagas: &[(SagaId, Timestamp)]) -> StoreResult<u64> {
        if sagas.is_empty() {
            return Ok(0);
        }
        let sagas = sagas.to_vec();
        self.handle.write(move |tx| mark_in_progress(tx, &sagas)).await
    }

    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch> {
        let decide = decide.clone();
        self.handle.write(move |tx| apply::apply(tx, limit, &decide)).await
    }
}

fn mark_in_progress(tx: &Tx<'_>, sagas: &[(SagaId, Timestamp)]) -> DbResult<u64> {
    let mut mark = tx.prepare(MARK_IN_PROGRESS)?;
    let mut moved = 0;
    for (id, attempt_at) in sagas {
        moved += mark.execute((id.0, attempt_at.as_micros(), tx.now.as_micros()))? as u64;
    }
    Ok(moved)
}
