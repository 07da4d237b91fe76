//! The hot statements' plans on filled tables: each by the index that is meant for it.

use crate::adapter::{fresh, superuser};
use hooksaga_conformance::{HotStatement, TestDatabase as _, asked};
use hooksaga_postgres::test_support::{explain_deliveries, explain_events, explain_letters};
use hooksaga_saga::{SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{DeadLetterFilter, DeliveryFilter, EventFilter, PageRequest, Role, TenantScope};

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
INSERT INTO pending_dead_letters SELECT n FROM generate_series(1, {queued}) n;
INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload)
    SELECT id, event_id, subscription_id, 'TIMEOUT', '1' FROM webhook_delivery_sagas WHERE id % 3 = 0;
INSERT INTO letter_heads
    SELECT d.id, d.saga_id, d.subscription_id, e.tenant, e.event_type, d.final_error_code, d.created_at, d.created_at, false
    FROM dead_letters d JOIN events e ON e.id = d.event_id;"
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
    (
        HotStatement::Redrive,
        &[
            "idx_event_created",
            "idx_catch_up_next",
            "dead_letters_pkey",
            "idx_dead_letter_subscription",
            "idx_head_tenant",
        ],
    ),
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
                // Many rows and no statistics yet: a tenant's letters are found by its other index and sorted, until the
                // first ANALYZE.
                if (*index, number) == ("idx_head_tenant", 3) {
                    assert!(plan.contains("idx_head_dead"), "{plan}");
                    continue;
                }
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

/// A tenant with a fifth of the events, the oldest ones, letters of a tenth of the deliveries, and the coarse index.
const LETTERS: &str = "
SET session_replication_role = replica;
UPDATE events SET tenant = 'long.ago' WHERE id <= 8000;
TRUNCATE dead_letters, letter_heads;
INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload)
    SELECT id, event_id, subscription_id, 'TIMEOUT', '1' FROM webhook_delivery_sagas WHERE id % 10 = 0;
INSERT INTO letter_heads
    SELECT d.id, d.saga_id, d.subscription_id, CASE WHEN e.tenant = 'default' THEN 'tenant' || d.id % 9 ELSE e.tenant END,
           e.event_type, d.final_error_code, d.created_at, s.created_at, d.id % 1000 = 0
    FROM dead_letters d JOIN events e ON e.id = d.event_id JOIN webhook_delivery_sagas s ON s.id = d.saga_id;
INSERT INTO list_blocks SELECT DISTINCT 1, subscription_id::text, id / 256 FROM webhook_delivery_sagas;
INSERT INTO list_blocks SELECT DISTINCT 2, 'tenant' || id % 9, id / 256 FROM webhook_delivery_sagas;
INSERT INTO list_blocks
    SELECT DISTINCT 3, e.event_type, s.id / 256 FROM webhook_delivery_sagas s JOIN events e ON e.id = s.event_id;
INSERT INTO list_blocks
    SELECT DISTINCT 5, 'tenant' || s.id % 9 || '/' || e.event_type, s.id / 256
    FROM webhook_delivery_sagas s JOIN events e ON e.id = s.event_id;
INSERT INTO list_block_times
    SELECT 1, id / 256, min(created_at), max(created_at) FROM webhook_delivery_sagas GROUP BY 2;";

/// No index: its page would be found by reading all letters, blocks or deliveries. (The other back ends name the index in
/// the statement, which fails without it.)
#[tokio::test(flavor = "multi_thread")]
async fn every_list_goes_by_its_index() {
    let db = fresh().await;
    let owner = superuser(&db.url).await;
    owner.batch_execute(&(fill(40_000, 500, 3000) + LETTERS)).await.unwrap();
    // Not within a transaction, as several statements at once are.
    owner.batch_execute("VACUUM ANALYZE").await.unwrap();
    let client = db.as_role(Role::ApiReader).await.unwrap();
    let one = |tenant: &str| TenantScope::One(tenant.parse().unwrap());
    let (all, one, old) = (TenantScope::All, one("tenant3"), one("long.ago"));
    let time = Some(Timestamp::from_micros(1));
    let subscription_id = Some(SubscriptionId(7));
    let dead = || DeliveryFilter { statuses: [SagaStatus::DeadLettered].into(), ..DeliveryFilter::default() };
    let waiting = [SagaStatus::Pending].into();
    for (scope, wanted, index) in [
        (&all, dead(), "Index Only Scan Backward using idx_head_saga"),
        (&all, DeliveryFilter { event_type: asked("none"), ..dead() }, "on letter_heads d"),
        (
            &all,
            DeliveryFilter { created_before: time, ..dead() },
            "Index Only Scan Backward using idx_head_saga",
        ),
        (&one, dead(), "Index Only Scan Backward using idx_head_dead"),
        (
            &one,
            DeliveryFilter { created_before: time, ..dead() },
            "Index Only Scan Backward using idx_head_dead",
        ),
        (&old, dead(), "Index Only Scan Backward using idx_head_dead"),
        (
            &all,
            DeliveryFilter { subscription_id, ..dead() },
            "Index Only Scan Backward using idx_head_dead_subscription",
        ),
        (
            &all,
            DeliveryFilter { statuses: waiting, subscription_id, ..DeliveryFilter::default() },
            "idx_saga_waiting",
        ),
        (
            &one,
            DeliveryFilter { statuses: [SagaStatus::Pending].into(), ..DeliveryFilter::default() },
            "idx_sub_tenant",
        ),
        (
            &one,
            DeliveryFilter { statuses: [SagaStatus::Pending].into(), ..DeliveryFilter::default() },
            "idx_saga_waiting",
        ),
        (&all, DeliveryFilter { subscription_id, ..DeliveryFilter::default() }, "list_blocks_pkey"),
        (&one, DeliveryFilter::default(), "list_blocks_pkey"),
        (&all, DeliveryFilter { event_type: asked("none"), ..DeliveryFilter::default() }, "list_blocks_pkey"),
        (
            &one,
            DeliveryFilter { event_type: asked("type7"), ..DeliveryFilter::default() },
            "list_blocks_pkey",
        ),
        (&all, DeliveryFilter { created_before: time, ..DeliveryFilter::default() }, "list_block_times_pkey"),
        (
            &all,
            DeliveryFilter { external_id: asked("ext7"), ..DeliveryFilter::default() },
            "uniq_event_external_id",
        ),
        (&all, DeliveryFilter { external_id: asked("ext7"), ..dead() }, "uniq_saga_event_subscription"),
    ] {
        let plan = explain_deliveries(&client, scope, &wanted).await.unwrap();
        assert!(plan.contains(index), "{scope:?} {wanted:?} without {index}:\n{plan}");
        let scans =
            plan.contains("Seq Scan on webhook_delivery_sagas") || plan.contains("Seq Scan on letter_heads");
        assert!(!scans, "{scope:?} {wanted:?}:\n{plan}");
    }
    for wanted in [EventFilter::default(), EventFilter { created_after: time, ..EventFilter::default() }] {
        let plan = explain_events(&client, "long.ago", &wanted).await.unwrap();
        assert!(plan.contains("Index Scan Backward using idx_event_tenant"), "{wanted:?}:\n{plan}");
    }
    let none = DeadLetterFilter::default;
    for (scope, wanted, index) in [
        (&all, none(), "letter_heads_pkey"),
        (&one, none(), "Index Only Scan Backward using idx_head_tenant"),
        (&old, none(), "Index Only Scan Backward using idx_head_tenant"),
        (
            &one,
            DeadLetterFilter { requeued: Some(false), ..none() },
            "Index Only Scan Backward using idx_head_tenant",
        ),
        (
            &all,
            DeadLetterFilter { subscription_id, ..none() },
            "Index Only Scan Backward using idx_head_subscription",
        ),
        (
            &all,
            DeadLetterFilter { event_type: asked("none"), ..none() },
            "Index Only Scan Backward using idx_head_type",
        ),
        (
            &all,
            DeadLetterFilter { event_type: asked("type7"), requeued: Some(false), ..none() },
            "Index Only Scan Backward using idx_head_type",
        ),
        (
            &all,
            DeadLetterFilter { requeued: Some(true), ..none() },
            "Index Only Scan Backward using idx_head_requeued",
        ),
    ] {
        let page = PageRequest { limit: 50, before: None };
        let plan = explain_letters(&client, page.of(scope, &wanted)).await.unwrap();
        assert!(plan.contains(index), "{scope:?} {wanted:?} without {index}:\n{plan}");
        assert!(!plan.contains("Seq Scan on dead_letters"), "{scope:?} {wanted:?}:\n{plan}");
    }
}
