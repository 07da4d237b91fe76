//! A store that misbehaves on demand, for tests.

use super::results::{ClaimAllowance, ResultGate};
use async_trait::async_trait;
use hooksaga_saga::{JobId, Lead, Timestamp};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, HeldBuckets, JobReport, LeaseRef, LeaseRequest, Starting, Starts, StoreError,
    StoreResult, WorkerBeat, WorkerStore,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Has nothing to claim, refuses every batch of results with job 13 in it, and is away as often as told.
#[derive(Default)]
pub(super) struct FakeStore {
    pub(super) away: Mutex<u32>,
    pub(super) calls: Mutex<Vec<Vec<i64>>>,
    /// Larger batches of results take too long.
    pub(super) most: Option<usize>,
    pub(super) gate: Arc<ResultGate>,
    /// Whether the worker would claim while a batch of results is written, by call.
    pub(super) would_claim: Mutex<Vec<bool>>,
    pub(super) written: Mutex<Vec<i64>>,
    pub(super) handed_back: Mutex<Vec<(Duration, Vec<i64>)>>,
    pub(super) parked: Mutex<Vec<JobId>>,
    /// Each claim, as it comes.
    pub(super) claims: Mutex<Vec<Instant>>,
    pub(super) claim_takes: Duration,
    /// How limits were asked about. Who holds a bucket keeps it.
    pub(super) limits_asked: Mutex<Vec<HeldBuckets>>,
}

#[async_trait]
impl WorkerStore for FakeStore {
    async fn claim(&self, _: &ClaimLimits, _: LeaseRequest) -> StoreResult<ClaimedBatch> {
        self.claims.lock().unwrap().push(Instant::now());
        tokio::time::sleep(self.claim_takes).await;
        let (now, cut_short) = (Timestamp::from_micros(0), false);
        Ok(ClaimedBatch { now, jobs: Vec::new(), cut_short, targets: HashMap::new() })
    }

    async fn park(&self, leases: &[LeaseRef]) -> StoreResult<Vec<JobId>> {
        let jobs: Vec<JobId> = leases.iter().map(|lease| lease.job_id).collect();
        self.parked.lock().unwrap().extend(&jobs);
        Ok(jobs)
    }

    async fn unpark(&self, _: u32) -> StoreResult<u64> {
        Ok(0)
    }

    async fn heartbeat(&self, _: &WorkerBeat) -> StoreResult<()> {
        Ok(())
    }

    async fn leave(&self, _: i64) -> StoreResult<()> {
        Ok(())
    }

    async fn start_limited(&self, _: &[Starting], _: Lead, held: HeldBuckets) -> StoreResult<Starts> {
        self.limits_asked.lock().unwrap().push(held);
        if held == HeldBuckets::WaitFor {
            std::future::pending::<()>().await;
        }
        Err(StoreError::Other("nothing here has a limit".to_owned()))
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        let jobs = leases.iter().map(|lease| lease.job_id.0).collect();
        self.handed_back.lock().unwrap().push((delay, jobs));
        Ok(leases.iter().map(|lease| lease.job_id).collect())
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        let jobs: Vec<_> = reports.iter().map(|report| report.lease.job_id.0).collect();
        self.calls.lock().unwrap().push(jobs.clone());
        self.would_claim
            .lock()
            .unwrap()
            .push(self.gate.pass(tokio::time::Instant::now()) == ClaimAllowance::Open);
        if self.most.is_some_and(|most| jobs.len() > most) {
            return Err(StoreError::TimedOut("lock timeout".to_owned()));
        }
        let mut away = self.away.lock().unwrap();
        if *away > 0 {
            *away -= 1;
            return Err(StoreError::Unavailable("away".to_owned()));
        }
        if jobs.contains(&13) {
            return Err(StoreError::Refused("thirteen".to_owned()));
        }
        self.written.lock().unwrap().extend(&jobs);
        Ok(reports.iter().map(|report| report.lease.job_id).collect())
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        Ok(Vec::new())
    }
}
