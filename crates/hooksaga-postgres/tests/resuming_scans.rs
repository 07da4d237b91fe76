//! Scans that resume where the previous one stopped: only this back end does that.

use crate::adapter::{create_jobs, event, fresh, options, superuser, value};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_postgres::connect;
use hooksaga_saga::{JobId, Outcome, RetryPolicy, SubscriptionId, apply_result};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, Decide, JobReport, LeaseRef, LeaseToken, RouteLimits, Stores,
};
use std::{sync::Arc, time::Duration};

/// A subscription, and deliveries whose jobs wait.
async fn jobs(url: &str, count: u32) {
    let sql = format!(
        "INSERT INTO subscriptions (event_type, callback_url, verified_url) VALUES ('t', 'https://h', 'https://h');
         INSERT INTO subscription_topics (tenant, topic, subscription_id) VALUES ('default', 't', 1);
         INSERT INTO events (event_type, payload, correlation_id) VALUES ('t', '1', 'c');
         INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, max_retry_limit)
             SELECT 1, 1, n, 5 FROM generate_series(1, {count}) n;
         INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until)
             SELECT id, subscription_id, event_id, 1, next_attempt_at, now() FROM webhook_delivery_sagas ORDER BY id;
         UPDATE webhook_delivery_sagas SET status = 'InProgress';"
    );
    superuser(url).await.batch_execute(&sql).await.unwrap();
}

const LIMITS: RouteLimits = RouteLimits { events: 10, sagas: 100 };

async fn claim_but(stores: &Stores, jobs: u32, skip: Vec<SubscriptionId>) -> ClaimedBatch {
    let limits = ClaimLimits { jobs, payload_bytes: u64::MAX, skip };
    stores.worker.claim(&limits, LeaseToken(1).lasting(Duration::from_secs(60))).await.unwrap()
}

fn ids(batch: &ClaimedBatch) -> Vec<i64> {
    batch.jobs.iter().map(|job| job.job_id.0).collect()
}

async fn claim(stores: &Stores, jobs: u32) -> Vec<i64> {
    ids(&claim_but(stores, jobs, Vec::new()).await)
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
    assert_eq!(claim(&stores, 10).await, [1], "the first scan is a whole one");
    client.batch_execute(&format!("{}; {}", set(2, "1 hour"), set(3, "0 s"))).await.unwrap();
    assert_eq!(claim(&stores, 10).await, [3]);
    assert_eq!(claim(&stores, 10).await, [2], "nothing is new, so everything is scanned");
    assert_eq!(claim(&stores, 10).await, Vec::<i64>::new());
    client.batch_execute(&format!("{}; {}", set(4, "1 hour"), set(5, "0 s"))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1050)).await;
    assert_eq!(claim(&stores, 10).await, [4, 5]);
}

/// Jobs that a claim had to pass over are older than those that it took; the next claim begins before them all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_passed_over_is_found_as_soon_as_it_may_be_claimed() {
    let db = fresh().await;
    jobs(&db.url, 4).await;
    let client = superuser(&db.url).await;
    let spread = "SET session_replication_role = replica;
                  UPDATE webhook_delivery_jobs SET lease_until = now() - (5 - id) * interval '1 minute',
                      subscription_id = CASE WHEN id = 2 THEN 2 ELSE 1 END";
    client.batch_execute(spread).await.unwrap();
    let stores = db.stores();
    let skip = || vec![SubscriptionId(2)];
    assert_eq!(ids(&claim_but(&stores, 2, skip()).await), [1, 3]);
    assert_eq!(
        ids(&claim_but(&stores, 1, Vec::new()).await),
        [2],
        "the oldest, a minute before the last one taken"
    );
    assert_eq!(ids(&claim_but(&stores, 9, skip()).await), [4]);
    assert_eq!(ids(&claim_but(&stores, 9, skip()).await), Vec::<i64>::new());
}

/// The jobs of one event share its payload, and each counts with all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_ends_before_the_payload_that_would_exceed_its_bytes() {
    let db = fresh().await;
    let sql = "INSERT INTO subscriptions (event_type, callback_url, verified_url)
                   SELECT 't', 'https://h/' || n, 'https://h/' || n FROM generate_series(1, 2) n;
               INSERT INTO events (event_type, payload, correlation_id)
                   SELECT 't', repeat('7', 100000 * n), 'c' FROM generate_series(1, 3) n;
               INSERT INTO webhook_delivery_sagas (event_id, subscription_id, max_retry_limit)
                   SELECT e, s, 5 FROM generate_series(1, 3) e, generate_series(1, 2) s ORDER BY e, s;
               INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until)
                   SELECT id, subscription_id, event_id, 1, next_attempt_at, now() FROM webhook_delivery_sagas ORDER BY id";
    superuser(&db.url).await.batch_execute(sql).await.unwrap();
    let stores = db.stores();
    let claim = async |payload_bytes| {
        let limits = ClaimLimits { jobs: 10, payload_bytes, skip: Vec::new() };
        let batch =
            stores.worker.claim(&limits, LeaseToken(1).lasting(Duration::from_secs(60))).await.unwrap();
        let lengths: Vec<usize> = batch.jobs.iter().map(|job| job.held.payload.len() / 100_000).collect();
        (lengths, batch.cut_short)
    };
    assert_eq!(claim(599_999).await, (vec![1, 1, 2], true));
    assert_eq!(claim(1).await, (vec![2], true), "the first whatever its size");
    assert_eq!(claim(600_000).await, (vec![3, 3], false));
    assert_eq!(claim(600_000).await, (vec![], false));
}

pub(crate) fn decide() -> Decide {
    Arc::new(|job, now| apply_result(&job.saga, &job.result, &RetryPolicy::default(), now))
}

fn delivered(lease: LeaseRef) -> JobReport {
    JobReport {
        lease,
        outcome: Outcome::Delivered,
        started_at: None,
        callback_url: None,
        response_status: Some(200),
        retry_at: None,
        duration: Duration::ZERO,
        response_excerpt: None,
    }
}

/// Claims what there is, and reports these of it as delivered.
pub(crate) async fn report(stores: &Stores, jobs: &[i64]) {
    let batch = claim_but(stores, 100, Vec::new()).await;
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
    jobs(&db.url, 0).await;
    let stores = db.stores();
    let event = event(None, "c");
    // Several times: a commit of somebody else on this server takes ours along.
    for _ in 0..20 {
        let before = position("insert").await;
        stores.ingest.append(std::slice::from_ref(&event)).await.unwrap();
        on_disk(&before, "an event that is accepted").await;

        stores.router.route(LIMITS, 5).await.unwrap();
        assert_eq!(create_jobs(&stores, 1, 10).await.sagas.len(), 1);

        let before = position("insert").await;
        let claimed = claim_but(&stores, 10, Vec::new()).await;
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
    let wanted = ["c1", "c2", "c3"];
    routing.ingest.append(&wanted.map(|id| event(None, id))).await.unwrap();
    assert_eq!(routing.router.route(LIMITS, 5).await.unwrap().events.len(), 3);

    let scheduling = connect(options(&db.url)).await.unwrap().stores();
    // Some are read in the first pass, the others in the second.
    for (jobs, wanted) in [(2, &wanted[..2]), (10, &wanted[2..])] {
        let mut sagas = create_jobs(&scheduling, 1, jobs).await.sagas;
        sagas.sort_unstable_by_key(|saga| saga.saga_id);
        assert_eq!(sagas.iter().map(|saga| &*saga.trace.correlation_id).collect::<Vec<_>>(), wanted);
    }

    let claimed = claim_but(&routing, 10, Vec::new()).await.jobs;
    let reports: Vec<JobReport> = claimed.iter().map(|job| delivered(job.as_ref())).collect();
    assert_eq!(routing.worker.report(&reports).await.unwrap().len(), 3);
    // One that knows nothing of them, and one that knows them all.
    for (limit, applying) in [(2, connect(options(&db.url)).await.unwrap().stores()), (10, scheduling)] {
        let mut results = applying.orchestrator.apply(limit, &decide()).await.unwrap().results;
        results.sort_unstable_by_key(|result| result.saga_id);
        let read: Vec<_> = results.iter().map(|result| &*result.trace.correlation_id).collect();
        assert!(results.iter().all(|result| result.trace.tenant == "default"), "{results:?}");
        assert_eq!(read, if limit == 2 { &wanted[..2] } else { &wanted[2..] });
    }
}

/// Correlation ids serve the log alone: where they cannot be read, jobs are created and results are applied all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_for_the_log_fails_nothing() {
    let db = fresh().await;
    jobs(&db.url, 0).await;
    let routing = db.stores();
    routing.ingest.append(&[event(None, "c1")]).await.unwrap();
    routing.router.route(LIMITS, 5).await.unwrap();
    let client = superuser(&db.url).await;
    client.batch_execute("REVOKE SELECT (correlation_id) ON events FROM saga_orchestrator").await.unwrap();
    // One that has not seen the event.
    let other = connect(options(&db.url)).await.unwrap().stores();
    let sagas = create_jobs(&other, 1, 10).await.sagas;
    assert_eq!(sagas.iter().map(|saga| &*saga.trace.correlation_id).collect::<Vec<_>>(), [""]);
    assert_eq!(value(&db.url, "SELECT status FROM webhook_delivery_sagas").await, "InProgress");
    report(&routing, &[1]).await;
    let results = other.orchestrator.apply(10, &decide()).await.unwrap().results;
    assert_eq!(
        results.iter().map(|result| (&*result.trace.correlation_id, result.changed)).collect::<Vec<_>>(),
        [("", true)]
    );
    assert_eq!(value(&db.url, "SELECT status FROM webhook_delivery_sagas").await, "Completed");
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
    let claimed = claim_but(&db.stores(), 100, Vec::new()).await;
    assert_eq!(claimed.jobs.len(), 6, "those of the event that is gone cannot be sent");
    for job in claimed.jobs {
        let (id, held) = (job.held.event_id.0, job.held);
        assert_eq!(
            (&*held.payload, held.event_type, held.correlation_id),
            (&*id.to_string(), format!("t{id}"), format!("c{id}"))
        );
    }
}
