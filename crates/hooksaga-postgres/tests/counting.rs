//! The counters of a minute, where a batch of results is not written as a whole.

use crate::adapter::{fresh, superuser, value};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_saga::{RetryPolicy, apply_result};
use hooksaga_store::Decide;
use std::sync::Arc;

/// Only this back end can have a result in its queue twice. Saga 4 has ended before.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_batch_did_not_change_is_not_counted() {
    let db = fresh().await;
    let sql = "SET session_replication_role = replica;
        INSERT INTO webhook_delivery_sagas (event_id, subscription_id, status, max_retry_limit, next_attempt_at)
            SELECT 1, n, 'InProgress', CASE n WHEN 3 THEN 1 ELSE 5 END, '2026-01-01' FROM generate_series(1, 3) n;
        INSERT INTO webhook_delivery_sagas (event_id, subscription_id, status, max_retry_limit, next_attempt_at)
            VALUES (1, 4, 'Completed', 5, '2026-01-01');
        INSERT INTO finished_jobs (job_id, saga_id, attempt_at, duration_ms, error_code) VALUES
            (1, 1, '2026-01-01', 7, NULL), (1, 1, '2026-01-01', 7, NULL), (2, 2, '2026-01-01', 30, NULL),
            (3, 3, '2026-01-01', 15, 'TIMEOUT'), (4, 4, '2026-01-01', 1, NULL);";
    superuser(&db.url).await.batch_execute(sql).await.unwrap();
    let policy = RetryPolicy::default();
    let decide: Decide = Arc::new(move |job, now| apply_result(&job.saga, &job.result, &policy, now));
    let results = db.stores().orchestrator.apply(10, &decide).await.unwrap().results;
    let changed: Vec<_> = results.iter().map(|result| (result.saga_id.0, result.changed)).collect();
    assert_eq!(changed, [(1, true), (1, false), (2, true), (3, true), (4, false)]);

    let counts = "SELECT string_agg(concat_ws(' ', subscription_id, delivered, failed, dead_lettered, ms_10, ms_20, \
                  ms_50, slowest_ms), ', ' ORDER BY subscription_id) FROM delivery_counts";
    assert_eq!(value(&db.url, counts).await, "1 1 0 0 1 0 0 7, 2 1 0 0 0 0 1 30, 3 0 1 1 0 1 0 15");
    assert_eq!(value(&db.url, "SELECT string_agg(saga_id::text, ',') FROM pending_dead_letters").await, "3");
    assert_eq!(value(&db.url, "SELECT count(*) FROM finished_jobs").await, "0");
}
