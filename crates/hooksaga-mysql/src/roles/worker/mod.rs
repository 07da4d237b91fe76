//! `job_worker`: leases jobs and reports how they ended.

pub(crate) mod claim;
pub(crate) mod parking;
pub(crate) mod presence;
pub(crate) mod report;
mod starting;

use crate::{
    cluster,
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{batch::Batch, rows::take},
    transaction::BatchedTransaction,
};
use async_trait::async_trait;
use claim::{Claimed, Way};
use hooksaga_saga::{JobId, Lead};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, HeldBuckets, JobReport, LeaseRef, LeaseRequest, Starting, Starts, StoreResult,
    WorkerBeat, WorkerStore,
};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Which of the leases are held, locked in the order of their ids: there is no RETURNING to tell it afterwards.
pub(crate) fn held_statement(ids: &str) -> String {
    format!(
        "/* worker.held */
SELECT j.id, j.lease_token, j.subscription_id
FROM (SELECT * FROM JSON_TABLE('{ids}', '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
WHERE j.status = 'Leased' FOR UPDATE"
    )
}

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* worker.secret_key_ids */
SELECT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > UTC_TIMESTAMP(6)
UNION SELECT key_id FROM subscription_headers ORDER BY key_id";

pub(crate) struct WorkerSql {
    pool: RolePool,
    /// How many of the next claims pick their jobs.
    picks: AtomicU32,
}

/// The number of claims that lock their jobs first after one has met another worker: they will meet again.
const PICKS: u32 = 100;

impl WorkerSql {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool, picks: AtomicU32::new(0) }
    }
}

#[async_trait]
impl WorkerStore for WorkerSql {
    async fn claim(&self, limits: &ClaimLimits, lease: LeaseRequest) -> StoreResult<ClaimedBatch> {
        self.pool
            .run(|connection| async move {
                let left = self.picks.load(Ordering::Relaxed);
                // On a node the other way saves no round trip, and this is the one that has been run there.
                let clustered = cluster::may_be_node(&connection);
                let way = if left > 0 || clustered { Way::Picked } else { Way::Seen };
                let claimed = claim::claim(connection, limits, lease, way).await;
                let left = match &claimed {
                    Ok(Claimed { contended: true, .. }) | Err(DbError::Held(_)) => PICKS,
                    _ => left.saturating_sub(1),
                };
                self.picks.store(left, Ordering::Relaxed);
                Ok(claimed?.batch)
            })
            .await
    }

    async fn start_limited(
        &self,
        starting: &[Starting],
        lead: Lead,
        held: HeldBuckets,
    ) -> StoreResult<Starts> {
        self.pool.run_inserting(|connection| starting::start_limited(connection, starting, lead, held)).await
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        self.pool.run(|connection| parking::hand_back(connection, leases, delay)).await
    }

    async fn park(&self, leases: &[LeaseRef]) -> StoreResult<Vec<JobId>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        self.pool.run(|connection| parking::park(connection, leases)).await
    }

    async fn unpark(&self, limit: u32) -> StoreResult<u64> {
        let (mut freed, mut after) = (0, Some(0));
        while let Some(from) = after
            && freed < u64::from(limit)
        {
            let page = self.pool.run(|connection| parking::unpark(connection, from, limit)).await?;
            freed += page.freed;
            after = page.resume_after;
        }
        Ok(freed)
    }

    async fn heartbeat(&self, beat: &WorkerBeat) -> StoreResult<()> {
        self.pool.run(|connection| presence::heartbeat(connection, beat)).await
    }

    async fn leave(&self, worker_id: i64) -> StoreResult<()> {
        self.pool.run(|connection| presence::leave(connection, worker_id)).await
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        self.pool.run(|connection| report::report(connection, reports)).await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        secret_key_ids(&self.pool).await
    }
}

/// The key ids of valid secrets: for each of the roles that may see them.
pub(crate) async fn secret_key_ids(pool: &RolePool) -> StoreResult<Vec<String>> {
    pool.run(|mut connection| async move { Ok(connection.query(SECRET_KEY_IDS).await?) }).await
}

/// A lease that is held, locked.
struct HeldLease {
    lease: LeaseRef,
    subscription_id: i64,
}

/// Begins a transaction with those of these leases that are still held, locked; in the order of their ids.
async fn held(connection: Conn, leases: &[LeaseRef]) -> DbResult<(BatchedTransaction, Vec<HeldLease>)> {
    let mut sorted = leases.to_vec();
    sorted.sort_unstable_by_key(|lease| lease.job_id);
    let mut documents = Batch::ids(sorted.iter().map(|lease| lease.job_id.0)).into_iter();
    let first = documents.next().unwrap_or_else(|| "[]".to_owned());
    let (mut transaction, mut found) = BatchedTransaction::begin(connection, &held_statement(&first)).await?;
    for document in documents {
        found.extend(transaction.query::<Row, _>(held_statement(&document)).await?);
    }
    // A job can be here more than once: under the lease that it had, and under the one that it has.
    let mut seen = HashSet::with_capacity(leases.len());
    let mut by_id: HashMap<(i64, i64), i64> = HashMap::with_capacity(found.len());
    for mut row in found {
        by_id.insert((take(&mut row, 0)?, take(&mut row, 1)?), take(&mut row, 2)?);
    }
    let held = sorted.into_iter().filter_map(|lease| {
        let subscription_id = *by_id.get(&(lease.job_id.0, lease.token.0))?;
        seen.insert(lease.job_id).then_some(HeldLease { lease, subscription_id })
    });
    Ok((transaction, held.collect()))
}
