//! `saga_orchestrator`: creates jobs and applies their results. The only role that changes a saga.

pub(crate) mod apply;
pub(crate) mod schedule;

use crate::pool::RolePool;
use async_trait::async_trait;
use hooksaga_saga::{SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{Admission, ApplyBatch, Decide, OrchestratorStore, Scheduled, StoreResult};
use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hasher as _, RandomState},
};

/// How many rows a subscription's counter of one minute is spread over.
const SHARDS: u64 = 16;

pub(crate) struct Orchestrator {
    pool: RolePool,
    /// Which of the counter's rows this process adds to: drawn once, so that concurrent orchestrators rarely
    /// wait for each other's.
    shard: i32,
}

impl Orchestrator {
    pub(crate) fn new(pool: RolePool) -> Self {
        let drawn = RandomState::new().build_hasher().finish() % SHARDS;
        Self { pool, shard: i32::try_from(drawn).unwrap_or(0) }
    }
}

#[async_trait]
impl OrchestratorStore for Orchestrator {
    async fn schedule(&self, admission: &Admission) -> StoreResult<Scheduled> {
        self.pool.run_inserting(|connection| schedule::schedule(connection, admission)).await
    }

    async fn open_jobs(&self) -> StoreResult<HashMap<SubscriptionId, u32>> {
        self.pool.run(schedule::open_jobs).await
    }

    async fn mark_in_progress(&self, sagas: &[(SagaId, Timestamp)]) -> StoreResult<u64> {
        self.pool.run(|connection| schedule::mark_in_progress(connection, sagas)).await
    }

    async fn apply(&self, limit: u32, decide: &Decide) -> StoreResult<ApplyBatch> {
        self.pool.run(|connection| apply::apply(connection, limit, self.shard, decide)).await
    }
}
