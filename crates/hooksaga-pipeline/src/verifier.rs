//! The verifier: proves that a subscription's endpoint wants its callbacks.
//!
//! It takes the checks that are due, sends each endpoint a signed challenge, and records whether the
//! endpoint gave the challenge back. One loop looks for checks and starts them; it does not wait for them, so
//! that an endpoint that hangs holds up nobody else's check. It runs in any number of copies; a check whose
//! process dies is taken over when its hold ends. It never touches deliveries: what was held for a
//! subscription goes on by itself once the subscription is verified, and is only woken from here.

use crate::{
    CallbackRequest, DeliveryClient, Driver, Metrics, Progress, SealError, SecretKey, Shutdown, Signals,
    SigningSecret, VerificationResult, driver::Rhythm, random_hex,
};
use bytes::Bytes;
use hooksaga_saga::{ErrorCode, SubscriptionId, Timestamp};
use hooksaga_store::{Check, CheckOutcome, Stage, StoreResult, VerifierStore};
use serde::Deserialize;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{sync::Semaphore, task::JoinSet};

/// How many checks one pass takes.
const BATCH: u32 = 16;
/// How many checks are under way at a time.
const AT_ONCE: u32 = 64;
/// How long an endpoint may take, its body included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a check is this process's: its timeout, and time to record the outcome.
const HOLD: Duration = Duration::from_secs(30);
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
        Self { store, client, key, signals, metrics }
    }

    /// Runs until the order to stop; checks that are under way are finished.
    pub async fn run(&self, shutdown: &Shutdown) {
        let slots = Arc::new(Semaphore::new(AT_ONCE as usize));
        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::Woken(Stage::Verifier),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        driver.run(|| self.take_and_start(&slots, shutdown)).await;
        // Every slot is free again when the last check has ended.
        let _ = slots.acquire_many(AT_ONCE).await;
    }

    /// Takes due checks for the slots that are free, starts them, and does not wait for them.
    async fn take_and_start(&self, slots: &Arc<Semaphore>, shutdown: &Shutdown) -> StoreResult<Progress> {
        tokio::select! {
            // The permit goes back at once: this only waits. Nobody else takes one.
            _ = slots.acquire() => {}
            () = shutdown.wait() => return Ok(Progress::IDLE),
        }
        let limit = u32::try_from(slots.available_permits()).unwrap_or(u32::MAX).min(BATCH);
        let checks = self.store.take_checks(limit, HOLD).await?;
        let taken = checks.len();
        for check in checks {
            let slot = slots.clone().acquire_owned().await.expect("this semaphore is never closed");
            let verifier = self.clone();
            tokio::spawn(async move {
                if let Err(error) = verifier.carry_out(&check).await {
                    verifier.metrics.store_error(Self::NAME, error.is_transient());
                    let subscription_id = check.subscription_id.0;
                    tracing::warn!(subscription_id, %error, "a verification was not recorded; it happens again");
                }
                drop(slot);
            });
        }
        Ok(Progress::of_batch(taken, limit).or_after(self.next_check().await?))
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
            running.spawn(async move { verifier.carry_out(&check).await });
        }
        // Each outcome is recorded on its own; the first failure is reported once all are through.
        let mut recorded = Ok(());
        for result in running.join_all().await {
            recorded = recorded.and(result);
        }
        recorded?;
        Ok(Progress::of_batch(taken, BATCH).or_after(self.next_check().await?))
    }

    async fn carry_out(&self, check: &Check) -> StoreResult<()> {
        let result = self.challenge(check).await;
        let outcome = match &result {
            Ok(()) => CheckOutcome::Verified,
            Err(code) => after_failure(check.attempt, code.clone()),
        };
        if !self.store.record(check, &outcome).await? {
            tracing::debug!(
                subscription_id = check.subscription_id.0,
                round = check.round,
                "verification superseded: the subscription was changed or asked again meanwhile"
            );
            return Ok(());
        }
        self.announce(check, &outcome);
        Ok(())
    }

    /// Sends one challenge: fine, or why the endpoint did not prove itself.
    async fn challenge(&self, check: &Check) -> Result<(), ErrorCode> {
        let secrets = self.open_secrets(check).map_err(|error| {
            tracing::error!(subscription_id = check.subscription_id.0, %error, "cannot sign a challenge");
            ErrorCode::INTERNAL
        })?;
        let challenge = random_hex(CHALLENGE_BYTES);
        let request = CallbackRequest {
            url: check.callback_url.clone(),
            webhook_id: format!("ver_{}_{}", check.subscription_id, check.number),
            body: Bytes::from(request_body(check.subscription_id, &challenge)),
            secrets,
            extra_headers: Vec::new(),
        };
        let answer = self.client.challenge(request, TIMEOUT).await?;
        if proves(&answer, &challenge) { Ok(()) } else { Err(ErrorCode::CHALLENGE_MISMATCH) }
    }

    fn open_secrets(&self, check: &Check) -> Result<Arc<[SigningSecret]>, SealError> {
        check.secrets.iter().map(|stored| self.key.open(&stored.secret)).collect()
    }

    fn announce(&self, check: &Check, outcome: &CheckOutcome) {
        let subscription_id = check.subscription_id.0;
        let attempt = check.attempt;
        match outcome {
            CheckOutcome::Verified => {
                self.metrics.verification(VerificationResult::Verified);
                tracing::info!(subscription_id, attempt, "subscription verified");
                self.signals.wake(Stage::Schedule);
            }
            CheckOutcome::Retry(code, delay) => {
                self.metrics.verification(VerificationResult::Retry);
                let retry_in_secs = delay.as_secs();
                tracing::info!(subscription_id, attempt, error_code = %code, retry_in_secs, "not verified yet");
            }
            CheckOutcome::GivenUp(code) => {
                self.metrics.verification(VerificationResult::Failed);
                tracing::warn!(subscription_id, attempt, error_code = %code, "verification failed");
            }
        }
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

fn request_body(subscription_id: SubscriptionId, challenge: &str) -> String {
    format!(
        r#"{{"type":"hooksaga.verification","subscription_id":{subscription_id},"challenge":"{challenge}"}}"#
    )
}

/// The JSON form of an answer. Any other key means that the request was echoed, not understood.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer<'a> {
    #[serde(borrow)]
    challenge: std::borrow::Cow<'a, str>,
}

/// Whether a 2xx answer gives the challenge back: `{"challenge":"…"}` with that one key, or plain text.
fn proves(answer: &[u8], challenge: &str) -> bool {
    let answer = answer.trim_ascii();
    // An array would pass for the object that it lists the values of.
    if answer.first() == Some(&b'{') {
        serde_json::from_slice::<Answer>(answer).is_ok_and(|answer| answer.challenge == challenge)
    } else {
        answer == challenge.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHALLENGE: &str = "0123456789abcdef0123456789abcdef";

    fn filled(text: &str) -> String {
        text.replace('$', CHALLENGE)
    }

    #[test]
    fn the_challenge_alone_proves_the_endpoint() {
        for answer in [
            "$",
            " $\r\n",
            r#"{"challenge":"$"}"#,
            "\n{ \"challenge\" : \"$\" }\n",
            // JSON may write any character as an escape.
            r#"{"challen\u0067e":"$"}"#,
        ] {
            assert!(proves(filled(answer).as_bytes(), CHALLENGE), "{answer}");
        }
    }

    #[test]
    fn anything_else_does_not() {
        for answer in [
            "",
            "ok",
            "$$",
            "challenge=$",
            r#""$""#,
            r#"["$"]"#,
            r#"{"challenge":["$"]}"#,
            r#"{"challenge":"$"} x"#,
            r#"{"challenge":"$","ok":true}"#,
            r#"{"challenge":"$","challenge":"$"}"#,
            r#"{"challenge":"no"}"#,
            r#"{"Challenge":"$"}"#,
            r#"{"challenge":"$""#,
            "{}",
        ] {
            assert!(!proves(filled(answer).as_bytes(), CHALLENGE), "{answer}");
        }
        assert!(!proves(b"\xff\xfe", CHALLENGE));
        assert!(!proves(CHALLENGE.to_uppercase().as_bytes(), CHALLENGE));
    }

    #[test]
    fn an_echo_of_the_request_does_not() {
        let request = request_body(SubscriptionId(7), CHALLENGE);
        assert_eq!(
            request,
            filled(r#"{"type":"hooksaga.verification","subscription_id":7,"challenge":"$"}"#)
        );
        assert!(!proves(request.as_bytes(), CHALLENGE));
    }

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
