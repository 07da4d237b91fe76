//! Writes the results of jobs in batches. The results that arrive while one batch is being written form the
//! next, so a single result is written at once and many share a transaction. While nothing waits for the slots that results
//! free, batches are 20 ms apart: each costs two commits, its own and the orchestrator's, and the pause delays no
//! delivery.
//!
//! A write that fails because the database is away is retried until the lease is over; then the job is
//! another worker's. A batch that is refused is split, so that one bad result does not fail the others.

use super::{
    attempt::{JobInfo, Settled},
    parking::Parked,
    results::ResultGate,
};
use crate::{
    DELIVERY_LOG_TARGET, DeliveryLog, Metrics, Signals,
    backoff::Backoff,
    batch_pauses::{GATHER, is_small, rest_after},
};
use hooksaga_saga::{JobId, Outcome};
use hooksaga_store::{JobReport, LeaseRef, Stage, StoreError, StoreResult, WorkerStore};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};

pub(super) struct Reporter {
    store: Arc<dyn WorkerStore>,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
    parked: Arc<Parked>,
    gate: Arc<ResultGate>,
}

/// Results that are written together; the two lists go side by side.
#[derive(Default)]
struct Results {
    about: Vec<JobInfo>,
    reports: Vec<JobReport>,
}

impl Reporter {
    const BATCH: usize = 1000;

    pub(super) fn new(
        store: Arc<dyn WorkerStore>,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
        parked: Arc<Parked>,
        gate: Arc<ResultGate>,
    ) -> Self {
        Self { store, signals, metrics, log, parked, gate }
    }

    /// Writes what comes, until nothing can come any more.
    pub(super) async fn run(&self, mut settled: mpsc::Receiver<Settled>) {
        let mut batch = Vec::new();
        while settled.recv_many(&mut batch, Self::BATCH).await > 0 {
            let (began, rows) = (Instant::now(), batch.len());
            self.settle(std::mem::take(&mut batch)).await;
            if is_small(rows) {
                tokio::select! {
                    () = tokio::time::sleep_until(began + GATHER) => {}
                    () = self.signals.results_awaited() => rest_after(rows, began, self.signals.copies()).await,
                }
            }
        }
    }

    /// Writes a batch. Returns when all of it is written, or can no longer be.
    pub(super) async fn settle(&self, settled: Vec<Settled>) {
        let _writing = self.gate.writes(Instant::now());
        let mut results = Results::default();
        let mut back: BTreeMap<Duration, Vec<JobInfo>> = BTreeMap::new();
        let mut parked = Vec::new();
        for one in settled {
            match one {
                Settled::Finished { about, report } => {
                    results.about.push(about);
                    results.reports.push(report);
                }
                Settled::GivenBack { about, delay } => back.entry(delay).or_default().push(about),
                Settled::Parked { about } => parked.push(about),
            }
        }
        self.report(results).await;
        for (delay, jobs) in back {
            self.hand_back(jobs, delay).await;
        }
        if !parked.is_empty() {
            self.park(&parked).await;
        }
    }

    async fn report(&self, results: Results) {
        let (mut todo, mut written, mut lost) = (vec![results], false, false);
        while let Some(mut results) = todo.pop() {
            if results.reports.is_empty() {
                continue;
            }
            let started = Instant::now();
            let write = || self.write(&results.reports);
            match self.until_lease_end(&results.about, WriteKind::Results, write).await {
                Ok(changed) => {
                    written |= !changed.is_empty();
                    self.metrics.pass("report", started.elapsed());
                    self.account(&results, &changed);
                }
                // Perhaps there are too many for the time that the database gives: each half alone, while the leases last.
                Err(StoreError::TimedOut(_)) if results.reports.len() > 1 && !results.are_too_late() => {
                    let second = results.split();
                    todo.extend([second, results]);
                }
                Err(error) if error.is_transient() || results.reports.len() == 1 => {
                    lost = true;
                    let jobs = results.reports.len();
                    tracing::error!(%error, jobs, "results could not be written: these deliveries will be sent again");
                    self.metrics.reports_lost(jobs as u64);
                }
                Err(_) => {
                    let second = results.split();
                    todo.extend([second, results]);
                }
            }
        }
        if written {
            self.gate.written();
        } else if lost || self.gate.is_failing() {
            self.gate.lost(Instant::now());
        }
    }

    /// Writes results, and wakes whoever applies them.
    async fn write(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        if self.store.shares_commits() {
            // `biased`: the results are on their way before anybody is woken.
            let wake = async { self.signals.wake(Stage::Apply) };
            return tokio::join!(biased; self.store.report(reports), wake).0;
        }
        let changed = self.store.report(reports).await?;
        self.signals.wake(Stage::Apply);
        Ok(changed)
    }

    async fn hand_back(&self, jobs: Vec<JobInfo>, delay: Duration) {
        let leases: Vec<LeaseRef> = jobs.iter().map(|about| about.lease).collect();
        let changed =
            self.until_lease_end(&jobs, WriteKind::Unsent, || self.store.hand_back(&leases, delay)).await;
        if delay.is_zero() {
            // This process stops: another copy takes them at once.
            self.signals.offer_elsewhere(Stage::Worker);
        }
        self.account_unsent(&jobs, changed, "HandedBack", "given back unsent");
    }

    async fn park(&self, jobs: &[JobInfo]) {
        let leases: Vec<LeaseRef> = jobs.iter().map(|about| about.lease).collect();
        let changed = self.until_lease_end(jobs, WriteKind::Unsent, || self.store.park(&leases)).await;
        self.parked.announce();
        self.account_unsent(
            jobs,
            changed,
            "Held",
            "held until its subscription is active and verified again",
        );
    }

    fn account_unsent(
        &self,
        jobs: &[JobInfo],
        changed: StoreResult<Vec<JobId>>,
        delivery_status: &'static str,
        what: &'static str,
    ) {
        match changed {
            Ok(changed) => self.metrics.handed_back(changed.len() as u64),
            Err(error) => {
                tracing::error!(%error, jobs = jobs.len(), "cannot hand jobs back: they wait until their leases have run out");
            }
        }
        if self.log.wants(false) {
            for about in jobs {
                tracing::info!(
                            target: DELIVERY_LOG_TARGET,
                            stage = "worker",
                            delivery_status,
                            tenant = about.trace.tenant.as_str(),
                correlation_id = about.trace.correlation_id.as_str(),
                            saga_id = about.lease.saga_id.0,
                            job_id = about.lease.job_id.0,
                            attempt = about.attempt,
                            "{what}"
                        );
            }
        }
    }

    /// Tries a write until it succeeds, is refused, or the last of the leases is over. Results that take too long together
    /// come back at once, to be halved.
    async fn until_lease_end<F>(
        &self,
        jobs: &[JobInfo],
        what: WriteKind,
        mut write: impl FnMut() -> F,
    ) -> StoreResult<Vec<JobId>>
    where
        F: Future<Output = StoreResult<Vec<JobId>>>,
    {
        let end = last_lease_end(jobs);
        let mut backoff = Backoff::new();
        let mut warned = false;
        loop {
            let error = match write().await {
                Err(error) if error.is_transient() => error,
                done => return done,
            };
            if what == WriteKind::Results {
                self.gate.fails();
                if matches!(error, StoreError::TimedOut(_)) && jobs.len() > 1 {
                    return Err(error);
                }
            }
            self.metrics.store_error("report", &error);
            let wait = backoff.next();
            if Instant::now() + wait >= end {
                return Err(error);
            }
            if !warned {
                tracing::warn!(component = "worker", %error, "cannot write results; trying again while the leases last");
                warned = true;
            }
            tokio::time::sleep(wait).await;
        }
    }

    fn account(&self, results: &Results, changed: &[JobId]) {
        let changed: HashSet<JobId> = changed.iter().copied().collect();
        let (good, bad) = (self.log.wants(false), self.log.wants(true));
        for (about, report) in results.about.iter().zip(&results.reports) {
            if !changed.contains(&about.lease.job_id) {
                self.metrics.reports_lost(1);
                if bad {
                    log_lost(about);
                }
                continue;
            }
            self.metrics.attempt(&report.outcome, report.duration);
            if let (Outcome::Delivered, Some(started_at)) = (&report.outcome, report.started_at) {
                self.metrics.delivered(started_at.after(report.duration).since(about.accepted_at));
            }
            match &report.outcome {
                Outcome::Delivered if good => log_delivered(about, report),
                Outcome::Failed(code) if bad => log_failed(about, report, code.as_str()),
                _ => {}
            }
        }
    }
}

/// What is written about jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteKind {
    Results,
    /// Jobs that go back as they came.
    Unsent,
}

fn last_lease_end(jobs: &[JobInfo]) -> Instant {
    jobs.iter().map(|about| about.lease_end).max().unwrap_or_else(Instant::now)
}

impl Results {
    /// Every lease is over.
    fn are_too_late(&self) -> bool {
        last_lease_end(&self.about) <= Instant::now()
    }

    /// Takes away its second half.
    fn split(&mut self) -> Self {
        let half = self.reports.len() / 2;
        Self { about: self.about.split_off(half), reports: self.reports.split_off(half) }
    }
}

/// As a number: a u128, which `as_millis` returns, would become text in a JSON line.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn log_delivered(about: &JobInfo, report: &JobReport) {
    tracing::info!(
        target: DELIVERY_LOG_TARGET,
        stage = "worker",
        delivery_status = "Completed",
        tenant = about.trace.tenant.as_str(),
        correlation_id = about.trace.correlation_id.as_str(),
        saga_id = about.lease.saga_id.0,
        job_id = about.lease.job_id.0,
        attempt = about.attempt,
        response_status = report.response_status,
        duration_ms = millis(report.duration),
        "attempt succeeded"
    );
}

fn log_failed(about: &JobInfo, report: &JobReport, error_code: &str) {
    tracing::warn!(
        target: DELIVERY_LOG_TARGET,
        stage = "worker",
        delivery_status = "Failed",
        tenant = about.trace.tenant.as_str(),
        correlation_id = about.trace.correlation_id.as_str(),
        saga_id = about.lease.saga_id.0,
        job_id = about.lease.job_id.0,
        attempt = about.attempt,
        response_status = report.response_status,
        error_code,
        duration_ms = millis(report.duration),
        "attempt failed"
    );
}

fn log_lost(about: &JobInfo) {
    tracing::warn!(
        target: DELIVERY_LOG_TARGET,
        stage = "worker",
        delivery_status = "LeaseLost",
        tenant = about.trace.tenant.as_str(),
        correlation_id = about.trace.correlation_id.as_str(),
        saga_id = about.lease.saga_id.0,
        job_id = about.lease.job_id.0,
        attempt = about.attempt,
        "the result changed nothing: the lease was over, or the result was written before"
    );
}

/// Results that are refused, lost, or written late, over a store that misbehaves on demand.
#[cfg(test)]
mod tests {
    use super::{
        super::{attempt::JobInfo, fake_store::FakeStore, results::ClaimAllowance},
        *,
    };
    use hooksaga_saga::{ErrorCode, SagaId, Timestamp};
    use hooksaga_store::{LeaseToken, Trace};

    fn about(job: i64) -> JobInfo {
        JobInfo {
            lease: LeaseRef {
                job_id: JobId(job),
                saga_id: SagaId(job),
                attempt_at: Timestamp::from_micros(0),
                token: LeaseToken(1),
            },
            attempt: 1,
            trace: Trace::default(),
            accepted_at: Timestamp::from_micros(0),
            lease_end: Instant::now() + Duration::from_secs(10),
        }
    }

    fn finished(jobs: impl IntoIterator<Item = i64>) -> Vec<Settled> {
        jobs.into_iter().map(|job| about(job).failed_unsent(ErrorCode::INTERNAL)).collect()
    }

    fn reporter() -> (Arc<FakeStore>, Signals, Arc<Metrics>, Reporter) {
        reporter_of(FakeStore::default())
    }

    fn reporter_of(store: FakeStore) -> (Arc<FakeStore>, Signals, Arc<Metrics>, Reporter) {
        let store = Arc::new(store);
        let (signals, metrics) = (Signals::new(Stage::ALL), Metrics::new());
        let reporter = Reporter::new(
            store.clone(),
            signals.clone(),
            metrics.clone(),
            DeliveryLog::All,
            Arc::default(),
            Arc::clone(&store.gate),
        );
        (store, signals, metrics, reporter)
    }

    #[tokio::test]
    async fn what_gathers_is_written_together_and_announced() {
        let (store, signals, _, reporter) = reporter();
        let (sender, receiver) = mpsc::channel(16);
        for settled in finished(1..=5) {
            sender.try_send(settled).unwrap();
        }
        drop(sender);
        reporter.run(receiver).await;
        assert_eq!(*store.calls.lock().unwrap(), [[1, 2, 3, 4, 5]]);
        signals.woken(Stage::Apply).await;
    }

    #[tokio::test]
    async fn a_refused_result_does_not_cost_its_neighbours() {
        let (store, _, metrics, reporter) = reporter();
        reporter.settle(finished(10..=17)).await;
        let mut written = store.written.lock().unwrap().clone();
        written.sort_unstable();
        assert_eq!(written, [10, 11, 12, 14, 15, 16, 17]);
        assert!(metrics.encode(&Default::default()).contains("hooksaga_reports_lost_total 1\n"));
    }

    #[tokio::test]
    async fn while_a_batch_is_halved_nothing_is_claimed() {
        let (store, _, _, reporter) = reporter_of(FakeStore { most: Some(2), ..FakeStore::default() });
        reporter.settle(finished(1..=4)).await;
        assert_eq!(*store.calls.lock().unwrap(), [vec![1, 2, 3, 4], vec![1, 2], vec![3, 4]]);
        assert_eq!(*store.would_claim.lock().unwrap(), [true, false, false]);
        assert_eq!(store.gate.pass(Instant::now()), ClaimAllowance::Open, "all of it is written");
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_database_is_away_results_wait_for_it() {
        let (store, _, metrics, reporter) = reporter();
        *store.away.lock().unwrap() = 8;
        reporter.settle(finished(1..=2)).await;
        assert_eq!(*store.written.lock().unwrap(), [1, 2]);
        assert!(metrics.encode(&Default::default()).contains("hooksaga_reports_lost_total 0\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn when_the_lease_is_over_a_result_is_given_up() {
        let (store, _, metrics, reporter) = reporter();
        *store.away.lock().unwrap() = u32::MAX;
        let began = Instant::now();
        reporter.settle(finished(1..=2)).await;
        let took = began.elapsed();
        assert!(took > Duration::from_secs(8) && took <= Duration::from_secs(10), "{took:?}");
        assert!(store.calls.lock().unwrap().len() < 20, "it does not hammer a database that is away");
        assert!(metrics.encode(&Default::default()).contains("hooksaga_reports_lost_total 2\n"));
    }

    #[tokio::test]
    async fn jobs_are_handed_back_by_their_delay() {
        let (store, _, _, reporter) = reporter();
        let second = Duration::from_secs(1);
        let settled = [(1, Duration::ZERO), (2, second), (3, Duration::ZERO)];
        reporter.settle(settled.map(|(job, delay)| about(job).give_back(delay)).into()).await;
        assert_eq!(*store.handed_back.lock().unwrap(), [(Duration::ZERO, vec![1, 3]), (second, vec![2])]);
        assert!(store.calls.lock().unwrap().is_empty(), "nothing to report is no call");
    }

    /// Three results, 3 ms apart; `awaited`: after this many of them somebody waits for results. Returns what was written
    /// together.
    async fn written_in_turn(awaited: usize) -> Vec<Vec<i64>> {
        let (store, signals, _, reporter) = reporter();
        let (sender, receiver) = mpsc::channel(16);
        let send = async move {
            for (sent, settled) in finished(1..=3).into_iter().enumerate() {
                signals.set_results_awaited(sent >= awaited);
                sender.try_send(settled).unwrap();
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        };
        tokio::join!(send, reporter.run(receiver));
        store.calls.lock().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn few_results_gather_while_nobody_waits_for_them() {
        assert_eq!(written_in_turn(3).await, [vec![1], vec![2, 3]]);
        assert_eq!(
            written_in_turn(2).await,
            [vec![1], vec![2, 3]],
            "the third comes with the one that waits"
        );
        assert_eq!(written_in_turn(1).await, [[1], [2], [3]]);
        assert_eq!(written_in_turn(0).await, [[1], [2], [3]]);
    }
}
