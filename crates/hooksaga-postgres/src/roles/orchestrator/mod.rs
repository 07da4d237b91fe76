//! `saga_orchestrator`: creates jobs and applies their results. The only role that changes a saga.

pub(crate) mod apply;
pub(crate) mod counts;
mod deferred_moves;
pub(crate) mod limited;
pub(crate) mod schedule;
mod schedule_position;
pub(crate) mod stranded;

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        correlations::Correlations, endpoint, insert_without_conflicts::Inserter, scan_position::Frontier,
    },
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use deferred_moves::Unmoved;
use hooksaga_saga::{ErrorCode, FurthestAttempt, SagaId, SubscriptionId};
use hooksaga_store::{
    Allotted, ApplyBatch, Decide, HeldEndpoints, JobsCreated, Move, OrchestratorStore, Scheduled,
    StoreResult, StrandedStep, WaitingPage, WorkerLoad,
};
use schedule_position::Reached;
use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::{Duration, Instant},
};

/// How many rows a subscription's counter of one minute is spread over.
const SHARDS: i32 = 16;

pub(crate) struct OrchestratorSql {
    /// Jobs, and the sagas' move to InProgress: follow from the sagas, and commit without waiting for the disk. The claim
    /// of a job does wait, before anything is sent.
    scheduling: RolePool,
    /// Results.
    applying: RolePool,
    /// Which of the counter's rows this process adds to: drawn once, so that concurrent orchestrators rarely
    /// wait for each other's; and another one after a wait that timed out, since the process that holds that row may be
    /// frozen.
    shard: AtomicI32,
    held: HeldEndpoints,
    results: Frontier,
    jobs: Inserter,
    reached: Reached,
    unmoved: Unmoved,
    correlations: Arc<Correlations>,
}

impl OrchestratorSql {
    pub(crate) fn new(scheduling: RolePool, applying: RolePool, correlations: Arc<Correlations>) -> Self {
        let drawn = RandomState::new().build_hasher().finish() % u64::from(SHARDS.unsigned_abs());
        Self {
            scheduling,
            applying,
            shard: AtomicI32::new(i32::try_from(drawn).unwrap_or(0)),
            held: HeldEndpoints::default(),
            results: Frontier::new(apply::MARGIN),
            jobs: Inserter::default(),
            reached: Reached::default(),
            unmoved: Unmoved::default(),
            correlations,
        }
    }
}

impl OrchestratorSql {
    async fn apply_with(&self, client: &mut Client, limit: u32, decide: &Decide) -> DbResult<ApplyBatch> {
        let shard = self.shard.load(Ordering::Relaxed);
        let Self { results, correlations, held, .. } = self;
        let applied = apply::apply(client, limit, shard, results, correlations, decide, held).await;
        if applied.as_ref().is_err_and(DbError::is_lock_timeout) {
            self.shard.store((shard + 1) % SHARDS, Ordering::Relaxed);
        }
        applied
    }
}

#[async_trait]
impl OrchestratorStore for OrchestratorSql {
    async fn waiting(&self, after: Option<SubscriptionId>, limit: u32) -> StoreResult<WaitingPage> {
        self.scheduling.run(|client| async move { schedule::waiting(&client, after, limit).await }).await
    }

    async fn create_jobs(&self, allotted: &[Allotted], created: JobsCreated<'_>) -> StoreResult<Scheduled> {
        // The connection is kept for the move.
        let create = |mut client| async move {
            let jobs = schedule::create_jobs(&mut client, &self.jobs, &self.reached, &self.unmoved, allotted)
                .await?;
            Ok((client, jobs))
        };
        let (client, done) = self.scheduling.run(create).await?;
        if done.is_empty() {
            return Ok(done.into_scheduled(Vec::new()));
        }
        let jobs = &done;
        let when = created();
        // Where keys were taken lately another process schedules, too: it would find these sagas due.
        let leaves_moves = || !self.jobs.is_careful() && jobs.leave_moves(&self.unmoved);
        if when == Move::Never || (when == Move::Later && leaves_moves()) {
            let look_up = |client| async move { Ok(jobs.correlate(&client, &self.correlations).await) };
            // Only for the log.
            let correlations = self.scheduling.run_on(client, look_up).await.unwrap_or_default();
            if when == Move::Later {
                done.remember(&self.reached);
            }
            return Ok(done.into_scheduled(correlations));
        }
        // They travel together; neither waits for the other.
        let in_session = |client| async move {
            let moved = jobs.move_sagas(&client, jobs.move_in_session());
            let (moved, correlations) =
                tokio::join!(biased; moved, jobs.correlate(&client, &self.correlations));
            moved.map(|()| correlations)
        };
        let correlations = match self.scheduling.run_on(client, in_session).await {
            Ok(correlations) => correlations,
            // Lost to another transaction, or the session is gone and perhaps the jobs with it.
            Err(_) => {
                let elsewhere = |client| async move {
                    jobs.move_sagas(&client, schedule::MOVE_WITH_JOB).await?;
                    Ok(jobs.correlate(&client, &self.correlations).await)
                };
                self.scheduling.run(elsewhere).await?
            }
        };
        done.remember(&self.reached);
        Ok(done.into_scheduled(correlations))
    }

    fn until_move(&self) -> Option<Duration> {
        self.unmoved.until_move(Instant::now())
    }

    async fn move_rest(&self) -> StoreResult<()> {
        let (ids, attempts) = &self.unmoved.keys();
        if ids.is_empty() {
            return Ok(());
        }
        // In any session, so it looks for the jobs.
        let moved = self
            .scheduling
            .run(|client| async move {
                schedule::move_sagas(&client, schedule::MOVE_WITH_JOB, ids, attempts).await
            })
            .await;
        self.unmoved.forget(ids.iter().map(|id| SagaId(*id)));
        moved
    }

    async fn schedule_stranded(
        &self,
        after: Option<SubscriptionId>,
        beyond: FurthestAttempt,
    ) -> StoreResult<StrandedStep> {
        self.scheduling
            .run(|client| async move { stranded::schedule_stranded(&client, after, beyond).await })
            .await
    }

    async fn load(&self) -> StoreResult<WorkerLoad> {
        self.scheduling.run(|client| async move { schedule::load(&client).await }).await
    }

    async fn failing(&self, limit: u32) -> StoreResult<Vec<(SubscriptionId, ErrorCode)>> {
        self.scheduling.run(|client| async move { endpoint::failing(&client, limit).await }).await
    }

    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch> {
        let done = self
            .applying
            .run(|mut client| async move {
                let mut tried = 0;
                loop {
                    tried += 1;
                    match self.apply_with(&mut client, limit, decide).await {
                        // What was held is known now.
                        Err(error) if error.is_lock_timeout() && tried == 1 => {}
                        done => return done,
                    }
                }
            })
            .await;
        if let Ok(batch) = &done {
            self.unmoved.forget(batch.results.iter().map(|result| result.saga_id));
        }
        done
    }
}
