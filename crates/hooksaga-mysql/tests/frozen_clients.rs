//! Somebody holds locks and does not go on: a process that is frozen in the middle of a transaction. Others pass it by, and
//! the server does not wait for it forever.

use crate::{
    adapter::{Database, failure, fresh, name, owner, value},
    connecting::event,
};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_saga::{
    Applied, CallbackUrl, ErrorCode, Lead, Outcome, RateLimit, SubscriptionId, Tenant, Topics,
};
use hooksaga_store::{
    Allotted, Appended, Check, CheckOutcome, ClaimLimits, CreateOutcome, Decide, HeldBuckets, JobReport,
    Lease, LeaseToken, Move, NewSubscription, RouteLimits, SealedSecret, Starting, StoreError, Stores,
};
use mysql_async::{Conn, prelude::Queryable as _};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Less than any limit for which somebody would wait for a lock.
const SOON: Duration = Duration::from_secs(3);
const ALL: RouteLimits = RouteLimits { events: 100, sagas: 100 };

/// What a call returns, if it does not wait.
async fn soon<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, call).await.expect("the call waits for somebody's locks")
}

/// A transaction that locks the first row of a queue, as a component does, and then stays as it is.
async fn frozen(db: &Database, select: &str) -> Conn {
    let mut connection = owner(&db.url).await;
    connection.query_drop("SET idle_transaction_timeout = 0").await.unwrap();
    connection.query_drop("START TRANSACTION").await.unwrap();
    let sql = format!("{select} ORDER BY 1 LIMIT 1 FOR UPDATE SKIP LOCKED");
    let locked: Vec<i64> = connection.query(sql).await.unwrap();
    assert_eq!(locked.len(), 1, "there is something to lock");
    connection
}

/// A verified subscription to the type of [`event`].
pub(crate) async fn subscribe(stores: &Stores) -> SubscriptionId {
    let new = NewSubscription {
        tenant: "default".parse::<Tenant>().unwrap(),
        topics: "t".parse::<Topics>().unwrap(),
        callback_url: CallbackUrl::parse("https://a.example/", true).unwrap(),
        description: None,
        active: true,
        max_retry_limit: Some(1),
        rate_limit: None,
        headers: None,
    };
    let secret = SealedSecret { key_id: "k".to_owned(), sealed: vec![1] };
    let CreateOutcome::Created(created) = stores.admin.create(&new, &secret).await.unwrap() else {
        panic!("not created")
    };
    let checks: Vec<Check> = stores.verifier.take_checks(1, Duration::from_secs(60)).await.unwrap();
    assert!(stores.verifier.record(&checks[0], &CheckOutcome::Verified).await.unwrap());
    created.id
}

/// So many events, routed, with a finished attempt each that failed.
async fn finish(stores: &Stores, events: usize) {
    let id = subscribe(stores).await;
    let events: Vec<_> = (0..events).map(|_| event("1", None)).collect();
    stores.ingest.append(&events).await.unwrap();
    stores.router.route(ALL, 1).await.unwrap();
    let allotted = [Allotted { subscription_id: id, jobs: 100 }];
    stores.orchestrator.create_jobs(&allotted, &|| Move::Now).await.unwrap();
    let limits = ClaimLimits { jobs: 100, payload_bytes: 1 << 20, skip: Vec::new() };
    let claimed = stores.worker.claim(&limits, LeaseToken(1).lasting(Duration::from_secs(60))).await.unwrap();
    let report = |lease: &Lease<_>| JobReport {
        lease: lease.as_ref(),
        outcome: Outcome::Failed(ErrorCode::http(500)),
        started_at: None,
        callback_url: None,
        response_status: Some(500),
        retry_at: None,
        duration: Duration::from_millis(1),
        response_excerpt: None,
    };
    let reports: Vec<_> = claimed.jobs.iter().map(report).collect();
    assert_eq!(stores.worker.report(&reports).await.unwrap().len(), events.len());
}

fn decide() -> Decide {
    Arc::new(|job, now| -> Applied {
        hooksaga_saga::apply_result(&job.saga, &job.result, &hooksaga_saga::RetryPolicy::default(), now)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_router_stops_nobody_else() {
    let db = fresh().await;
    let stores = db.stores();
    stores.ingest.append(&[event("1", None), event("2", None), event("3", None)]).await.unwrap();
    let held = frozen(&db, "SELECT event_id FROM unrouted_events").await;
    assert_eq!(soon(stores.router.route(ALL, 5)).await.unwrap().events.len(), 2);
    stores.ingest.append(&[event("4", None)]).await.unwrap();
    assert_eq!(soon(stores.router.route(ALL, 5)).await.unwrap().events.len(), 1);
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_orchestrators_and_dead_letter_components_stop_nobody_else() {
    let db = fresh().await;
    let stores = db.stores();
    finish(&stores, 4).await;
    let held = frozen(&db, "SELECT job_id FROM finished_jobs").await;
    assert_eq!(soon(stores.orchestrator.apply(100, &decide())).await.unwrap().results.len(), 3);
    drop(held);
    let dead = frozen(&db, "SELECT saga_id FROM pending_dead_letters").await;
    assert_eq!(soon(stores.dead_letters.bury(100)).await.unwrap().len(), 2);
    drop(dead);
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_workers_and_cleaners_stop_nobody_else() {
    let db = fresh().await;
    let stores = db.stores();
    let id = subscribe(&stores).await;
    stores.ingest.append(&[event("1", None), event("2", None), event("3", None)]).await.unwrap();
    stores.router.route(ALL, 1).await.unwrap();
    let allotted = [Allotted { subscription_id: id, jobs: 100 }];
    stores.orchestrator.create_jobs(&allotted, &|| Move::Now).await.unwrap();
    let held = frozen(&db, "SELECT id FROM webhook_delivery_jobs").await;
    let limits = ClaimLimits { jobs: 100, payload_bytes: 1 << 20, skip: Vec::new() };
    let claimed = soon(stores.worker.claim(&limits, LeaseToken(1).lasting(Duration::ZERO))).await.unwrap();
    assert_eq!(claimed.jobs.len(), 2);
    assert_eq!(soon(stores.cleaner.reset_expired(100)).await.unwrap().len(), 2);
    // Beside others, too, a claim is bounded in payload bytes: each payload is one.
    let mut leases = Vec::new();
    for (token, cut_short) in [(2, true), (3, false)] {
        let limits = ClaimLimits { payload_bytes: 1, ..limits.clone() };
        let claimed = stores.worker.claim(&limits, LeaseToken(token).lasting(Duration::from_secs(60)));
        let claimed = soon(claimed).await.unwrap();
        assert_eq!((claimed.jobs.len(), claimed.cut_short), (1, cut_short));
        leases.extend(claimed.jobs.iter().map(Lease::as_ref));
    }
    assert_eq!(soon(stores.worker.hand_back(&leases, Duration::ZERO)).await.unwrap().len(), 2);
    drop(held);
}

/// A rate limit's buckets, one for the admission and one for the start, as their holder leaves them: locked and written.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_process_with_a_rate_limit_stops_no_other_subscription() {
    let db = fresh().await;
    let stores = db.stores();
    let mut connection = owner(&db.url).await;
    for sql in [
        "INSERT INTO subscriptions (event_type, callback_url, verified_url, rate_limit)
         VALUES ('t', 'https://a/', 'https://a/', 10), ('t', 'https://b/', 'https://b/', 10),
                ('t', 'https://c/', 'https://c/', NULL)",
        "INSERT INTO events (event_type, payload, correlation_id) VALUES ('t', '1', 'c')",
        "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, max_retry_limit)
         SELECT e.id, s.id, generation, 5 FROM events e, subscriptions s, (SELECT 0 AS generation UNION SELECT 1) g",
    ] {
        connection.query_drop(sql).await.unwrap();
    }
    let [held, limited, unlimited] = [1, 2, 3].map(SubscriptionId);
    let allotted = [held, limited, unlimited].map(|id| Allotted { subscription_id: id, jobs: 1 });
    let admit = || stores.orchestrator.create_jobs(&allotted, &|| Move::Now);
    assert_eq!(admit().await.unwrap().sagas.len(), 3);
    let starting =
        [held, limited].map(|id| Starting { subscription_id: id, limit: RateLimit::per_second(10), jobs: 1 });
    let start = |held| stores.worker.start_limited(&starting, Lead::NONE, held);
    assert!(start(HeldBuckets::WaitFor).await.unwrap().reserved.iter().all(Option::is_some));

    let mut frozen = owner(&db.url).await;
    for sql in [
        "SET idle_transaction_timeout = 0",
        "START TRANSACTION",
        "SELECT full_at FROM rate_limits WHERE subscription_id = 1 FOR UPDATE",
        "UPDATE rate_limits SET full_at = full_at + INTERVAL 1 MICROSECOND WHERE subscription_id = 1",
    ] {
        frozen.query_drop(sql).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let pass = soon(admit()).await.unwrap();
    let admitted: Vec<_> = pass.sagas.iter().map(|saga| saga.subscription_id).collect();
    assert!(admitted.len() == 2 && !admitted.contains(&held), "{admitted:?}");
    assert!(matches!(pass.limited[..], [one] if one.subscription_id == held), "{:?}", pass.limited);
    let starts = soon(start(HeldBuckets::PassOver)).await.unwrap().reserved;
    assert!(matches!(starts[..], [None, Some(one)] if one.jobs == 1), "{starts:?}");

    frozen.query_drop("COMMIT").await.unwrap();
    assert_eq!(admit().await.unwrap().sagas.len(), 1);
    let starts = start(HeldBuckets::PassOver).await.unwrap().reserved;
    assert!(matches!(starts[..], [Some(one), Some(_)] if one.jobs == 1), "{starts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_somebody_holds_is_counted_beside() {
    let db = fresh().await;
    let stores = db.stores();
    finish(&stores, 2).await;
    let orchestrator = stores.orchestrator;
    assert_eq!(orchestrator.apply(1, &decide()).await.unwrap().results.len(), 1);
    // In this minute and the next, since the minute may change in between.
    let mut held = owner(&db.url).await;
    for sql in [
        "SET idle_transaction_timeout = 0",
        "START TRANSACTION",
        "INSERT INTO delivery_counts (minute, subscription_id, shard) \
         SELECT minute + INTERVAL 1 MINUTE, subscription_id, shard FROM delivery_counts",
        "UPDATE delivery_counts SET failed = failed + 0, delivered = delivered + 1",
    ] {
        held.query_drop(sql).await.unwrap();
    }
    let applied = tokio::time::timeout(Duration::from_secs(9), orchestrator.apply(1, &decide())).await;
    assert_eq!(applied.expect("it counts elsewhere").unwrap().results.len(), 1);
    held.query_drop("ROLLBACK").await.unwrap();
    assert_eq!(value(&db.url, "SELECT SUM(failed) FROM delivery_counts").await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_idle_in_a_transaction_is_ended() {
    let db = fresh().await;
    let stores = db.stores();
    stores.ingest.append(&[event("1", None)]).await.unwrap();
    // A component's own session, with its settings, in the middle of a pass.
    let mut connection = db.as_role(hooksaga_store::Role::RouterWorker).await.unwrap();
    connection.query_drop("START TRANSACTION").await.unwrap();
    let locked: Vec<i64> =
        connection.query("SELECT event_id FROM unrouted_events FOR UPDATE SKIP LOCKED").await.unwrap();
    assert_eq!(locked.len(), 1);
    assert_eq!(stores.router.route(ALL, 5).await.unwrap().events.len(), 0);
    let began = Instant::now();
    while stores.router.route(ALL, 5).await.unwrap().events.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "the server keeps its locks for ever");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_id_that_somebody_holds_keeps_no_other_waiting() {
    let db = fresh().await;
    let stores = db.stores();
    stores.ingest.append(&[event("0", Some("a")), event("0", Some("z"))]).await.unwrap();
    let mut rival = owner(&db.url).await;
    for sql in [
        "SET idle_transaction_timeout = 0",
        "START TRANSACTION",
        "INSERT INTO events (event_type, payload, external_id, correlation_id) VALUES ('t', '1', 'm', 'r')",
    ] {
        rival.query_drop(sql).await.unwrap();
    }
    // In another process somebody wants the same id all the time.
    let other = db.second_instance().await;
    let wanting = tokio::spawn(async move {
        let mut refused = 0;
        let began = Instant::now();
        loop {
            match other.ingest.append(&[event("1", Some("m"))]).await {
                Ok(answers) => break (answers, refused),
                Err(StoreError::Contended(_)) => refused += 1,
                Err(error) => panic!("{error:?}"),
            }
            assert!(began.elapsed() < Duration::from_secs(60));
        }
    });
    // Ids on either side of it, and in the gap before it.
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    for n in 0.. {
        for id in ["b", "l", "n", "y"] {
            let one = Instant::now();
            let answers = stores.ingest.append(&[event("1", Some(&format!("{id}-{n}")))]).await.unwrap();
            assert!(matches!(answers.as_slice(), [Appended::Created(_)]), "{answers:?}");
            slowest = slowest.max(one.elapsed());
        }
        if began.elapsed() > Duration::from_secs(4) {
            break;
        }
    }
    assert!(slowest < Duration::from_millis(800), "somebody waited {slowest:?}");
    // A caller that wants the very same one gets an error within a bounded time.
    let began = Instant::now();
    let error = failure(stores.ingest.append(&[event("1", Some("m"))]).await);
    assert!(matches!(error, StoreError::Contended(_)), "{error:?}");
    assert!(error.to_string().contains("external_id"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    rival.query_drop("COMMIT").await.unwrap();
    let (answers, refused) = wanting.await.unwrap();
    assert!(matches!(answers.as_slice(), [Appended::Duplicate(_)]), "{answers:?}");
    assert!(refused > 0);
    let held = format!("SELECT COUNT(*) FROM `{}`.events WHERE external_id = 'm'", name(&db.url));
    assert_eq!(value(&db.url, &held).await, "1");
}
