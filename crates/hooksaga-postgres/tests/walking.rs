//! Walks that begin where the last one came to: what only this back end does.

use crate::adapter::{fresh, options, superuser, value};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_postgres::connect;
use hooksaga_saga::{JobId, Outcome, RetryPolicy, apply_result};
use hooksaga_store::{Admission, Decide, JobReport, LeaseRef, LeaseToken, NewEvent, Stores};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// A subscription, and deliveries whose jobs wait.
async fn jobs(url: &str, count: u32) {
    let sql = format!(
        "INSERT INTO subscriptions (event_type, callback_url, verified_url) VALUES ('t', 'https://h', 'https://h');
         INSERT INTO events (event_type, payload, correlation_id) VALUES ('t', '1', 'c');
         INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, max_retry_limit)
             SELECT 1, 1, n, 5 FROM generate_series(1, {count}) n;
         INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until)
             SELECT id, subscription_id, event_id, 1, next_attempt_at, now() FROM webhook_delivery_sagas ORDER BY id;
         UPDATE webhook_delivery_sagas SET status = 'InProgress';"
    );
    superuser(url).await.batch_execute(&sql).await.unwrap();
}

async fn claim(stores: &Stores, limit: u32) -> Vec<i64> {
    let batch = stores.worker.claim(limit, Duration::from_secs(60), LeaseToken(1)).await.unwrap();
    batch.jobs.iter().map(|job| job.job_id.0).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_from_long_ago_is_claimed_after_the_new_ones_or_within_a_second() {
    let db = fresh().await;
    jobs(&db.url, 6).await;
    let set = |job: i64, ago: &str| {
        format!("UPDATE webhook_delivery_jobs SET lease_until = now() - interval '{ago}' WHERE id = {job}")
    };
    let client = superuser(&db.url).await;
    client
        .batch_execute("UPDATE webhook_delivery_jobs SET lease_until = now() + interval '1 hour'")
        .await
        .unwrap();
    let stores = db.stores();
    client.batch_execute(&set(1, "0 s")).await.unwrap();
    assert_eq!(claim(&stores, 10).await, [1], "the first walk is a whole one");
    client.batch_execute(&format!("{}; {}", set(2, "1 hour"), set(3, "0 s"))).await.unwrap();
    assert_eq!(claim(&stores, 10).await, [3]);
    assert_eq!(claim(&stores, 10).await, [2], "nothing is new, so everything is looked at");
    assert_eq!(claim(&stores, 10).await, Vec::<i64>::new());
    client.batch_execute(&format!("{}; {}", set(4, "1 hour"), set(5, "0 s"))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1050)).await;
    assert_eq!(claim(&stores, 10).await, [4, 5]);
}

fn decide() -> Decide {
    Arc::new(|job, now| apply_result(&job.saga, &job.result, &RetryPolicy::default(), now))
}

fn delivered(lease: LeaseRef) -> JobReport {
    JobReport {
        lease,
        outcome: Outcome::Delivered,
        response_status: Some(200),
        duration: Duration::ZERO,
        response_excerpt: None,
    }
}

async fn report(stores: &Stores, jobs: &[i64]) {
    let batch = stores.worker.claim(100, Duration::from_secs(60), LeaseToken(1)).await.unwrap();
    let reports: Vec<JobReport> = batch
        .jobs
        .iter()
        .filter(|job| jobs.contains(&job.job_id.0))
        .map(|job| delivered(job.as_ref()))
        .collect();
    assert_eq!(stores.worker.report(&reports).await.unwrap().len(), jobs.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_queued_twice_counts_once() {
    let db = fresh().await;
    jobs(&db.url, 1).await;
    let stores = db.stores();
    report(&stores, &[1]).await;
    let twice = "INSERT INTO finished_jobs (job_id, saga_id, attempt_at, duration_ms)
                 SELECT job_id, saga_id, attempt_at, duration_ms FROM finished_jobs";
    superuser(&db.url).await.batch_execute(twice).await.unwrap();
    let results = stores.orchestrator.apply(10, &decide()).await.unwrap().results;
    let changed: Vec<_> = results.iter().map(|result| (result.job_id, result.changed)).collect();
    assert_eq!(changed, [(JobId(1), true), (JobId(1), false)]);
    assert_eq!(value(&db.url, "SELECT attempt_count FROM webhook_delivery_sagas").await, "1");
    assert_eq!(value(&db.url, "SELECT sum(delivered) FROM delivery_counts").await, "1");
    assert_eq!(value(&db.url, "SELECT count(*) FROM finished_jobs").await, "0");
}

/// Routing and scheduling do not wait for the disk. Before anything that the outside hears of is done, all that it rests
/// on is there.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_outside_hears_of_is_on_disk() {
    let db = fresh().await;
    let client = superuser(&db.url).await;
    let position = async |which: &str| -> String {
        let sql = format!("SELECT pg_current_wal_{which}_lsn()::text");
        client.query_one(&sql, &[]).await.unwrap().get(0)
    };
    let on_disk = async |before: &str, what: &str| {
        let sql = format!("SELECT pg_current_wal_flush_lsn() > '{before}'::pg_lsn");
        assert!(client.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0), "{what}");
    };
    client
        .batch_execute("INSERT INTO subscriptions (event_type, callback_url, verified_url) VALUES ('t', 'https://h', 'https://h')")
        .await
        .unwrap();
    let stores = db.stores();
    let event = NewEvent {
        event_type: "t".to_owned(),
        payload: "1".into(),
        external_id: None,
        correlation_id: "c".to_owned(),
    };
    // Several times: a commit of somebody else on this server takes ours along.
    for _ in 0..20 {
        let before = position("insert").await;
        stores.ingest.append(std::slice::from_ref(&event)).await.unwrap();
        on_disk(&before, "an event that is accepted").await;

        stores.router.route(10, 5).await.unwrap();
        let admission = Admission { room: HashMap::new(), default_room: 10, limit: 10, only: None };
        let sagas = stores.orchestrator.schedule(&admission).await.unwrap().sagas;
        let keys: Vec<_> = sagas.iter().map(|saga| (saga.saga_id, saga.attempt_at)).collect();
        assert_eq!(stores.orchestrator.mark_in_progress(&keys).await.unwrap(), 1);

        let before = position("insert").await;
        let claimed = stores.worker.claim(10, Duration::from_secs(60), LeaseToken(1)).await.unwrap();
        on_disk(&before, "a request that is about to go out").await;

        let before = position("insert").await;
        stores.worker.report(&[delivered(claimed.jobs[0].as_ref())]).await.unwrap();
        on_disk(&before, "its result").await;

        let before = position("insert").await;
        assert_eq!(stores.orchestrator.apply(10, &decide()).await.unwrap().results.len(), 1);
        on_disk(&before, "what became of the delivery").await;
    }
}

/// Correlation ids are remembered where they were routed; another process reads them.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_routed_nothing_knows_the_correlation_ids() {
    let db = fresh().await;
    jobs(&db.url, 0).await;
    let routing = db.stores();
    let event = |n: u32| NewEvent {
        event_type: "t".to_owned(),
        payload: "1".into(),
        external_id: None,
        correlation_id: format!("c{n}"),
    };
    routing.ingest.append(&[event(1), event(2), event(3)]).await.unwrap();
    assert_eq!(routing.router.route(10, 5).await.unwrap().events.len(), 3);

    let wanted = ["c1", "c2", "c3"];
    let admission = Admission { room: HashMap::new(), default_room: 10, limit: 10, only: None };
    let scheduling = connect(options(&db.url)).await.unwrap().stores();
    // The first pass reads two of them, the second knows those and reads the third.
    let two = Admission { limit: 2, ..admission.clone() };
    for (admission, wanted) in [(&two, &wanted[..2]), (&admission, &wanted[..])] {
        let mut sagas = scheduling.orchestrator.schedule(admission).await.unwrap().sagas;
        sagas.sort_unstable_by_key(|saga| saga.saga_id);
        assert_eq!(sagas.iter().map(|saga| &*saga.correlation_id).collect::<Vec<_>>(), wanted);
    }

    let claimed = routing.worker.claim(10, Duration::from_secs(60), LeaseToken(1)).await.unwrap().jobs;
    let reports: Vec<JobReport> = claimed.iter().map(|job| delivered(job.as_ref())).collect();
    assert_eq!(routing.worker.report(&reports).await.unwrap().len(), 3);
    // One that knows nothing of them, and one that knows them all.
    for (limit, applying) in [(2, connect(options(&db.url)).await.unwrap().stores()), (10, scheduling)] {
        let mut results = applying.orchestrator.apply(limit, &decide()).await.unwrap().results;
        results.sort_unstable_by_key(|result| result.saga_id);
        let read: Vec<_> = results.iter().map(|result| &*result.correlation_id).collect();
        assert_eq!(read, if limit == 2 { &wanted[..2] } else { &wanted[2..] });
    }
}

/// An event comes along with one of its jobs; each job gets its own, in whatever order they are claimed.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_never_paired_with_another_events_payload() {
    let db = fresh().await;
    let sql = "INSERT INTO subscriptions (event_type, callback_url, verified_url)
                   SELECT 't', 'https://h/' || n, 'https://h/' || n FROM generate_series(1, 3) n;
               INSERT INTO events (event_type, payload, correlation_id)
                   SELECT 't' || n, n::text, 'c' || n FROM generate_series(1, 3) n;
               INSERT INTO webhook_delivery_sagas (event_id, subscription_id, max_retry_limit)
                   SELECT e, s, 5 FROM generate_series(1, 3) s, generate_series(1, 3) e;
               INSERT INTO webhook_delivery_jobs
                   (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until)
                   SELECT id, subscription_id, event_id, 1, next_attempt_at, now() FROM webhook_delivery_sagas
                   ORDER BY subscription_id, event_id;
               SET session_replication_role = replica;
               DELETE FROM events WHERE id = 2;";
    superuser(&db.url).await.batch_execute(sql).await.unwrap();
    let claimed = db.stores().worker.claim(100, Duration::from_secs(60), LeaseToken(1)).await.unwrap();
    assert_eq!(claimed.jobs.len(), 6, "those of the event that is gone cannot be sent");
    for job in claimed.jobs {
        let (id, held) = (job.held.event_id.0, job.held);
        assert_eq!(
            (&*held.payload, held.event_type, held.correlation_id),
            (&*id.to_string(), format!("t{id}"), format!("c{id}"))
        );
    }
}
