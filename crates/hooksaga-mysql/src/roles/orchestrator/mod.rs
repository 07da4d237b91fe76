//! `saga_orchestrator`: creates jobs and applies their results. The only role that changes a saga.

pub(crate) mod apply;
pub(crate) mod counts;
mod limited;
pub(crate) mod schedule;
pub(crate) mod stranded;
pub(crate) mod waiting;

use crate::{pool::RolePool, roles::endpoint};
use async_trait::async_trait;
use hooksaga_saga::{ErrorCode, FurthestAttempt, SubscriptionId};
use hooksaga_store::{
    Allotted, ApplyBatch, Decide, HeldEndpoints, JobsCreated, OrchestratorStore, Scheduled, StoreResult,
    StrandedStep, WaitingPage, WorkerLoad,
};
use schedule::{JobCheck, RetryPause};
use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

/// How many rows a subscription's counter of one minute is spread over.
const SHARDS: u32 = 16;

pub(crate) struct OrchestratorSql {
    pool: RolePool,
    /// Which of the counter's rows this process adds to: drawn once, so that concurrent orchestrators rarely
    /// wait for each other's; and another one after a wait that timed out, since the process that holds that row may be
    /// frozen.
    shard: AtomicU32,
    held: HeldEndpoints,
    retries: RetryPause,
    /// How many more passes look first for jobs that their sagas already have.
    checks_left: AtomicU32,
    /// The last pass found results to apply: the next one most likely finds some as well.
    results_found: AtomicBool,
}

/// The number of passes that look for such jobs after one has met some: with several orchestrators there will be more.
const CHECKS: u32 = 100;

impl OrchestratorSql {
    pub(crate) fn new(pool: RolePool) -> Self {
        let drawn = RandomState::new().build_hasher().finish() % u64::from(SHARDS);
        let shard = AtomicU32::new(u32::try_from(drawn).unwrap_or(0));
        Self {
            pool,
            shard,
            held: HeldEndpoints::default(),
            retries: RetryPause::default(),
            checks_left: AtomicU32::new(0),
            results_found: AtomicBool::new(false),
        }
    }
}

#[async_trait]
impl OrchestratorStore for OrchestratorSql {
    async fn waiting(&self, after: Option<SubscriptionId>, limit: u32) -> StoreResult<WaitingPage> {
        self.pool.run(|connection| waiting::waiting(connection, after, limit)).await
    }

    async fn create_jobs(&self, allotted: &[Allotted], created: JobsCreated<'_>) -> StoreResult<Scheduled> {
        self.pool
            .run_inserting(|connection| async move {
                let left = self.checks_left.load(Ordering::Relaxed);
                let check = if left > 0 { JobCheck::First } else { JobCheck::AfterConflict };
                let scheduled =
                    schedule::create_jobs(connection, allotted, created, check, &self.retries).await;
                let left = match &scheduled {
                    Err(error) if error.is_duplicate() => CHECKS,
                    _ => left.saturating_sub(1),
                };
                self.checks_left.store(left, Ordering::Relaxed);
                scheduled
            })
            .await
    }

    async fn schedule_stranded(
        &self,
        after: Option<SubscriptionId>,
        beyond: FurthestAttempt,
    ) -> StoreResult<StrandedStep> {
        // One look finds them all, whoever they belong to.
        let _ = after;
        self.pool.run_inserting(|connection| stranded::schedule_stranded(connection, beyond)).await
    }

    async fn load(&self) -> StoreResult<WorkerLoad> {
        self.pool.run(waiting::load).await
    }

    async fn failing(&self, limit: u32) -> StoreResult<Vec<(SubscriptionId, ErrorCode)>> {
        self.pool.run(|connection| endpoint::failing(connection, limit)).await
    }

    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch> {
        self.pool
            .run(|connection| async move {
                let shard = self.shard.load(Ordering::Relaxed);
                let found = self.results_found.load(Ordering::Relaxed);
                let peek = if found { apply::Peek::Skip } else { apply::Peek::First };
                let applied = apply::apply(connection, limit, shard, decide, peek, &self.held).await;
                let found = applied.as_ref().is_ok_and(|batch| !batch.results.is_empty());
                self.results_found.store(found, Ordering::Relaxed);
                if applied.as_ref().is_err_and(|error| error.is_locked_out()) {
                    self.shard.store((shard + 1) % SHARDS, Ordering::Relaxed);
                }
                applied
            })
            .await
    }
}
