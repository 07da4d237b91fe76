//! The verifier against endpoints that answer well and badly, with a store that only notes.

use super::{
    client::{client, wall_clock},
    server::{Server, hold, read_request},
};
use async_trait::async_trait;
use hooksaga_pipeline::{Metrics, Progress, SecretKey, Shutdown, Signals, SigningSecret, Verifier};
use hooksaga_saga::{ErrorCode, SecretId, SubscriptionId, Timestamp};
use hooksaga_store::{
    Check, CheckOutcome, CheckTurn, Stage, StoreError, StoreResult, StoredSecret, TakenChecks, VerifierStore,
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    time::{sleep, timeout},
};

/// Gives out its checks once, and notes the outcomes.
#[derive(Default)]
struct Notes {
    checks: Mutex<Vec<Check>>,
    outcomes: Mutex<Vec<(SubscriptionId, CheckOutcome)>>,
    /// Answers to `record` by subscription; where none is given, true.
    fails_for: Option<SubscriptionId>,
    next: Option<Timestamp>,
    /// How often it was asked for checks.
    asked: AtomicUsize,
}

#[async_trait]
impl VerifierStore for Notes {
    async fn take_checks_in_turn(&self, turn: &CheckTurn, hold: Duration) -> StoreResult<TakenChecks> {
        assert!(hold > Duration::from_secs(10), "a check must not be taken over while it runs");
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut checks = self.checks.lock().unwrap();
        let mut taken: Vec<Check> = Vec::new();
        checks.retain(|check| {
            let of_tenant = taken.iter().filter(|other| other.tenant == check.tenant).count();
            let takes = taken.len() < turn.limit as usize
                && of_tenant < turn.per_tenant as usize
                && !turn.full.contains(&check.tenant);
            if takes {
                taken.push(check.clone());
            }
            !takes
        });
        Ok(TakenChecks { checks: taken, resume_after: None })
    }

    async fn record(&self, check: &Check, outcome: &CheckOutcome) -> StoreResult<bool> {
        if self.fails_for == Some(check.subscription_id) {
            return Err(StoreError::Unavailable("gone".into()));
        }
        self.outcomes.lock().unwrap().push((check.subscription_id, outcome.clone()));
        Ok(true)
    }

    async fn free_stranded(&self, _: u32, _: Duration) -> StoreResult<u64> {
        Ok(0)
    }

    async fn next_check_at(&self) -> StoreResult<Option<Timestamp>> {
        Ok(self.next)
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        Ok(Vec::new())
    }
}

struct Fixture {
    key: Arc<SecretKey>,
    store: Notes,
}

impl Fixture {
    fn new() -> Self {
        Self { key: Arc::new(SecretKey::generate()), store: Notes::default() }
    }

    /// Asks for a check of this URL.
    fn check(self, id: i64, url: String, attempt: u32) -> Self {
        self.store.checks.lock().unwrap().push(check(&self.key, id, url, attempt));
        self
    }

    fn verifier(self) -> (Arc<Notes>, Signals, Verifier) {
        let store = Arc::new(self.store);
        let signals = Signals::new(Stage::ALL);
        let dyn_store: Arc<dyn VerifierStore> = Arc::<Notes>::clone(&store);
        let verifier = Verifier::new(dyn_store, client(), self.key, signals.clone(), Metrics::new());
        (store, signals, verifier)
    }

    async fn run(self) -> (StoreResult<Progress>, Vec<(SubscriptionId, CheckOutcome)>, Signals) {
        let (store, signals, verifier) = self.verifier();
        let progress = verifier.run_once().await;
        let mut outcomes = store.outcomes.lock().unwrap().clone();
        outcomes.sort_by_key(|(id, _)| *id);
        (progress, outcomes, signals)
    }
}

fn check(key: &SecretKey, id: i64, url: String, attempt: u32) -> Check {
    let secret = key.seal(SubscriptionId(id), &SigningSecret::generate());
    Check {
        tenant: String::from("default"),
        subscription_id: SubscriptionId(id),
        callback_url: url,
        round: 1,
        attempt,
        number: 40 + i64::from(attempt),
        secrets: vec![StoredSecret { id: SecretId(1), secret }],
        headers: None,
        vouched_by: None,
    }
}

/// The outcome of a first try at this endpoint.
async fn outcome_at(server: &Server) -> CheckOutcome {
    let (progress, mut outcomes, _) = Fixture::new().check(7, server.url(), 1).run().await;
    assert!(progress.unwrap().did_work());
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0).1
}

/// An endpoint that answers 200 with what `body` makes of the request's JSON and the challenge.
async fn endpoint(status: u16, body: impl Fn(&str, &str) -> String + Send + Sync + 'static) -> Server {
    let body = Arc::new(body);
    Server::start(move |mut stream, _| {
        let body = Arc::clone(&body);
        async move {
            let request = read_request(&mut stream).await.unwrap();
            assert!(request.header("webhook-signature").starts_with("v1,"));
            assert_eq!(request.header("webhook-id"), "ver_7_41");
            let text = String::from_utf8(request.body).unwrap();
            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(json["type"], "hooksaga.verification");
            assert_eq!(json["subscription_id"], 7);
            let answer = body(&text, json["challenge"].as_str().unwrap());
            let response = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    })
    .await
}

fn retry(code: ErrorCode) -> CheckOutcome {
    CheckOutcome::Retry(code, Duration::from_secs(5))
}

#[tokio::test]
async fn an_endpoint_that_gives_the_challenge_back_is_verified_and_held_work_woken() {
    let json = endpoint(200, |_, challenge| format!("{{\"challenge\":\"{challenge}\"}}")).await;
    assert_eq!(outcome_at(&json).await, CheckOutcome::Verified);
    let plain = endpoint(201, |_, challenge| format!("{challenge}\n")).await;
    let (_, outcomes, signals) = Fixture::new().check(7, plain.url(), 1).run().await;
    assert_eq!(outcomes, [(SubscriptionId(7), CheckOutcome::Verified)]);
    timeout(Duration::from_secs(5), signals.woken(Stage::Schedule)).await.expect("woken");
}

#[tokio::test]
async fn an_endpoint_that_does_not_is_not() {
    let echo = endpoint(200, |request, _| request.to_owned()).await;
    assert_eq!(outcome_at(&echo).await, retry(ErrorCode::CHALLENGE_MISMATCH));
    let ok = endpoint(200, |_, _| "ok".into()).await;
    assert_eq!(outcome_at(&ok).await, retry(ErrorCode::CHALLENGE_MISMATCH));
    let long = endpoint(200, |_, challenge| challenge.to_owned() + &" ".repeat(5000)).await;
    assert_eq!(outcome_at(&long).await, retry(ErrorCode::CHALLENGE_MISMATCH));
    let status = endpoint(500, |_, challenge| challenge.to_owned()).await;
    assert_eq!(outcome_at(&status).await, retry(ErrorCode::http(500)));
    let redirect = endpoint(302, |_, challenge| challenge.to_owned()).await;
    assert_eq!(outcome_at(&redirect).await, retry(ErrorCode::REDIRECT));
}

#[tokio::test]
async fn the_third_failure_is_the_last_and_one_check_does_not_hinder_another() {
    let dead = Server::start(|stream, _| async move { drop(stream) }).await;
    let good = endpoint(200, |_, challenge| challenge.to_owned()).await;
    let (progress, outcomes, _) =
        Fixture::new().check(1, dead.url(), 2).check(2, dead.url(), 3).check(7, good.url(), 1).run().await;
    assert!(progress.unwrap().did_work());
    let failure = ErrorCode::RESPONSE_INVALID;
    assert_eq!(
        outcomes,
        [
            (SubscriptionId(1), CheckOutcome::Retry(failure.clone(), Duration::from_secs(30))),
            (SubscriptionId(2), CheckOutcome::GivenUp(failure)),
            (SubscriptionId(7), CheckOutcome::Verified),
        ]
    );
}

#[tokio::test]
async fn a_secret_that_does_not_open_is_a_fault_of_this_server_and_nothing_is_sent() {
    let server = endpoint(200, |_, challenge| challenge.to_owned()).await;
    let mut fixture = Fixture::new().check(7, server.url(), 1);
    fixture.key = Arc::new(SecretKey::generate());
    let (_, outcomes, _) = fixture.run().await;
    assert_eq!(outcomes, [(SubscriptionId(7), retry(ErrorCode::INTERNAL))]);
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn an_outcome_that_cannot_be_recorded_is_an_error_after_the_others_are() {
    let good = endpoint(200, |_, challenge| challenge.to_owned()).await;
    let dead = Server::start(|stream, _| async move { drop(stream) }).await;
    let mut fixture = Fixture::new().check(1, dead.url(), 1).check(7, good.url(), 1);
    fixture.store.fails_for = Some(SubscriptionId(1));
    let (progress, outcomes, _) = fixture.run().await;
    assert!(progress.unwrap_err().is_transient());
    assert_eq!(outcomes, [(SubscriptionId(7), CheckOutcome::Verified)]);
}

#[tokio::test]
async fn a_pass_without_checks_says_when_the_next_is_due() {
    let (progress, ..) = Fixture::new().run().await;
    assert_eq!(progress.unwrap(), Progress::IDLE);

    let now = wall_clock().as_micros() as i64;
    let mut fixture = Fixture::new();
    fixture.store.next = Some(Timestamp::from_micros(now + 5_000_000));
    let (progress, ..) = fixture.run().await;
    let Progress::Idle { until: Some(until) } = progress.unwrap() else { panic!("idle until then") };
    assert!(until <= Duration::from_secs(5) && until > Duration::from_secs(1), "{until:?}");

    // Long due, by another clock perhaps: soon, but not in a tight loop.
    let mut fixture = Fixture::new();
    fixture.store.next = Some(Timestamp::from_micros(0));
    let (progress, ..) = fixture.run().await;
    assert_eq!(progress.unwrap(), Progress::Idle { until: Some(Duration::from_millis(100)) });
}

#[tokio::test(start_paused = true)]
async fn an_idle_verifier_asks_seldom() {
    let (store, _, verifier) = Fixture::new().verifier();
    let shutdown = Shutdown::new();
    let stop = async {
        sleep(Duration::from_secs(60)).await;
        shutdown.trigger();
    };
    tokio::join!(verifier.run(&shutdown), stop);
    // Every ten seconds, and a few times more often at first.
    let asked = store.asked.load(Ordering::SeqCst);
    assert!((6..20).contains(&asked), "asked {asked} times in a minute");
}

/// Waits until something is so.
async fn until(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(8), waiting).await.expect("in time");
}

#[tokio::test]
async fn an_endpoint_that_hangs_does_not_hold_up_the_next_check() {
    let hanging = Server::start(|stream, _| hold(stream)).await;
    let good = endpoint(200, |_, challenge| challenge.to_owned()).await;
    let fixture = Fixture::new().check(1, hanging.url(), 1);
    let next = check(&fixture.key, 7, good.url(), 1);
    let (store, signals, verifier) = fixture.verifier();
    let test = async {
        until(|| hanging.accepted() == 1).await;
        store.checks.lock().unwrap().push(next);
        signals.wake(Stage::Verifier);
        until(|| !store.outcomes.lock().unwrap().is_empty()).await;
    };
    let never = Shutdown::new();
    tokio::select! {
        () = verifier.run(&never) => panic!("nobody told it to stop"),
        () = test => {}
    }
    assert_eq!(*store.outcomes.lock().unwrap(), [(SubscriptionId(7), CheckOutcome::Verified)]);
}

#[tokio::test]
async fn checks_under_way_are_finished_before_a_stop() {
    let slow = Server::start(|mut stream, _| async move {
        read_request(&mut stream).await.unwrap();
        sleep(Duration::from_millis(300)).await;
        stream.write_all(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    })
    .await;
    let (store, _, verifier) = Fixture::new().check(1, slow.url(), 1).verifier();
    let shutdown = Shutdown::new();
    let stop = async {
        until(|| slow.accepted() == 1).await;
        shutdown.trigger();
    };
    tokio::join!(verifier.run(&shutdown), stop);
    assert_eq!(*store.outcomes.lock().unwrap(), [(SubscriptionId(1), retry(ErrorCode::http(500)))]);
}

/// How long a good endpoint's check took that came when 500 others hung for half a second.
async fn beside_hanging(url_of: impl Fn(usize, u16) -> String) -> (Duration, usize) {
    let hanging = Server::start(|stream, _| hold(stream)).await;
    let good = endpoint(200, |_, challenge| challenge.to_owned()).await;
    let mut fixture = Fixture::new();
    for n in 0..500 {
        let url = url_of(n, hanging.address.port());
        fixture = fixture.check(1000 + i64::try_from(n).unwrap(), url, 1);
    }
    // Another host: the ports of one share what it is sent.
    let newcomer = check(&fixture.key, 7, good.url().replace("127.0.0.1", "good.localhost"), 1);
    let (store, signals, verifier) = fixture.verifier();
    let test = async {
        sleep(Duration::from_millis(500)).await;
        let came = tokio::time::Instant::now();
        store.checks.lock().unwrap().push(newcomer);
        signals.wake(Stage::Verifier);
        let verified = (SubscriptionId(7), CheckOutcome::Verified);
        until(|| store.outcomes.lock().unwrap().contains(&verified)).await;
        came.elapsed()
    };
    let never = Shutdown::new();
    tokio::select! {
        () = verifier.run(&never) => panic!("nobody told it to stop"),
        took = test => (took, hanging.accepted()),
    }
}

#[tokio::test]
async fn five_hundred_hosts_that_hang_do_not_keep_a_good_endpoint_waiting() {
    let (took, _) = beside_hanging(|n, port| format!("http://h{n}.localhost:{port}/hook")).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn five_hundred_endpoints_of_one_host_that_hangs_do_not_either_and_it_gets_few_challenges() {
    let (took, challenges) = beside_hanging(|n, port| format!("http://127.0.0.1:{port}/{n}")).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!((1..=40).contains(&challenges), "{challenges}");
}

#[tokio::test]
async fn a_host_that_refuses_challenges_gets_a_burst_and_then_a_few_per_second() {
    let refusing = Server::always("HTTP/1.1 404 x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
    let mut fixture = Fixture::new();
    for n in 0..200 {
        fixture = fixture.check(1000 + n, refusing.url(), 1);
    }
    let (_, _, verifier) = fixture.verifier();
    let shutdown = Shutdown::new();
    let stop = async {
        sleep(Duration::from_secs(2)).await;
        shutdown.trigger();
    };
    tokio::join!(verifier.run(&shutdown), stop);
    // 20 at once, and 5 in each of two seconds.
    assert!((25..=31).contains(&refusing.accepted()), "{}", refusing.accepted());
}

#[tokio::test]
async fn a_host_that_proves_itself_is_verified_as_fast_as_it_answers() {
    let server = Server::start(|mut stream, _| async move {
        while let Some(request) = read_request(&mut stream).await {
            let json: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
            let answer = json["challenge"].as_str().unwrap();
            let response = format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    })
    .await;
    let mut fixture = Fixture::new();
    for n in 0..1000 {
        fixture = fixture.check(1000 + n, server.url(), 1);
    }
    let (store, _, verifier) = fixture.verifier();
    let never = Shutdown::new();
    tokio::select! {
        () = verifier.run(&never) => panic!("nobody told it to stop"),
        () = until(|| store.outcomes.lock().unwrap().len() == 1000) => {}
    }
    assert!(store.outcomes.lock().unwrap().iter().all(|(_, outcome)| *outcome == CheckOutcome::Verified));
}
