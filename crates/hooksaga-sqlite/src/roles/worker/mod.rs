//! `job_worker`: leases jobs and reports how they ended.

pub(crate) mod claim;
pub(crate) mod parking;
pub(crate) mod report;

use crate::{
    engine::RoleHandle,
    error::DbResult,
    roles::{rate_limits::START, rows},
    session::{Commit, Tx},
    time,
};
use async_trait::async_trait;
use hooksaga_saga::{JobId, Lead};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, ClockReading, HeldBuckets, JobReport, LeaseRef, LeaseRequest, Starting,
    Starts, StoreResult, WorkerBeat, WorkerStore,
};
use std::time::{Duration, Instant};

const HEARTBEAT: &str = "/* worker.heartbeat */
INSERT INTO workers (id, slots, version, started_at, seen_at) VALUES (?1, ?2, ?3, ?4, ?4)
ON CONFLICT (id) DO UPDATE SET slots = excluded.slots, version = excluded.version, seen_at = excluded.seen_at";

/// There are only as many rows as there are processes.
const FORGET: &str = "/* worker.forget */
DELETE FROM workers WHERE seen_at < ?1";

const LEAVE: &str = "/* worker.leave */
DELETE FROM workers WHERE id = ?1";

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* worker.secret_key_ids */
SELECT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > ?1
 UNION SELECT key_id FROM subscription_headers ORDER BY key_id";

/// A worker that has been gone for this long is forgotten.
const FORGOTTEN_AFTER_MICROS: i64 = 3_600_000_000;

pub(crate) struct WorkerSql {
    handle: RoleHandle,
}

impl WorkerSql {
    pub(crate) fn new(handle: RoleHandle) -> Self {
        Self { handle }
    }
}

#[async_trait]
impl WorkerStore for WorkerSql {
    async fn claim(&self, limits: &ClaimLimits, lease: LeaseRequest) -> StoreResult<ClaimedBatch> {
        let limits = limits.clone();
        self.handle.write(move |tx| claim::claim(tx, &limits, lease)).await
    }

    async fn start_limited(&self, starting: &[Starting], lead: Lead, _: HeldBuckets) -> StoreResult<Starts> {
        let starting = starting.to_vec();
        self.handle.write(move |tx| start_limited(tx, &starting, lead)).await
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let leases = leases.to_vec();
        self.handle.write(move |tx| parking::hand_back(tx, &leases, delay)).await
    }

    async fn park(&self, leases: &[LeaseRef]) -> StoreResult<Vec<JobId>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let leases = leases.to_vec();
        self.handle.write(move |tx| parking::park(tx, &leases)).await
    }

    async fn unpark(&self, limit: u32) -> StoreResult<u64> {
        let (mut unparked, mut after) = (0, 0);
        loop {
            let look = self.handle.write(move |tx| parking::unpark(tx, after, limit)).await?;
            unparked += look.unparked;
            after = look.resume_after;
            if after == 0 || unparked >= u64::from(limit) {
                return Ok(unparked);
            }
        }
    }

    async fn heartbeat(&self, beat: &WorkerBeat) -> StoreResult<()> {
        let beat = beat.clone();
        self.handle
            .write(move |tx| {
                let now = tx.now.as_micros();
                tx.execute(HEARTBEAT, (beat.worker_id, beat.slots, &beat.version, now))?;
                tx.execute(FORGET, [now - FORGOTTEN_AFTER_MICROS])?;
                Ok(())
            })
            .await
    }

    async fn leave(&self, worker_id: i64) -> StoreResult<()> {
        self.handle.write(move |tx| tx.execute(LEAVE, [worker_id]).map(drop)).await
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let reports = reports.to_vec();
        self.handle.write_linked(Commit::WithNext, move |tx| report::report(tx, &reports)).await
    }

    fn shares_commits(&self) -> bool {
        true
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        self.handle.read(|tx| rows::all(tx, SECRET_KEY_IDS, [tx.now.as_micros()], |row| row.get(0))).await
    }
}

/// The transaction's own time would not do: which moment of the process's clock it was read at is not known.
fn start_limited(tx: &Tx<'_>, starting: &[Starting], lead: Lead) -> DbResult<Starts> {
    let asked = Instant::now();
    let clock = ClockReading::of_call(time::now(), asked);
    let mut reserved = Vec::with_capacity(starting.len());
    for Starting { subscription_id, limit, jobs } in starting.iter().copied() {
        let one = limit.reserve(START.full_at(tx, subscription_id)?, jobs, clock.time, lead);
        START.store(tx, subscription_id, one.full_at)?;
        reserved.push(Some(one));
    }
    Ok(Starts { clock, reserved })
}
