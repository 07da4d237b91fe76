//! `saga_orchestrator`: creates jobs and applies their results. The only role that changes a saga.

mod apply;
mod counts;
mod schedule;
mod stranded;

use crate::{
    engine::RoleHandle,
    error::{DbError, DbResult},
    roles::{
        endpoint,
        multi_row::{Write, several},
    },
    session::{Commit, Tx},
};
use async_trait::async_trait;
use hooksaga_saga::{ErrorCode, FurthestAttempt, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{
    Allotted, ApplyBatch, Decide, JobsCreated, Move, OrchestratorStore, Scheduled, StoreError, StoreResult,
    StrandedStep, WaitingPage, WorkerLoad,
};

#[cfg(feature = "test-support")]
pub(crate) use {
    apply::HOT as HOT_APPLY,
    schedule::{HOT_CREATE_JOBS, HOT_LOAD, HOT_WAITING},
};

/// `+status`: found by id; the planner must not consider the index on status.
macro_rules! mark_in_progress {
    ($name:literal, $ids:expr) => {
        concat!(
            "/* orchestrator.",
            $name,
            " */
UPDATE OR FAIL webhook_delivery_sagas SET status = 'InProgress', updated_at = ?1
 WHERE +status IN ('Pending', 'PendingRetry') AND +next_attempt_at = ?2 AND id IN (",
            $ids,
            ")"
        )
    };
}
const MARK_IN_PROGRESS: Write = Write {
    several: mark_in_progress!("mark_in_progress", several!("?")),
    one: mark_in_progress!("mark_one_in_progress", "?"),
};

#[cfg(feature = "test-support")]
pub(crate) const HOT_MARK: &[&str] = &[MARK_IN_PROGRESS.several, MARK_IN_PROGRESS.one];

pub(crate) struct OrchestratorSql(pub(crate) RoleHandle);

#[async_trait]
impl OrchestratorStore for OrchestratorSql {
    async fn waiting(&self, after: Option<SubscriptionId>, limit: u32) -> StoreResult<WaitingPage> {
        self.0.read(move |tx| schedule::waiting(tx, after, limit)).await
    }

    /// The jobs may not be committed yet when the sagas are moved, but they are in the database, or the move does
    /// nothing: it need not look for them.
    async fn create_jobs(&self, allotted: &[Allotted], created: JobsCreated<'_>) -> StoreResult<Scheduled> {
        let allotted = allotted.to_vec();
        let create = move |tx: &Tx<'_>| Ok((schedule::create_jobs(tx, &allotted)?, tx.undone));
        let (scheduled, undone) = self.0.write_linked(Commit::Deferred, create).await?;
        if scheduled.sagas.is_empty() || created() == Move::Never {
            return Ok(scheduled);
        }
        let sagas: Vec<_> = scheduled.sagas.iter().map(|saga| (saga.saga_id, saga.attempt_at)).collect();
        let mark = move |tx: &Tx<'_>| {
            if tx.undone != undone {
                let text = "the jobs were not stored; they are created again".to_owned();
                return Err(DbError::Store(StoreError::Unavailable(text)));
            }
            mark_in_progress(tx, &sagas)
        };
        self.0.write_linked(Commit::Deferred, mark).await?;
        Ok(scheduled)
    }

    async fn schedule_stranded(
        &self,
        after: Option<SubscriptionId>,
        beyond: FurthestAttempt,
    ) -> StoreResult<StrandedStep> {
        let found = self.0.write(move |tx| stranded::create_jobs(tx, after, beyond)).await?;
        let step = StrandedStep { sagas: found.sagas.len() as u64, resume_after: found.resume_after };
        if !found.sagas.is_empty() {
            self.0.write(move |tx| mark_in_progress(tx, &found.sagas)).await?;
        }
        Ok(step)
    }

    async fn load(&self) -> StoreResult<WorkerLoad> {
        self.0.read(schedule::load).await
    }

    async fn failing(&self, limit: u32) -> StoreResult<Vec<(SubscriptionId, ErrorCode)>> {
        self.0.read(move |tx| endpoint::failing(tx, limit)).await
    }

    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch> {
        let decide = decide.clone();
        self.0.write(move |tx| apply::apply(tx, limit, &decide)).await
    }
}

fn mark_in_progress(tx: &Tx<'_>, sagas: &[(SagaId, Timestamp)]) -> DbResult<()> {
    let mut sorted: Vec<_> = sagas.iter().map(|(id, attempt_at)| (attempt_at.as_micros(), [id.0])).collect();
    sorted.sort_unstable();
    // Those that were created together are due at the same time.
    for together in sorted.chunk_by(|one, next| one.0 == next.0) {
        let ids: Vec<_> = together.iter().map(|(_, id)| *id).collect();
        MARK_IN_PROGRESS.run(tx, &[tx.now.as_micros(), together[0].0], &ids)?;
    }
    Ok(())
}
