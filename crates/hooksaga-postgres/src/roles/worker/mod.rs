//! `job_worker`: leases jobs and reports how they ended.

pub(crate) mod claim;
pub(crate) mod report;

use crate::{
    pool::RolePool,
    roles::{
        rate_limits::{self, Buckets},
        rows::{bigint, integer},
    },
    time::{Time, micros},
};
use async_trait::async_trait;
use claim::Claims;
use hooksaga_saga::{Gate, JobId, Passage, SagaId, Timestamp};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, JobReport, LeaseRef, LeaseRequest, Started, Starting, StoreResult, WorkerBeat,
    WorkerStore,
};
use report::ReportColumns;
use std::time::Duration;
use tokio_postgres::types::ToSql;

/// Fenced by token; driven by the given keys (the status is hidden, as above).
pub(crate) const HAND_BACK: &str = "/* worker.hand_back */
UPDATE webhook_delivery_jobs j
SET status = 'Pending', lease_until = now() + $5::bigint * interval '1 microsecond', lease_token = NULL,
    updated_at = now()
FROM unnest($1::bigint[], $2::timestamptz[], $3::bigint[], $4::bigint[]) AS u (saga_id, attempt_at, id, token)
WHERE j.saga_id = u.saga_id AND j.attempt_at = u.attempt_at
  AND j.id = u.id AND j.lease_token = u.token AND j.status = (SELECT 'Leased'::job_status)
RETURNING j.id";

/// Fenced by token. A subscription that is deliverable by now, or of which nothing is known, is no reason to wait.
pub(crate) const PARK: &str = "/* worker.park */
UPDATE webhook_delivery_jobs j
SET status = 'Pending', lease_token = NULL, updated_at = now(),
    lease_until = CASE WHEN (SELECT deliverable FROM subscriptions WHERE id = j.subscription_id) IS FALSE
                       THEN '9999-12-31 23:59:59.999999+00' ELSE now() END
FROM unnest($1::bigint[], $2::timestamptz[], $3::bigint[], $4::bigint[]) AS u (saga_id, attempt_at, id, token)
WHERE j.saga_id = u.saga_id AND j.attempt_at = u.attempt_at
  AND j.id = u.id AND j.lease_token = u.token AND j.status = (SELECT 'Leased'::job_status)
RETURNING j.id";

/// Hops through `idx_job_parked` from one subscription to the next, one entry each: what is parked for those that still
/// do not deliver is not looked at.
pub(crate) const UNPARK: &str = "/* worker.unpark */
WITH RECURSIVE hops AS (
    (SELECT subscription_id FROM webhook_delivery_jobs
     WHERE status = 'Pending' AND lease_until = '9999-12-31 23:59:59.999999+00'
     ORDER BY subscription_id LIMIT 1)
    UNION ALL
    SELECT following.subscription_id
    FROM hops h CROSS JOIN LATERAL (
        SELECT j.subscription_id FROM webhook_delivery_jobs j
        WHERE j.status = 'Pending' AND j.lease_until = '9999-12-31 23:59:59.999999+00'
          AND j.subscription_id > h.subscription_id
        ORDER BY j.subscription_id LIMIT 1
    ) following
), resumed AS MATERIALIZED (
    SELECT sub.id FROM hops h CROSS JOIN LATERAL (
        SELECT id FROM subscriptions WHERE id = h.subscription_id AND deliverable OFFSET 0
    ) sub
), parked AS MATERIALIZED (
    SELECT j.place FROM resumed r CROSS JOIN LATERAL (
        SELECT ctid AS place FROM webhook_delivery_jobs
        WHERE status = 'Pending' AND lease_until = '9999-12-31 23:59:59.999999+00' AND subscription_id = r.id
        LIMIT $1 FOR UPDATE SKIP LOCKED
    ) j LIMIT $1
)
UPDATE webhook_delivery_jobs SET lease_until = now(), updated_at = now()
WHERE ctid = ANY (ARRAY(SELECT place FROM parked)) AND status = (SELECT 'Pending'::job_status)";

const HEARTBEAT: &str = "/* worker.heartbeat */
WITH gone AS (
    DELETE FROM workers WHERE seen_at < now() - interval '1 hour' AND id <> $1
)
INSERT INTO workers (id, slots, version) VALUES ($1, $2, left($3, 50))
ON CONFLICT (id) DO UPDATE SET slots = excluded.slots, version = excluded.version, seen_at = now()";

const LEAVE: &str = "/* worker.leave */ DELETE FROM workers WHERE id = $1";

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* secret_key_ids */
SELECT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > now()
UNION SELECT key_id FROM subscription_headers ORDER BY key_id";

pub(crate) struct Worker {
    pool: RolePool,
    claims: Claims,
}

impl Worker {
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
impl WorkerStore for Worker {
    async fn claim(&self, limits: &ClaimLimits, lease: LeaseRequest) -> StoreResult<ClaimedBatch> {
        self.pool.run(|client| async move { self.claims.claim(&client, limits, lease).await }).await
    }

    async fn start_limited(&self, starting: &[Starting]) -> StoreResult<Vec<Started>> {
        self.pool
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let mut ids: Vec<i64> = starting.iter().map(|one| one.subscription_id.0).collect();
                ids.sort_unstable();
                let buckets = Buckets::lock(&transaction, rate_limits::START, &ids).await?;
                let (mut started, mut stored) = (Vec::new(), Vec::new());
                for Starting { subscription_id, limit, jobs } in starting.iter().copied() {
                    let full_at = buckets.full_at(subscription_id);
                    let Passage { passed, full_at } = limit.pass(Gate::Start, full_at, jobs, buckets.now);
                    let wait = limit.wait(Gate::Start, Some(full_at), 1, buckets.now);
                    started.push(Started { subscription_id, jobs: passed, wait });
                    stored.push((subscription_id, full_at));
                }
                buckets.store(&transaction, &stored).await?;
                transaction.commit().await?;
                Ok(started)
            })
            .await
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        let keys = &LeaseColumns::sorted(leases);
        let delay = micros(delay);
        self.give_back(HAND_BACK, &[&keys.sagas, &keys.attempts, &keys.ids, &keys.tokens, &delay]).await
    }

    async fn park(&self, leases: &[LeaseRef]) -> StoreResult<Vec<JobId>> {
        let keys = &LeaseColumns::sorted(leases);
        self.give_back(PARK, &[&keys.sagas, &keys.attempts, &keys.ids, &keys.tokens]).await
    }

    async fn unpark(&self, limit: u32) -> StoreResult<u64> {
        self.execute(UNPARK, &[&bigint(limit)]).await
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
    attempts: Vec<Time>,
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
            attempts: leases.clone().map(|lease| Time(lease.attempt_at)).collect(),
            ids: leases.clone().map(|lease| lease.job_id.0).collect(),
            tokens: leases.map(|lease| lease.token.0).collect(),
        }
    }
}
