//! `saga_orchestrator`: creates jobs and applies their results. The only role that changes a saga.

mod apply;
mod schedule;

use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{
    Allotted, ApplyBatch, Decide, JobsCreated, Load, OrchestratorStore, Scheduled, StoreResult, WaitingPage,
};

#[cfg(feature = "test-support")]
pub(crate) use {
    apply::HOT as HOT_APPLY,
    schedule::{HOT_CREATE_JOBS, HOT_LOAD, HOT_WAITING},
};

/// `+status`: found by id; the planner must not consider the index on status.
const MARK_IN_PROGRESS: &str = "/* saga_orchestrator: mark_in_progress */
UPDATE OR FAIL webhook_delivery_sagas SET status = 'InProgress', updated_at = ?3
 WHERE id = ?1 AND +status IN ('Pending', 'PendingRetry') AND +next_attempt_at = ?2";

#[cfg(feature = "test-support")]
pub(crate) const HOT_MARK: &[&str] = &[MARK_IN_PROGRESS];

pub(crate) struct Orchestrator(pub(crate) RoleHandle);

#[async_trait]
impl OrchestratorStore for Orchestrator {
    async fn waiting(&self, after: Option<SubscriptionId>, limit: u32) -> StoreResult<WaitingPage> {
        self.0.read(move |tx| schedule::waiting(tx, after, limit)).await
    }

    /// A job that was committed here is there: the move need not look.
    async fn create_jobs(&self, allotted: &[Allotted], created: JobsCreated<'_>) -> StoreResult<Scheduled> {
        let allotted = allotted.to_vec();
        let scheduled = self.0.write(move |tx| schedule::create_jobs(tx, &allotted)).await?;
        if scheduled.sagas.is_empty() || created().is_break() {
            return Ok(scheduled);
        }
        let sagas: Vec<_> = scheduled.sagas.iter().map(|saga| (saga.saga_id, saga.attempt_at)).collect();
        self.0.write(move |tx| mark_in_progress(tx, &sagas)).await?;
        Ok(scheduled)
    }

    async fn load(&self) -> StoreResult<Load> {
        self.0.read(schedule::load).await
    }

    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch> {
        let decide = decide.clone();
        self.0.write(move |tx| apply::apply(tx, limit, &decide)).await
    }
}

fn mark_in_progress(tx: &Tx<'_>, sagas: &[(SagaId, Timestamp)]) -> DbResult<()> {
    let mut mark = tx.prepare(MARK_IN_PROGRESS)?;
    for (id, attempt_at) in sagas {
        mark.execute((id.0, attempt_at.as_micros(), tx.now.as_micros()))?;
    }
    Ok(())
}
