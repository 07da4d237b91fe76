//! The worker: leases jobs, POSTs their payloads, reports how it went.
//!
//! Promises: it claims no more than it can start now; one job is one attempt; a POST starts only if it is certain to
//! end within its lease, by a clock that was read before the lease began; no transaction is open during a
//! POST; results are written under the lease's token, so a late one changes nothing. A
//! crash at any point loses nothing: the lease expires and the delivery happens again.
//!
//! It claims in the order of admission, no more than it has slots and memory for, and passes over subscriptions that hold
//! their part of the slots already ([`in_flight`]). Jobs of paused subscriptions are parked ([`parking`]), and starts of
//! rate-limited ones counted ([`limits`]).
//!
//! On the order to stop it claims nothing more, gives back what it had not started, and finishes and reports
//! what is in flight. The caller bounds how long that may take.
//!
//! Not done here: deciding about retries, touching sagas, creating jobs.

mod attempt;
#[cfg(test)]
mod fake_store;
mod held_limits;
mod in_flight;
mod limits;
mod parking;
mod prepare;
mod presence;
mod report;
mod results;

use crate::{
    DeliveryClient, DeliveryLog, Driver, Metrics, Progress, SecretKey, Shutdown, Signals,
    batch_size::BatchSize, driver::Rhythm, random_i64,
};
use attempt::{PreparedAttempt, Settled};
use held_limits::HeldLimits;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{ClaimLimits, HeldBuckets, LeaseToken, Stage, StoreResult, WorkerStore};
use in_flight::{HeldBytes, InFlight, PAYLOAD_BYTES, STRETCH, Slot, are_all_in};
use limits::StartGate;
use parking::Parked;
use report::Reporter;
use results::{ClaimAllowance, ResultGate};
use std::{sync::Arc, time::Duration};
use tokio::{sync::mpsc, time::Instant};

/// What a lease must have besides the timeout of a POST: time to claim, and time to write the result. A
/// configuration without it is refused at the start.
pub const LEASE_MARGIN: Duration = Duration::from_millis(500);
/// The part of [`LEASE_MARGIN`] that must be left when a POST starts. The other part is for the claim: were
/// all of it still needed here, a lease of exactly timeout and margin would never let one start.
const REPORT_MARGIN: Duration = Duration::from_millis(250);

/// How a worker works. `http_timeout` + [`LEASE_MARGIN`] must fit into `lease_duration`.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// POSTs at a time.
    pub concurrency: u32,
    /// The longest that one POST may take, in all.
    pub http_timeout: Duration,
    pub lease_duration: Duration,
}

impl WorkerOptions {
    /// How long after its claim was sent an attempt may start: later than this it might outlive its lease.
    fn time_to_start(&self) -> Duration {
        self.lease_duration.saturating_sub(self.http_timeout + REPORT_MARGIN)
    }
}

#[derive(Clone)]
pub struct Worker {
    store: Arc<dyn WorkerStore>,
    client: DeliveryClient,
    key: Arc<SecretKey>,
    config: WorkerOptions,
    signals: Signals,
    metrics: Arc<Metrics>,
    reporter: Arc<Reporter>,
    parked: Arc<Parked>,
    gate: Arc<ResultGate>,
    claims: Arc<BatchSize>,
    starts: Arc<StartGate>,
    held_limits: Arc<HeldLimits<Slot>>,
}

impl Worker {
    const NAME: &str = "worker";
    /// Jobs per claim: each brings its payload along.
    const BATCH: u32 = 1000;
    /// How long a worker waits for more free slots while few are free and more may soon be: claims of a few jobs each
    /// would cost more than the deliveries.
    const GATHER: Duration = Duration::from_millis(5);
    /// How long a worker whose only claimable jobs are of skipped subscriptions waits at most.
    const SKIPPED_POLL: Duration = Duration::from_millis(200);

    pub fn new(
        store: Arc<dyn WorkerStore>,
        client: DeliveryClient,
        key: Arc<SecretKey>,
        config: WorkerOptions,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
    ) -> Self {
        let parked = Arc::<Parked>::default();
        let gate = Arc::<ResultGate>::default();
        let reporter =
            Reporter::new(store.clone(), signals.clone(), metrics.clone(), log, parked.clone(), gate.clone());
        let reporter = Arc::new(reporter);
        let claims = Arc::new(BatchSize::new(Self::BATCH));
        let starts = Arc::new(StartGate::new(config.time_to_start()));
        let held_limits = Arc::new(HeldLimits::new());
        Self {
            store,
            client,
            key,
            config,
            signals,
            metrics,
            reporter,
            parked,
            gate,
            claims,
            starts,
            held_limits,
        }
    }

    /// Works until the order to stop, and then until everything claimed is reported or given back. Ends before
    /// the order only if results can no longer be written, which is a bug.
    pub async fn run(&self, shutdown: &Shutdown) {
        let in_flight = InFlight::new(self.config.concurrency, self.metrics.worker(self.config.concurrency));
        // Bounded: when results cannot be written, slots stay taken and nothing more is claimed.
        let (settled, results) = mpsc::channel(self.config.concurrency.max(1) as usize);
        let reporter = self.reporter.clone();
        let mut reporting = tokio::spawn(async move { reporter.run(results).await });

        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::Woken(Stage::Worker),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        let work = async {
            tokio::join!(
                driver.run(|| self.claim_and_start(&in_flight, &settled, shutdown)),
                self.be_present(shutdown),
                self.unpark_resumed(shutdown),
            );
        };
        tokio::select! {
            () = work => {}
            // This side of the channel is open: only a panic ends the reporter. What is sent from now on
            // would never be written down, and be sent again and again.
            ended = &mut reporting => {
                tracing::error!(failure = ?ended.err(), "the task that writes results ended unexpectedly; stopping the worker");
                return;
            }
        }

        // The reporter ends when the last attempt has dropped its end of the channel.
        drop(settled);
        if let Err(error) = reporting.await {
            tracing::error!(%error, "results were not written; their leases will run out");
        }
    }

    /// Claims as many jobs as may start now, starts them, and does not wait for them.
    async fn claim_and_start(
        &self,
        in_flight: &Arc<InFlight>,
        settled: &mpsc::Sender<Settled>,
        shutdown: &Shutdown,
    ) -> StoreResult<Progress> {
        let mut limits = tokio::select! {
            limits = self.claim_limits(in_flight) => limits,
            () = shutdown.wait() => return Ok(Progress::IDLE),
        };
        let passes_over = !limits.skip.is_empty();
        if passes_over && !self.may_find_beside(in_flight, &limits.skip) {
            return Ok(self.wait_for_the_skipped(in_flight, &limits.skip, shutdown).await);
        }
        match self.gate.pass(Instant::now()) {
            ClaimAllowance::Open => {}
            ClaimAllowance::Probe => limits.jobs = 1,
            ClaimAllowance::Closed(wait) => return Ok(Progress::Idle { until: Some(wait) }),
        }
        let hold = |bytes| Some(in_flight.hold(bytes, std::time::Instant::now()));
        let asked = std::time::Instant::now();
        let mut work = self.claim(&limits, hold).await?;
        let claimed = work.claimed();
        let began = std::time::Instant::now();
        work.give_back(|attempt| {
            in_flight.has_no_room_for(attempt.subscription, attempt.request.body.len(), began)
        });
        for done in work.settled.drain(..) {
            // Fails only when the reporter is gone; then the lease runs out.
            let _ = settled.send(done).await;
        }
        if passes_over {
            in_flight.passed_over(&limits.skip, claimed > 0, began - asked, began);
        }
        let slot_of = |attempt: &PreparedAttempt| in_flight.begin(attempt.subscription, began);
        let limited = work.take_limited(slot_of);
        for attempt in work.attempts {
            let slot = slot_of(&attempt);
            self.start(attempt, slot, settled, shutdown);
        }
        if !limited.is_empty() {
            let (worker, settled, shutdown) = (self.clone(), settled.clone(), shutdown.clone());
            tokio::spawn(async move {
                let (store, gate) = (&*worker.store, &worker.starts);
                let passed = limited.pass(store, gate, HeldBuckets::PassOver).await;
                worker.go_on(passed.start, passed.back, &settled, &shutdown).await;
                if !passed.undecided.is_empty() {
                    let passed = worker.held_limits.pass(passed.undecided, store, gate).await;
                    worker.go_on(passed.start, passed.back, &settled, &shutdown).await;
                }
            });
        }
        if work.cut_short || claimed >= limits.jobs as usize {
            return Ok(Progress::Worked);
        }
        if passes_over {
            return Ok(self.wait_for_the_skipped(in_flight, &limits.skip, shutdown).await);
        }
        Ok(Progress::of_batch(claimed, limits.jobs))
    }

    /// Starts the attempts that may start, and gives the others back.
    async fn go_on(
        &self,
        start: Vec<(PreparedAttempt, Slot)>,
        back: Vec<(Settled, Slot)>,
        settled: &mpsc::Sender<Settled>,
        shutdown: &Shutdown,
    ) {
        for (attempt, slot) in start {
            self.start(attempt, slot, settled, shutdown);
        }
        for (done, slot) in back {
            let _ = settled.send(done).await;
            drop(slot);
        }
    }

    /// Carries an attempt out beside everything else.
    fn start(
        &self,
        attempt: PreparedAttempt,
        slot: Slot,
        settled: &mpsc::Sender<Settled>,
        shutdown: &Shutdown,
    ) {
        let (client, settled, shutdown) = (self.client.clone(), settled.clone(), shutdown.clone());
        let timeout = self.config.http_timeout;
        tokio::spawn(async move {
            let done = attempt.carry_out(&client, timeout, &shutdown).await;
            if done.shows_an_answer() {
                slot.answered(std::time::Instant::now());
            }
            let _ = settled.send(done).await;
            drop(slot);
        });
    }

    /// Whether a claim that passes over these subscriptions is worth its scan now.
    fn may_find_beside(&self, in_flight: &InFlight, skipped: &[SubscriptionId]) -> bool {
        self.signals.has_new_jobs_beside(skipped)
            || in_flight.passes_over_from(skipped, std::time::Instant::now()).is_none()
    }

    /// Waits until one of the subscriptions that a claim had to pass over may have more in flight, or until something else
    /// can be claimed.
    async fn wait_for_the_skipped(
        &self,
        in_flight: &InFlight,
        skipped: &[SubscriptionId],
        shutdown: &Shutdown,
    ) -> Progress {
        let freed = async {
            loop {
                in_flight.changed().await;
                let limits = in_flight.claim_limits(Self::BATCH, std::time::Instant::now());
                if limits.is_some_and(|limits| !are_all_in(skipped, &limits.skip)) {
                    return;
                }
            }
        };
        tokio::select! {
            () = freed => {}
            () = self.told_of_jobs_beside(in_flight, skipped) => {}
            () = shutdown.wait() => {}
            // Jobs of other processes' making, should their wake-up be lost.
            () = tokio::time::sleep(Self::SKIPPED_POLL) => {}
        }
        Progress::Worked
    }

    /// Waits until there may be new jobs of other subscriptions than these. What nobody names is looked for when a scan is
    /// worth it.
    async fn told_of_jobs_beside(&self, in_flight: &InFlight, skipped: &[SubscriptionId]) {
        while !self.signals.has_new_jobs_beside(skipped) {
            let from = in_flight.passes_over_from(skipped, std::time::Instant::now());
            let scan = async {
                match from {
                    _ if !self.signals.has_jobs_of_unknown() => std::future::pending().await,
                    Some(from) => tokio::time::sleep_until(from.into()).await,
                    None => {}
                }
            };
            tokio::select! {
                () = scan => return,
                () = self.signals.woken(Stage::Worker) => {}
            }
        }
    }

    /// Waits until something may be claimed, and a little for company if few slots are free.
    async fn claim_limits(&self, in_flight: &InFlight) -> ClaimLimits {
        let gathered = tokio::time::sleep(Self::GATHER);
        tokio::pin!(gathered);
        let mut waited = false;
        loop {
            let now = std::time::Instant::now();
            let enough = waited || in_flight.has_enough_free(now);
            if let Some(limits) = in_flight.claim_limits(self.claims.get(), now).filter(|_| enough) {
                return limits;
            }
            tokio::select! {
                () = in_flight.changed() => {}
                // Payloads may turn out to stay. And jobs that are created here while every slot is taken may wait for long, too.
                () = tokio::time::sleep(STRETCH), if waited => {
                    if self.signals.has_new_jobs_beside(&[]) {
                        self.signals.offer_elsewhere(Stage::Worker);
                    }
                }
                () = &mut gathered, if !waited => {
                    waited = true;
                    if in_flight.claim_limits(1, now).is_none() {
                        // What was created here may wait for long: another copy may have free slots.
                        self.signals.offer_elsewhere(Stage::Worker);
                    }
                }
            }
        }
    }

    async fn claim(
        &self,
        limits: &ClaimLimits,
        hold: impl Fn(u64) -> Option<HeldBytes>,
    ) -> StoreResult<prepare::Work> {
        // Read before the claim is sent: the lease begins no earlier, so it lasts at least this long.
        let asked = Instant::now();
        let token = LeaseToken(random_i64());
        self.signals.take_new_jobs();
        let batch =
            self.claims.noting(self.store.claim(limits, token.lasting(self.config.lease_duration)).await)?;
        if !batch.jobs.is_empty() {
            self.metrics.pass("claim", asked.elapsed());
        }
        Ok(prepare::prepare(batch, &self.key, &self.config, asked, hold))
    }

    /// One pass: claims what is due, delivers all of it, reports, and returns.
    pub async fn run_once(&self) -> StoreResult<Progress> {
        self.run_once_until(&Shutdown::new()).await
    }

    /// The same; attempts that have not started when the order to stop comes are given back.
    pub async fn run_once_until(&self, shutdown: &Shutdown) -> StoreResult<Progress> {
        let limit = self.config.concurrency.min(self.claims.get());
        let limits = ClaimLimits { jobs: limit, payload_bytes: PAYLOAD_BYTES, skip: Vec::new() };
        let mut work = self.claim(&limits, |_| None).await?;
        let claimed = work.claimed();
        let limited = work.take_limited(|_| ());
        if !limited.is_empty() {
            let passed = limited.pass(&*self.store, &self.starts, HeldBuckets::WaitFor).await;
            work.attempts.extend(passed.start.into_iter().map(|(attempt, ())| attempt));
            work.settled.extend(passed.back.into_iter().map(|(done, ())| done));
        }
        let mut running = tokio::task::JoinSet::new();
        for attempt in work.attempts {
            let (client, shutdown) = (self.client.clone(), shutdown.clone());
            let timeout = self.config.http_timeout;
            running.spawn(async move { attempt.carry_out(&client, timeout, &shutdown).await });
        }
        let mut settled = work.settled;
        settled.extend(running.join_all().await);
        self.reporter.settle(settled).await;
        Ok(Progress::of_batch(claimed, limit))
    }
}

/// When the worker claims while an endpoint holds its part of the slots and has more jobs open.
#[cfg(test)]
mod tests {
    use super::{fake_store::FakeStore, *};
    use crate::EgressPolicy;
    use prometheus_client::metrics::gauge::Gauge;

    const BUSY: SubscriptionId = SubscriptionId(1);
    const OTHER: SubscriptionId = SubscriptionId(2);

    /// A claim takes so long that the next one is put off for as long as ever.
    const CLAIM_TAKES: Duration = Duration::from_millis(10);
    const PUT_OFF: Duration = Duration::from_millis(50);

    /// A worker whose claims pass over the busy subscription and find nothing.
    struct Fruitless {
        worker: Worker,
        store: Arc<FakeStore>,
    }

    impl Fruitless {
        fn new() -> Self {
            let store = Arc::new(FakeStore { claim_takes: CLAIM_TAKES, ..FakeStore::default() });
            let second = Duration::from_secs(1);
            let config = WorkerOptions { concurrency: 16, http_timeout: second, lease_duration: 60 * second };
            let client = DeliveryClient::new(EgressPolicy::default(), None).unwrap();
            let (key, signals) = (Arc::new(SecretKey::generate()), Signals::new(Stage::ALL));
            let log = DeliveryLog::All;
            let worker = Worker::new(store.clone(), client, key, config, signals, Metrics::new(), log);
            Self { worker, store }
        }

        fn claims(&self) -> Vec<std::time::Instant> {
            self.store.claims.lock().unwrap().clone()
        }

        /// Runs the worker, wakes it a moment after its first claim has found nothing, and stops it some time later. Returns how
        /// long after that claim it claimed again.
        async fn next_claim_after(&self, wake: impl Fn(&Signals)) -> Option<Duration> {
            self.store.claims.lock().unwrap().clear();
            let (in_flight, shutdown) = (InFlight::new(16, Gauge::default()), Shutdown::new());
            let now = std::time::Instant::now();
            let _slots: Vec<_> = (0..13).map(|_| in_flight.begin(BUSY, now)).collect();
            let (settled, _results) = mpsc::channel(1);
            let worker = async {
                while !shutdown.is_triggered() {
                    self.worker.claim_and_start(&in_flight, &settled, &shutdown).await.unwrap();
                }
            };
            let test = async {
                while self.claims().is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                tokio::time::sleep(2 * CLAIM_TAKES).await;
                wake(&self.worker.signals);
                tokio::time::sleep(2 * PUT_OFF).await;
                shutdown.trigger();
            };
            tokio::join!(worker, test);
            let claims = self.claims();
            Some(claims.get(1)?.duration_since(claims[0]))
        }
    }

    /// FB-1: the job of a healthy endpoint that comes right after a claim has found nothing does not wait.
    #[tokio::test]
    async fn new_jobs_of_others_are_claimed_at_once() {
        let fruitless = Fruitless::new();
        let mut quickest = Duration::MAX;
        // One round in a quiet moment is enough.
        for _ in 0..5 {
            let after = fruitless.next_claim_after(|signals| signals.wake_worker_for([BUSY, OTHER])).await;
            quickest = quickest.min(after.unwrap());
        }
        assert!(quickest < CLAIM_TAKES + PUT_OFF / 2, "{quickest:?}");
    }

    #[tokio::test]
    async fn new_jobs_of_the_busy_one_cost_no_claim() {
        let after = Fruitless::new().next_claim_after(|signals| signals.wake_worker_for([BUSY])).await;
        assert!(after.is_none_or(|after| after >= Worker::SKIPPED_POLL), "{after:?}");
    }

    /// Those of other processes' making: whose they are is not known, and scans have a price.
    #[tokio::test]
    async fn jobs_of_unknown_are_looked_for_after_a_while() {
        let after = Fruitless::new().next_claim_after(|signals| signals.wake(Stage::Worker)).await.unwrap();
        assert!(after >= CLAIM_TAKES + PUT_OFF, "{after:?}");
    }
}
