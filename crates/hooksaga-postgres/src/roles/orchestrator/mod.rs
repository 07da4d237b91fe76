//! `saga_orchestrator`: creates jobs and applies their results. The only role that changes a saga.

pub(crate) mod apply;
mod last_pass;
pub(crate) mod schedule;

use crate::{
    pool::RolePool,
    roles::{correlations::Correlations, frontier::Frontier, insert::Inserter},
};
use async_trait::async_trait;
use hooksaga_saga::{SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{Admission, ApplyBatch, Decide, OrchestratorStore, Scheduled, StoreResult};
use last_pass::LastPass;
use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::Arc,
};

/// How many rows a subscription's counter of one minute is spread over.
const SHARDS: u64 = 16;

pub(crate) struct Orchestrator {
    /// Jobs, and the sagas' move to InProgress: follow from the sagas, and commit without waiting for the disk. The claim
    /// of a job does wait, before anything is sent.
    scheduling: RolePool,
    /// Results.
    applying: RolePool,
    /// Which of the counter's rows this process adds to: drawn once, so that concurrent orchestrators rarely
    /// wait for each other's.
    shard: i32,
    results: Frontier,
    jobs: Inserter,
    scheduled: schedule::Reached,
    last_pass: LastPass,
    correlations: Arc<Correlations>,
}

impl Orchestrator {
    pub(crate) fn new(scheduling: RolePool, applying: RolePool, correlations: Arc<Correlations>) -> Self {
        let drawn = RandomState::new().build_hasher().finish() % SHARDS;
        Self {
            scheduling,
            applying,
            shard: i32::try_from(drawn).unwrap_or(0),
            results: Frontier::new(apply::MARGIN),
            jobs: Inserter::default(),
            scheduled: schedule::Reached::default(),
            last_pass: LastPass::default(),
            correlations,
        }
    }
}

#[async_trait]
impl OrchestratorStore for Orchestrator {
    async fn schedule(&self, admission: &Admission) -> StoreResult<Scheduled> {
        self.scheduling
            .run(|client| async move {
                let done =
                    schedule::schedule(&client, &self.jobs, &self.scheduled, &self.correlations, admission)
                        .await?;
                self.last_pass.remember(&client, &done.sagas);
                Ok(done)
            })
            .await
    }

    async fn open_jobs(&self) -> StoreResult<HashMap<SubscriptionId, u32>> {
        self.scheduling.run(|client| async move { schedule::open_jobs(&client).await }).await
    }

    async fn mark_in_progress(&self, sagas: &[(SagaId, Timestamp)]) -> StoreResult<u64> {
        self.scheduling
            .run(|client| async move { schedule::mark_in_progress(&client, &self.last_pass, sagas).await })
            .await
    }

    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch> {
        self.applying
            .run(|mut client| async move {
                apply::apply(&mut client, limit, self.shard, &self.results, &self.correlations, decide).await
            })
            .await
    }
}
