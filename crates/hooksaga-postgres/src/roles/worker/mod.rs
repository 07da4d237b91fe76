//! `job_worker`: leases jobs and reports how they ended.

pub(crate) mod claim;
pub(crate) mod parking;
pub(crate) mod report;

use crate::{
    pool::RolePool,
    roles::{
        rate_limits::{self, Buckets},
        rows::{bigint, integer},
    },
    time::{SqlTime, micros},
};
use async_trait::async_trait;
use claim::Claims;
use hooksaga_saga::{JobId, Lead, SagaId, Timestamp};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, HeldBuckets, JobReport, LeaseRef, LeaseRequest, Starting, Starts, StoreResult,
    WorkerBeat, WorkerStore,
};
use report::ReportColumns;
use std::time::Duration;
use tokio_postgres::types::ToSql;

const HEARTBEAT: &str = "/* worker.heartbeat */
WITH gone AS (
    DELETE FROM workers WHERE seen_at < now() - interval '1 hour' AND id <> $1
)
INSERT INTO workers (id, slots, version) VALUES ($1, $2, left($3, 50))
ON CONFLICT (id) DO UPDATE SET slots = excluded.slots, version = excluded.version, seen_at = now()";

const LEAVE: &str = "/* worker.leave */ DELETE FROM workers WHERE id = $1";

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* worker.secret_key_ids */
SELECT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > now()
UNION SELECT key_id FROM subscription_headers ORDER BY key_id";

pub(crate) struct WorkerSql {
    pool: RolePool,
    claims: Claims,
}

impl WorkerSql {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool, claims: Claims::new() }
    }

    /// Runs a statement. Returns how many rows it changed.
    async fn execute(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> StoreResult<u64> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(sql).await?;
                Ok(client.execute(&statement, parameters).await?)
            })
            .await
    }

    /// Runs a statement that gives jobs back. Returns those that changed.
    async fn give_back(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> StoreResult<Vec<JobId>> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(sql).await?;
                let rows = client.query(&statement, parameters).await?;
                rows.iter().map(|row| Ok(JobId(row.try_get(0)?))).collect()
            })
            .await
    }
}

#[async_trait]
impl WorkerStore for WorkerSql {
    async fn claim(&self, limits: &ClaimLimits, lease: LeaseRequest) -> StoreResult<ClaimedBatch> {
        self.pool.run(|client| async move { self.claims.claim(&client, limits, lease).await }).await
    }

    async fn start_limited(
        &self,
        starting: &[Starting],
        lead: Lead,
        held: HeldBuckets,
    ) -> StoreResult<Starts> {
        self.pool
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let mut ids: Vec<i64> = starting.iter().map(|one| one.subscription_id.0).collect();
                ids.sort_unstable();
                let buckets = Buckets::lock(&transaction, rate_limits::START, &ids, held).await?;
                let clock = buckets.clock;
                let (mut reserved, mut stored) = (Vec::new(), Vec::new());
                for Starting { subscription_id, limit, jobs } in starting.iter().copied() {
                    let full_at = buckets.full_at(subscription_id);
                    let one = full_at.map(|at| limit.reserve(Some(at), jobs, clock.time, lead));
                    stored.extend(one.map(|one| (subscription_id, one.full_at)));
                    reserved.push(one);
                }
                buckets.store(&transaction, &stored).await?;
                transaction.commit().await?;
                Ok(Starts { clock, reserved })
            })
            .await
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        let keys = &LeaseColumns::sorted(leases);
        let delay = micros(delay);
        self.give_back(parking::HAND_BACK, &[&keys.sagas, &keys.attempts, &keys.ids, &keys.tokens, &delay])
            .await
    }

    async fn park(&self, leases: &[LeaseRef]) -> StoreResult<Vec<JobId>> {
        let keys = &LeaseColumns::sorted(leases);
        self.give_back(parking::PARK, &[&keys.sagas, &keys.attempts, &keys.ids, &keys.tokens]).await
    }

    async fn unpark(&self, limit: u32) -> StoreResult<u64> {
        self.execute(parking::UNPARK, &[&bigint(limit)]).await
    }

    async fn heartbeat(&self, beat: &WorkerBeat) -> StoreResult<()> {
        let slots = integer(beat.slots);
        self.execute(HEARTBEAT, &[&beat.worker_id, &slots, &beat.version]).await?;
        Ok(())
    }

    async fn leave(&self, worker_id: i64) -> StoreResult<()> {
        self.execute(LEAVE, &[&worker_id]).await?;
        Ok(())
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        let columns = &ReportColumns::new(reports);
        self.pool.run(|client| async move { report::report(&client, columns).await }).await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        secret_key_ids(&self.pool).await
    }
}

/// The key ids of valid secrets: for each of the roles that may see them.
pub(crate) async fn secret_key_ids(pool: &RolePool) -> StoreResult<Vec<String>> {
    pool.run(|client| async move {
        let rows = client.query(SECRET_KEY_IDS, &[]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    })
    .await
}

/// The order in which jobs are written: by their key.
fn in_order(lease: &LeaseRef) -> (SagaId, Timestamp) {
    (lease.saga_id, lease.attempt_at)
}

/// Leases as columns.
struct LeaseColumns {
    sagas: Vec<i64>,
    attempts: Vec<SqlTime>,
    ids: Vec<i64>,
    tokens: Vec<i64>,
}

impl LeaseColumns {
    /// In the order in which jobs are written.
    fn sorted(leases: &[LeaseRef]) -> Self {
        let mut leases = leases.to_vec();
        leases.sort_unstable_by_key(in_order);
        Self::new(leases.iter())
    }

    fn new<'a>(leases: impl Iterator<Item = &'a LeaseRef> + Clone) -> Self {
        Self {
            sagas: leases.clone().map(|lease| lease.saga_id.0).collect(),
            attempts: leases.clone().map(|lease| SqlTime(lease.attempt_at)).collect(),
            ids: leases.clone().map(|lease| lease.job_id.0).collect(),
            tokens: leases.map(|lease| lease.token.0).collect(),
        }
    }
}
