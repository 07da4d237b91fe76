//! The hot statements' plans on filled tables: each by the index that is meant for it.

use crate::adapter::{fresh, superuser};
use hooksaga_conformance::{HotStatement, TestDatabase as _};

/// Many finished deliveries, a backlog of one paused and some active subscriptions, a few leased jobs.
fn fill(rows: u32, subscriptions: u32, queued: u32) -> String {
    format!(
        "
SET session_replication_role = replica;
INSERT INTO events (event_type, payload, external_id, correlation_id)
    SELECT 'type' || n % 50, '1', 'ext' || n, 'c' || n FROM generate_series(1, {rows}) n;
INSERT INTO subscriptions (event_type, callback_url, verified_url, active, check_round, check_done)
    SELECT 'type' || n % 50, 'https://h/' || n, 'https://h/' || n, n % 7 <> 0, 1, n % 100 <> 0
    FROM generate_series(1, {subscriptions}) n;
INSERT INTO subscription_topics SELECT tenant, event_type, id FROM subscriptions;
INSERT INTO subscription_secrets (subscription_id, key_id, sealed)
    SELECT n, 'k', '\\x00' FROM generate_series(1, {subscriptions}) n;
INSERT INTO webhook_delivery_sagas (event_id, subscription_id, status, max_retry_limit, next_attempt_at, attempt_count)
    SELECT n, n % {subscriptions} + 1,
           (CASE WHEN n % 20 = 0 THEN 'Pending' WHEN n % 21 = 0 THEN 'InProgress' ELSE 'Completed' END)::saga_status,
           5, now() - n * interval '1 second', 1
    FROM generate_series(1, {rows}) n;
INSERT INTO webhook_delivery_jobs
        (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until, status, lease_token)
    SELECT id, subscription_id, event_id, 1, next_attempt_at, next_attempt_at,
           (CASE WHEN status <> 'InProgress' THEN 'Completed' WHEN id % 2 = 0 THEN 'Pending' ELSE 'Leased' END)::job_status,
           CASE WHEN status = 'InProgress' AND id % 2 = 1 THEN 1 END
    FROM webhook_delivery_sagas WHERE status <> 'Pending';
INSERT INTO unrouted_events (event_id) SELECT n FROM generate_series(1, {queued}) n;
INSERT INTO finished_jobs (job_id, saga_id, attempt_at, duration_ms)
    SELECT id, saga_id, attempt_at, 3 FROM webhook_delivery_jobs WHERE id <= {queued};
INSERT INTO pending_dead_letters SELECT n FROM generate_series(1, {queued}) n;"
    )
}

/// What each step's plans must show.
const WANTED: &[(HotStatement, &[&str])] = &[
    (HotStatement::Append, &["uniq_event_external_id"]),
    (
        HotStatement::Route,
        &[
            "unrouted_events_pkey",
            "events_pkey",
            "subscription_topics_pkey",
            "subscriptions_pkey",
            "Tid Scan on unrouted_events",
        ],
    ),
    (HotStatement::Waiting, &["idx_saga_waiting", "subscriptions_pkey"]),
    (HotStatement::CreateJobs, &["idx_saga_waiting", "subscriptions_pkey", "events_pkey"]),
    (
        HotStatement::Load,
        &["idx_job_pending", "idx_job_leased", "finished_jobs_pkey", "uniq_job_saga_attempt"],
    ),
    (HotStatement::MarkInProgress, &["webhook_delivery_sagas_pkey", "uniq_job_saga_attempt"]),
    (
        HotStatement::Claim,
        &["idx_job_pending", "Tid Scan on webhook_delivery_jobs", "idx_secret_subscription"],
    ),
    (HotStatement::HandBack, &["uniq_job_saga_attempt"]),
    (
        HotStatement::Park,
        &[
            "uniq_job_saga_attempt",
            "idx_job_parked",
            "subscriptions_pkey",
            "Tid Scan on webhook_delivery_jobs",
        ],
    ),
    (HotStatement::Report, &["uniq_job_saga_attempt"]),
    (
        HotStatement::Apply,
        &["finished_jobs_pkey", "Tid Scan on finished_jobs", "webhook_delivery_sagas_pkey", "events_pkey"],
    ),
    (HotStatement::ResetExpired, &["idx_job_leased", "Tid Scan on webhook_delivery_jobs"]),
    (
        HotStatement::Bury,
        &["pending_dead_letters_pkey", "webhook_delivery_sagas_pkey", "Tid Scan on pending_dead_letters"],
    ),
    (HotStatement::Redrive, &["idx_event_created", "idx_catch_up_next"]),
    (
        HotStatement::TakeChecks,
        &["idx_sub_open_check_tenant", "subscriptions_pkey", "idx_secret_subscription"],
    ),
    (HotStatement::Care, &["idx_failures_gone", "idx_failures_since", "idx_sub_unannounced"]),
    (
        HotStatement::IndexLists,
        &["webhook_delivery_sagas_pkey", "events_pkey", "idx_list_block", "list_block_times_pkey"],
    ),
    (
        HotStatement::Remove,
        &[
            "idx_event_created",
            "uniq_saga_event_subscription",
            "idx_dead_letter_event",
            "uniq_job_saga_attempt",
            "webhook_delivery_sagas_pkey",
        ],
    ),
    (HotStatement::Gauges, &["idx_saga_waiting", "idx_job_pending", "idx_job_leased"]),
];

/// Plans that are made while the tables are empty, small or without statistics live on for a while: they must be
/// the same.
#[tokio::test(flavor = "multi_thread")]
async fn every_hot_statement_goes_by_its_index() {
    let fillings = [
        String::new(),
        fill(34, 3, 3) + "ANALYZE;",
        fill(600, 3, 600) + "ANALYZE;",
        fill(40_000, 500, 3000),
        fill(40_000, 500, 3000) + "ANALYZE;",
        fill(40_000, 3, 0) + "ANALYZE;",
    ];
    for (number, filling) in fillings.iter().enumerate() {
        let db = fresh().await;
        superuser(&db.url).await.batch_execute(filling).await.unwrap();
        for (statement, indexes) in WANTED {
            let plan = db.explain(*statement).await.unwrap();
            for index in *indexes {
                assert!(plan.contains(index), "{statement:?} without {index}, filling {number}:\n{plan}");
            }
            // Two batches that are joined in SQL would be compared row by row. Workers are as few as there are processes.
            // That a subscription without headers has none is no comparison either.
            let plan = plan
                .replace("Seq Scan on workers", "")
                .replace("Join Filter: (s.header_names IS NOT NULL)", "");
            let scan = plan.contains("Seq Scan") || plan.contains("Join Filter");
            assert!(!scan, "{statement:?} scans, filling {number}:\n{plan}");
        }
    }
    assert_eq!(WANTED.len(), HotStatement::ALL.len());
}
