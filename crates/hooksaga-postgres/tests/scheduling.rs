//! Scheduling where only PostgreSQL commits without waiting for the disk: what docs/SCHEDULING.md says is shown here.

use crate::{
    adapter::{create_jobs, fresh, options, superuser, value},
    migrating::{database_in, new_cluster},
    resuming_scans::{decide, report},
};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_postgres::{connect, migrate};
use hooksaga_saga::{Lead, RateLimit, SubscriptionId};
use hooksaga_store::{Allotted, HeldBuckets, Move, Scheduled, Starting, StoreError, Stores};
use std::{
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Subscriptions 1 to `small` with one due saga each, and one more with `large`.
async fn backlogs(url: &str, small: u32, large: u32) -> SubscriptionId {
    let big = small + 1;
    let sql = format!(
        "INSERT INTO subscriptions (event_type, callback_url, verified_url)
             SELECT 't', 'https://h/' || n, 'https://h/' || n FROM generate_series(1, {big}) n;
         INSERT INTO events (event_type, payload, correlation_id) VALUES ('t', '1', 'c');
         INSERT INTO webhook_delivery_sagas (event_id, subscription_id, max_retry_limit)
             SELECT 1, n, 5 FROM generate_series(1, {small}) n;
         INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, max_retry_limit)
             SELECT 1, {big}, n, 5 FROM generate_series(1, {large}) n;"
    );
    superuser(url).await.batch_execute(&sql).await.unwrap();
    SubscriptionId(big.into())
}

/// A pass, and what happens between its two transactions.
async fn interrupted<F: Future<Output = ()>>(
    stores: &Stores,
    between: impl Fn() -> F + Clone + Send + Sync + 'static,
) -> Result<Scheduled, StoreError> {
    let created = move || {
        let between = between.clone();
        let (done, wait) = mpsc::channel();
        // In a runtime of its own, since the pass waits for it.
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(between());
            done.send(()).unwrap();
        });
        wait.recv().unwrap();
        Move::Now
    };
    let allotted = [1, 2].map(|id| Allotted { subscription_id: SubscriptionId(id), jobs: 10 });
    stores.orchestrator.create_jobs(&allotted, &created).await
}

/// The same with statements of the superuser.
async fn interrupted_by(stores: &Stores, url: &str, sql: &str) -> Result<Scheduled, StoreError> {
    let (url, sql) = (url.to_owned(), sql.to_owned());
    let between = move || {
        let (url, sql) = (url.clone(), sql.clone());
        async move { superuser(&url).await.batch_execute(&sql).await.unwrap() }
    };
    interrupted(stores, between).await
}

const LOSE_ONE: &str =
    "SET session_replication_role = replica; DELETE FROM webhook_delivery_jobs WHERE saga_id = 1;";
/// A crash ends every session.
const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'hooksaga/%';";
const IN_PROGRESS: &str =
    "SELECT coalesce(string_agg(id::text, ',' ORDER BY id), '') FROM webhook_delivery_sagas
    WHERE status = 'InProgress'";

/// What a crash of the database leaves when it has forgotten the jobs of a pass that it had confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_saga_whose_job_is_lost_is_not_moved_but_scheduled_again() {
    let db = fresh().await;
    backlogs(&db.url, 1, 1).await;
    let stores = db.stores();
    let scheduled = interrupted_by(&stores, &db.url, &format!("{LOSE_ONE}{END_SESSIONS}")).await;
    assert_eq!(scheduled.unwrap().sagas.len(), 2);
    assert_eq!(value(&db.url, IN_PROGRESS).await, "2", "only the one that has its job");
    let again = create_jobs(&stores, 2, 10).await.sagas;
    assert_eq!(
        again.iter().map(|saga| (saga.saga_id.0, saga.job_id.is_some())).collect::<Vec<_>>(),
        [(1, true)]
    );
    assert_eq!(value(&db.url, IN_PROGRESS).await, "1,2");
}

fn signal(name: &str, process: &str) {
    assert!(Command::new("kill").args([name, process]).status().unwrap().success());
}

/// A real one. Nobody writes the log to disk while the server's own process for that is held; so a crash forgets the jobs,
/// which the pass was told are there.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_crashes_between_the_two_transactions_strands_nothing() {
    let server = new_cluster().await;
    let url = database_in(&server, "crashing", "").await;
    migrate(options(&url)).await.unwrap();
    backlogs(&url, 1, 1).await;
    let stores = connect(options(&url)).await.unwrap().stores();
    stores.orchestrator.waiting(None, 1).await.unwrap();

    let log_writer = value(&url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").await;
    signal("-STOP", &log_writer);
    let between = {
        let url = url.clone();
        move || {
            let url = url.clone();
            async move {
                assert_eq!(value(&url, "SELECT count(*) FROM webhook_delivery_jobs").await, "2");
                // One process that is killed is a crash of the whole server, which then recovers by itself.
                let killed = superuser(&url).await;
                signal(
                    "-KILL",
                    &killed
                        .query_one("SELECT pg_backend_pid()::text", &[])
                        .await
                        .unwrap()
                        .get::<_, String>(0),
                );
                let began = Instant::now();
                while !killed.is_closed()
                    || tokio_postgres::connect(&url, tokio_postgres::NoTls).await.is_err()
                {
                    assert!(began.elapsed() < Duration::from_secs(60), "the server does not recover");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    };
    interrupted(&stores, between).await.unwrap();
    let lost = value(&url, "SELECT count(*) FROM webhook_delivery_jobs").await;
    assert_eq!(
        (&*lost, &*value(&url, IN_PROGRESS).await),
        ("0", ""),
        "no job, and nothing that waits for one"
    );
    let again = create_jobs(&stores, 2, 10).await.sagas;
    assert_eq!(again.iter().filter(|saga| saga.job_id.is_some()).count(), 2);
    assert_eq!(value(&url, IN_PROGRESS).await, "1,2");
}

/// A connection that breaks between the two transactions: the move is made by another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_between_the_two_transactions_holds_nobody_up() {
    let db = fresh().await;
    backlogs(&db.url, 1, 1).await;
    let stores = db.stores();
    let sagas = interrupted_by(&stores, &db.url, END_SESSIONS).await.unwrap().sagas;
    assert_eq!(sagas.iter().filter(|saga| saga.job_id.is_some()).count(), 2);
    assert_eq!(value(&db.url, IN_PROGRESS).await, "1,2");
}

/// A process that dies between the two transactions: the next pass, of whichever process, makes the move. That one began
/// long ago, so the short look of a process that knows newer ones does not find it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_left_between_the_two_transactions_is_moved_by_the_next_pass() {
    let db = fresh().await;
    backlogs(&db.url, 1, 0).await;
    let old = "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, max_retry_limit, next_attempt_at)
               VALUES (1, 1, 7, 5, now() - interval '1 hour')";
    let (stores, other) = (db.stores(), connect(options(&db.url)).await.unwrap().stores());
    assert_eq!(create_jobs(&stores, 1, 10).await.sagas.len(), 1);
    superuser(&db.url).await.batch_execute(old).await.unwrap();
    let allotted = [Allotted { subscription_id: SubscriptionId(1), jobs: 10 }];
    let left = other.orchestrator.create_jobs(&allotted, &|| Move::Never).await.unwrap().sagas;
    assert_eq!(left.len(), 1);
    assert_eq!(value(&db.url, IN_PROGRESS).await, "1");
    for stores in [stores, other] {
        let found = create_jobs(&stores, 1, 10).await.sagas;
        let moved = value(&db.url, IN_PROGRESS).await;
        assert!(moved == "1,2", "{moved}");
        assert!(found.iter().all(|saga| saga.job_id.is_none()), "{found:?}");
    }
}

/// A pass over these subscriptions that leaves its moves for later. Returns the sagas that it found.
async fn create_and_move_later(stores: &Stores, subscriptions: &[i64]) -> Vec<i64> {
    let allotted: Vec<_> =
        subscriptions.iter().map(|id| Allotted { subscription_id: SubscriptionId(*id), jobs: 10 }).collect();
    let scheduled = stores.orchestrator.create_jobs(&allotted, &|| Move::Later).await.unwrap();
    scheduled.sagas.iter().map(|saga| saga.saga_id.0).collect()
}

const STATUSES: &str = "SELECT string_agg(status::text, ',' ORDER BY id) FROM webhook_delivery_sagas";
const JOBS: &str = "SELECT count(*) FROM webhook_delivery_jobs";

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_left_for_later_is_made_by_the_result_or_with_others() {
    let db = fresh().await;
    backlogs(&db.url, 3, 0).await;
    let stores = db.stores();
    assert_eq!(stores.orchestrator.until_move(), None);
    assert_eq!(create_and_move_later(&stores, &[1]).await, [1]);
    assert_eq!(create_and_move_later(&stores, &[1, 2, 3]).await, [2, 3], "what is to be moved is left out");
    assert_eq!(value(&db.url, STATUSES).await, "Pending,Pending,Pending");
    let wait = stores.orchestrator.until_move().unwrap();

    report(&stores, &[1]).await;
    let applied = stores.orchestrator.apply(10, &decide()).await.unwrap().results;
    assert!(applied[0].changed, "{applied:?}");
    assert_eq!(value(&db.url, STATUSES).await, "Completed,Pending,Pending");

    tokio::time::sleep(wait * 2).await;
    assert_eq!(stores.orchestrator.until_move(), Some(Duration::ZERO));
    stores.orchestrator.move_rest().await.unwrap();
    assert_eq!(value(&db.url, STATUSES).await, "Completed,InProgress,InProgress");
    assert_eq!(stores.orchestrator.until_move(), None);
    assert_eq!(value(&db.url, JOBS).await, "3");
}

/// Every other process, and this one after a restart, finds it due: no second job comes of it, and the move is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_left_for_later_is_made_by_any_other_process_that_finds_it() {
    let db = fresh().await;
    backlogs(&db.url, 1, 0).await;
    let (stores, other) = (db.stores(), connect(options(&db.url)).await.unwrap().stores());
    assert_eq!(create_and_move_later(&stores, &[1]).await, [1]);
    assert_eq!(create_and_move_later(&other, &[1]).await, [1]);
    assert_eq!(value(&db.url, STATUSES).await, "InProgress");
    assert_eq!(other.orchestrator.until_move(), None, "its job was there, so its move did not wait");
    stores.orchestrator.move_rest().await.unwrap();
    assert_eq!((&*value(&db.url, STATUSES).await, &*value(&db.url, JOBS).await), ("InProgress", "1"));
}

/// A crash of the database has forgotten the job before the move was made.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_left_for_later_looks_for_its_job() {
    let db = fresh().await;
    backlogs(&db.url, 2, 0).await;
    let stores = db.stores();
    assert_eq!(create_and_move_later(&stores, &[1, 2]).await, [1, 2]);
    superuser(&db.url).await.batch_execute(LOSE_ONE).await.unwrap();
    stores.orchestrator.move_rest().await.unwrap();
    assert_eq!(value(&db.url, STATUSES).await, "Pending,InProgress");
    assert_eq!(create_and_move_later(&stores, &[1, 2]).await, [1], "it is scheduled again");
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_of_many_are_not_left_for_later() {
    let db = fresh().await;
    let big = backlogs(&db.url, 0, 100).await;
    let allotted = [Allotted { subscription_id: big, jobs: 100 }];
    let stores = db.stores();
    stores.orchestrator.create_jobs(&allotted, &|| Move::Later).await.unwrap();
    assert_eq!(
        value(&db.url, "SELECT count(*) FROM webhook_delivery_sagas WHERE status = 'InProgress'").await,
        "100"
    );
    assert_eq!(stores.orchestrator.until_move(), None);
}

/// A saga that has an active job of another attempt, which no component makes: moved, it would be stuck.
#[tokio::test(flavor = "multi_thread")]
async fn a_saga_whose_active_job_is_of_another_attempt_is_not_moved() {
    let db = fresh().await;
    backlogs(&db.url, 1, 1).await;
    let other = "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until)
                 SELECT id, subscription_id, event_id, 1, next_attempt_at - interval '1 hour', now()
                 FROM webhook_delivery_sagas WHERE id = 1";
    superuser(&db.url).await.batch_execute(other).await.unwrap();
    let mut scheduled = create_jobs(&db.stores(), 2, 10).await.sagas;
    scheduled.sort_unstable_by_key(|saga| saga.saga_id);
    assert_eq!(scheduled.iter().map(|saga| saga.job_id.is_some()).collect::<Vec<_>>(), [false, true]);
    assert_eq!(value(&db.url, IN_PROGRESS).await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_subscription_gets_what_it_is_allotted_in_one_pass() {
    let db = fresh().await;
    let big = backlogs(&db.url, 100, 3000).await;
    let scheduled = create_jobs(&db.stores(), 101, 70).await;
    let of_big = scheduled.sagas.iter().filter(|saga| saga.subscription_id == big).count();
    assert_eq!((scheduled.sagas.len(), of_big), (170, 70));
    assert!(scheduled.sagas.iter().all(|saga| saga.job_id.is_some()));
}

/// A rate limit's buckets, one for the admission and one for the start, as their holder leaves them: locked and written.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_process_with_a_rate_limit_stops_no_other_subscription() {
    const SOON: Duration = Duration::from_secs(3);
    let db = fresh().await;
    let stores = db.stores();
    superuser(&db.url)
        .await
        .batch_execute(
            "INSERT INTO subscriptions (event_type, callback_url, verified_url, rate_limit)
                 SELECT 't', url, url, rate FROM (VALUES ('https://a/', 10), ('https://b/', 10), ('https://c/', NULL))
                 AS s (url, rate) ORDER BY url;
             INSERT INTO events (event_type, payload, correlation_id) VALUES ('t', '1', 'c');
             INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, max_retry_limit)
                 SELECT 1, id, generation, 5 FROM subscriptions CROSS JOIN generate_series(0, 1) AS g (generation)",
        )
        .await
        .unwrap();
    let [held, limited, unlimited] = [1, 2, 3].map(SubscriptionId);
    let allotted = [held, limited, unlimited].map(|id| Allotted { subscription_id: id, jobs: 1 });
    let admit = || stores.orchestrator.create_jobs(&allotted, &|| Move::Now);
    assert_eq!(admit().await.unwrap().sagas.len(), 3);
    let starting =
        [held, limited].map(|id| Starting { subscription_id: id, limit: RateLimit::per_second(10), jobs: 1 });
    let start = |held| stores.worker.start_limited(&starting, Lead::NONE, held);
    assert!(start(HeldBuckets::WaitFor).await.unwrap().reserved.iter().all(Option::is_some));

    let frozen = superuser(&db.url).await;
    frozen
        .batch_execute(
            "BEGIN; SELECT 1 FROM rate_limits WHERE subscription_id = 1 FOR UPDATE;
             UPDATE rate_limits SET full_at = full_at + interval '1 us' WHERE subscription_id = 1",
        )
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let pass = tokio::time::timeout(SOON, admit()).await.expect("nobody waits for the lock").unwrap();
    let admitted: Vec<_> = pass.sagas.iter().map(|saga| saga.subscription_id).collect();
    assert!(admitted.len() == 2 && !admitted.contains(&held), "{admitted:?}");
    assert!(matches!(pass.limited[..], [one] if one.subscription_id == held), "{:?}", pass.limited);
    let started = tokio::time::timeout(SOON, start(HeldBuckets::PassOver)).await;
    let starts = started.expect("nobody waits for the lock").unwrap().reserved;
    assert!(matches!(starts[..], [None, Some(one)] if one.jobs == 1), "{starts:?}");

    frozen.batch_execute("COMMIT").await.unwrap();
    assert_eq!(admit().await.unwrap().sagas.len(), 1);
    let starts = start(HeldBuckets::PassOver).await.unwrap().reserved;
    assert!(matches!(starts[..], [Some(one), Some(_)] if one.jobs == 1), "{starts:?}");
}
