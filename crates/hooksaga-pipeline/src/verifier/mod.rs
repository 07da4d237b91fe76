//! The verifier: proves that a subscription's endpoint wants its callbacks.
//!
//! It takes the checks that are due, sends each endpoint a signed challenge, and records whether the
//! endpoint gave the challenge back. One loop looks for checks, another starts them as the [`schedule`] says, so
//! that hosts that hang hold up nobody else's check. It runs in any number of copies; a check whose process died, or
//! that never got its turn, can be claimed again when its lease expires. It never touches deliveries: deliveries that
//! were held for a subscription continue by themselves once it is verified; the verifier only wakes the stages.

mod answer;
mod schedule;

use crate::{
    CallbackRequest, DeliveryClient, Driver, Metrics, Progress, SealError, SecretKey, Shutdown, Signals,
    SigningSecret, VerificationResult, delivery::request_headers, driver::Rhythm, random_hex,
};
use bytes::Bytes;
use hooksaga_saga::{ErrorCode, Timestamp, furthest_check};
use hooksaga_store::{Check, CheckOutcome, CheckTurn, Stage, StoreResult, TakenChecks, VerifierStore};
use schedule::{Host, Limits, Schedule};
use std::{
    collections::HashMap,
    future::{Future, pending},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Notify, oneshot},
    task::{self, JoinSet},
    time::{Instant, sleep},
};

/// How many checks one pass takes.
const BATCH: u32 = 64;
/// How many of these of one tenant.
const PER_TENANT: usize = 32;
/// How many while very many wait for one host; passes are then [`LOOK_AGAIN`] apart. A host that proves itself
/// keeps up with that, and others are not hidden behind one that does not for long.
const BATCH_IN_A_CROWD: u32 = 32;
/// How long an endpoint may take, its body included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a check is this process's: the longest wait for its turn, its timeout, and time to record the
/// outcome.
const HOLD: Duration = Duration::from_secs(30);
/// How often checks are looked for that lie further ahead than they can, and how many are made due at a time.
const STRANDED_EVERY: Duration = Duration::from_secs(10);
const STRANDED_AT_A_TIME: u32 = 1000;
/// How often it is checked, while checks wait for their turn, whether that has come.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The random bytes of a challenge; it has twice as many characters.
const CHALLENGE_BYTES: usize = 32;
/// A due time is compared with this process's clock, which may differ from the database's: no sooner.
const SOONEST: Duration = Duration::from_millis(100);

/// Sends challenges and records how they were answered.
#[derive(Clone)]
pub struct Verifier {
    store: Arc<dyn VerifierStore>,
    client: DeliveryClient,
    key: Arc<SecretKey>,
    signals: Signals,
    metrics: Arc<Metrics>,
    allow_trusted: bool,
    limits: Limits,
}

impl Verifier {
    const NAME: &str = "verifier";

    pub fn new(
        store: Arc<dyn VerifierStore>,
        client: DeliveryClient,
        key: Arc<SecretKey>,
        signals: Signals,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { store, client, key, signals, metrics, allow_trusted: false, limits: Limits::default() }
    }

    /// Whether it takes an administrator's word for an endpoint. If not, the endpoint is sent a challenge all the same.
    #[must_use]
    pub fn allow_trusted(self, allow_trusted: bool) -> Self {
        Self { allow_trusted, ..self }
    }

    /// How many checks it has under way at a time, each with a connection of its own.
    #[must_use]
    pub fn at_a_time(self, checks: usize) -> Self {
        Self { limits: Limits::at_a_time(checks), ..self }
    }

    /// Runs until the order to stop; checks that are under way are finished.
    pub async fn run(&self, shutdown: &Shutdown) {
        let board = Board::new(self.limits);
        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::WokenSeldom(Stage::Verifier),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        tokio::join!(driver.run(|| self.take(&board)), self.start_all(&board, shutdown));
    }

    /// Makes checks due that a clock which was ahead has put out of reach.
    async fn free_stranded(&self, board: &Board) -> StoreResult<()> {
        if !board.is_time_to_free(Instant::now()) {
            return Ok(());
        }
        let checks = self.store.free_stranded(STRANDED_AT_A_TIME, furthest_check()).await?;
        if checks > 0 {
            tracing::warn!(
                component = Self::NAME,
                checks,
                "the database's clock was ahead: verifications that waited for it are due"
            );
        }
        board.freed(Instant::now());
        Ok(())
    }

    /// Takes due checks of the tenants whose turn it is, as many as may wait.
    async fn take(&self, board: &Board) -> StoreResult<Progress> {
        self.free_stranded(board).await?;
        let later = Progress::Idle { until: Some(LOOK_AGAIN) };
        let (turn, crowded) = board.turn();
        if turn.limit == 0 {
            return Ok(later);
        }
        let TakenChecks { checks, resume_after } = self.store.take_checks_in_turn(&turn, HOLD).await?;
        // A turn in which somebody had checks may have left some.
        let more = !checks.is_empty() || resume_after.is_some();
        board.resume_after(resume_after);
        // Nobody is asked about these: they need not wait for their hosts.
        let (trusted, asked): (Vec<_>, Vec<_>) = checks.into_iter().partition(|check| self.is_trusted(check));
        board.offer(asked);
        for check in trusted {
            self.record(&check, CheckOutcome::Trusted).await?;
        }
        match more {
            true if crowded => Ok(later),
            true => Ok(Progress::Worked),
            false => Ok(Progress::IDLE.or_after(self.next_check().await?)),
        }
    }

    /// Starts checks when their turn comes, until the order to stop.
    async fn start_all(&self, board: &Board, shutdown: &Shutdown) {
        let mut running = ChecksUnderWay::default();
        while !shutdown.is_triggered() {
            let step = board.schedule().step(Instant::now());
            for number in step.cut {
                running.cut(number);
            }
            for (number, check) in step.start {
                running.start(number, self.clone(), check);
            }
            tokio::select! {
                () = shutdown.wait() => {}
                () = board.changed.notified() => {}
                (number, verified) = running.ended() => {
                    board.schedule().ended(number, verified, Instant::now());
                }
                () = sleep(LOOK_AGAIN), if step.waits => {}
            }
        }
        running.finish().await;
    }

    async fn next_check(&self) -> StoreResult<Option<Duration>> {
        Ok(self.store.next_check_at().await?.map(time_until))
    }

    /// One pass: carries out up to a batch of due checks, all at the same time, and returns when their
    /// outcomes are recorded.
    pub async fn run_once(&self) -> StoreResult<Progress> {
        let checks = self.store.take_checks(BATCH, HOLD).await?;
        let taken = checks.len();
        let mut running = JoinSet::new();
        for check in checks {
            let verifier = self.clone();
            running.spawn(async move { verifier.carry_out(&check, pending()).await.map(drop) });
        }
        // Each outcome is recorded on its own; the first failure is reported once all are through.
        let mut recorded = Ok(());
        for result in running.join_all().await {
            recorded = recorded.and(result);
        }
        recorded?;
        Ok(Progress::of_batch(taken, BATCH).or_after(self.next_check().await?))
    }

    /// Sends a challenge and records its outcome; returns whether it verified the endpoint. Once `cut` is ready
    /// the endpoint has had its time.
    async fn carry_out(&self, check: &Check, cut: impl Future<Output = ()>) -> StoreResult<bool> {
        if self.is_trusted(check) {
            return self.record(check, CheckOutcome::Trusted).await;
        }
        let result = tokio::select! {
            result = self.challenge(check) => result,
            () = cut => Err(ErrorCode::TIMEOUT),
        };
        let outcome = match result {
            Ok(()) => CheckOutcome::Verified,
            Err(code) => after_failure(check.attempt, code),
        };
        self.record(check, outcome).await
    }

    fn is_trusted(&self, check: &Check) -> bool {
        self.allow_trusted && check.vouched_by.is_some()
    }

    /// Records an outcome; returns whether it verified the endpoint.
    async fn record(&self, check: &Check, outcome: CheckOutcome) -> StoreResult<bool> {
        let verified = matches!(outcome, CheckOutcome::Verified | CheckOutcome::Trusted);
        if !self.store.record(check, &outcome).await? {
            tracing::debug!(
                subscription_id = check.subscription_id.0,
                round = check.round,
                "verification superseded: the subscription was changed, or verification was requested again, in the meantime"
            );
            return Ok(verified);
        }
        self.announce(check, &outcome);
        Ok(verified)
    }

    /// Carries a check out where nobody waits for the result.
    async fn carry_out_alone(self, check: Check, cut: impl Future<Output = ()>) -> bool {
        self.carry_out(&check, cut).await.unwrap_or_else(|error| {
            self.metrics.store_error(Self::NAME, &error);
            let subscription_id = check.subscription_id.0;
            tracing::warn!(subscription_id, %error, "a verification was not recorded; it happens again");
            false
        })
    }

    /// Sends one challenge: fine, or why the endpoint did not prove itself.
    async fn challenge(&self, check: &Check) -> Result<(), ErrorCode> {
        let secrets = self.open_secrets(check).map_err(|error| {
            tracing::error!(subscription_id = check.subscription_id.0, %error, "cannot sign a challenge");
            ErrorCode::INTERNAL
        })?;
        let extra_headers = request_headers::open(check.subscription_id, check.headers.as_ref(), &self.key).map_err(|error| {
            tracing::error!(subscription_id = check.subscription_id.0, %error, "cannot open its request headers");
            ErrorCode::INTERNAL
        })?;
        let challenge = random_hex(CHALLENGE_BYTES);
        let request = CallbackRequest {
            url: check.callback_url.clone(),
            webhook_id: format!("ver_{}_{}", check.subscription_id, check.number),
            body: Bytes::from(answer::request_body(check.subscription_id, &challenge)),
            secrets,
            extra_headers,
        };
        let given = self.client.challenge(request, TIMEOUT).await?;
        if answer::proves(&given, &challenge) { Ok(()) } else { Err(ErrorCode::CHALLENGE_MISMATCH) }
    }

    fn open_secrets(&self, check: &Check) -> Result<Arc<[SigningSecret]>, SealError> {
        let id = check.subscription_id;
        check.secrets.iter().map(|stored| self.key.open(id, &stored.secret)).collect()
    }

    fn announce(&self, check: &Check, outcome: &CheckOutcome) {
        let subscription_id = check.subscription_id.0;
        let (tenant, attempt) = (check.tenant.as_str(), check.attempt);
        match outcome {
            CheckOutcome::Verified | CheckOutcome::Trusted => {
                self.metrics.verification(VerificationResult::Verified);
                let vouched_by = check.vouched_by.as_deref().filter(|_| *outcome == CheckOutcome::Trusted);
                tracing::info!(subscription_id, tenant, attempt, vouched_by, "subscription verified");
                // Held deliveries continue: waiting sagas, and parked jobs.
                self.signals.wake_schedule([check.subscription_id]);
                self.signals.wake(Stage::Resume);
                // Operators are told.
                self.signals.wake(Stage::Caretaker);
                // And what it missed until now is made up for.
                self.signals.wake(Stage::Redrives);
            }
            CheckOutcome::Retry(code, delay) => {
                self.metrics.verification(VerificationResult::Retry);
                let retry_in_secs = delay.as_secs();
                tracing::info!(
                    subscription_id,
                    tenant,
                    attempt,
                    error_code = %code,
                    retry_in_secs,
                    "not verified yet"
                );
            }
            CheckOutcome::GivenUp(code) => {
                self.metrics.verification(VerificationResult::Failed);
                tracing::warn!(subscription_id, tenant, attempt, error_code = %code, "verification failed");
            }
        }
    }
}

/// The checks that wait and run, seen by the loop that takes and the loop that starts.
struct Board {
    schedule: Mutex<Schedule<Check>>,
    changed: Notify,
    /// The tenant that had its turn last; `None`: the next turn begins with the first one.
    last_tenant: Mutex<Option<String>>,
    /// When stranded checks were last looked for.
    freed: Mutex<Option<Instant>>,
}

impl Board {
    fn new(limits: Limits) -> Self {
        Self {
            schedule: Mutex::new(Schedule::new(limits)),
            changed: Notify::new(),
            last_tenant: Mutex::default(),
            freed: Mutex::default(),
        }
    }

    fn is_time_to_free(&self, now: Instant) -> bool {
        let freed = *self.freed.lock().unwrap_or_else(PoisonError::into_inner);
        freed.is_none_or(|freed| now.duration_since(freed) >= STRANDED_EVERY)
    }

    fn freed(&self, now: Instant) {
        *self.freed.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// No step in between leaves it half changed, whatever panicked.
    fn schedule(&self) -> MutexGuard<'_, Schedule<Check>> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which checks may be taken, and whether that should be done slowly.
    fn turn(&self) -> (CheckTurn, bool) {
        let after = self.last_tenant.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let schedule = self.schedule();
        let crowded = schedule.is_crowded();
        let batch = if crowded { BATCH_IN_A_CROWD } else { BATCH };
        let limit = u32::try_from(schedule.room()).unwrap_or(u32::MAX).min(batch);
        let per_tenant = schedule.room_of_one(PER_TENANT);
        let full = schedule.full_tenants(per_tenant);
        let per_tenant = u32::try_from(per_tenant).unwrap_or(u32::MAX);
        (CheckTurn { after, limit, per_tenant, full }, crowded)
    }

    fn resume_after(&self, tenant: Option<String>) {
        *self.last_tenant.lock().unwrap_or_else(PoisonError::into_inner) = tenant;
    }

    fn offer(&self, checks: Vec<Check>) {
        let now = Instant::now();
        for check in checks {
            let (subscription_id, first) = (check.subscription_id.0, check.attempt <= 1);
            let (host, tenant) = (Host::of(&check.callback_url), check.tenant.clone());
            if !self.schedule().offer(host, &tenant, first, check, now) {
                tracing::debug!(
                    subscription_id,
                    "too many verifications wait for this host; this one is tried again later"
                );
            }
        }
        self.changed.notify_one();
    }
}

/// The checks under way, by the numbers that the schedule gave them.
#[derive(Default)]
struct ChecksUnderWay {
    tasks: JoinSet<bool>,
    numbers: HashMap<task::Id, u64>,
    cuts: HashMap<u64, oneshot::Sender<()>>,
}

impl ChecksUnderWay {
    fn start(&mut self, number: u64, verifier: Verifier, check: Check) {
        let (cut, is_cut) = oneshot::channel();
        let cut_short = async {
            // A sender that is gone cuts nothing.
            if is_cut.await.is_err() {
                pending().await
            }
        };
        let task = self.tasks.spawn(verifier.carry_out_alone(check, cut_short));
        self.numbers.insert(task.id(), number);
        self.cuts.insert(number, cut);
    }

    fn cut(&mut self, number: u64) {
        if let Some(cut) = self.cuts.remove(&number) {
            // One that has just ended needs no cut.
            let _ = cut.send(());
        }
    }

    /// Waits until a check has ended; returns its number, and whether it verified its endpoint.
    async fn ended(&mut self) -> (u64, bool) {
        loop {
            let (id, verified) = match self.tasks.join_next_with_id().await {
                Some(Ok(ended)) => ended,
                Some(Err(failed)) => (failed.id(), false),
                None => pending().await,
            };
            if let Some(number) = self.numbers.remove(&id) {
                self.cuts.remove(&number);
                return (number, verified);
            }
        }
    }

    async fn finish(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The first try is at once, the second 5 s after it, the third 30 s after that, and no other.
fn after_failure(attempt: u32, code: ErrorCode) -> CheckOutcome {
    match attempt {
        0 | 1 => CheckOutcome::Retry(code, Duration::from_secs(5)),
        2 => CheckOutcome::Retry(code, Duration::from_secs(30)),
        _ => CheckOutcome::GivenUp(code),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "only how long this process sleeps; what is due is decided by the database when it looks"
)]
fn time_until(due: Timestamp) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX));
    due.since(now).max(SOONEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_tries_at_once_after_5_s_and_after_30_s() {
        let code = ErrorCode::TIMEOUT;
        let retry = |seconds| CheckOutcome::Retry(ErrorCode::TIMEOUT, Duration::from_secs(seconds));
        assert_eq!(after_failure(1, code.clone()), retry(5));
        assert_eq!(after_failure(2, code.clone()), retry(30));
        assert_eq!(after_failure(3, code.clone()), CheckOutcome::GivenUp(ErrorCode::TIMEOUT));
        assert_eq!(after_failure(4, code), CheckOutcome::GivenUp(ErrorCode::TIMEOUT));
    }
}
