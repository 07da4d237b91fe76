//! The scheduler's shares: what only this back end's statement does in two steps.

use crate::adapter::{fresh, superuser};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_saga::{SagaId, SubscriptionId};
use hooksaga_store::{Admission, Scheduled, StoreError, Stores};
use std::collections::{HashMap, HashSet};

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

async fn schedule(stores: &Stores, default_room: u32, limit: u32) -> Scheduled {
    let admission = Admission { room: HashMap::new(), default_room, limit, only: None };
    stores.orchestrator.schedule(&admission).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_backlog_fills_what_many_small_ones_leave() {
    let db = fresh().await;
    let big = backlogs(&db.url, 100, 3000).await;
    let scheduled = schedule(&db.stores(), 4096, 1000).await;
    let of_big = scheduled.sagas.iter().filter(|saga| saga.subscription_id == big).count();
    assert_eq!((scheduled.sagas.len(), of_big), (1000, 900));
    let distinct: HashSet<_> = scheduled.sagas.iter().map(|saga| saga.saga_id).collect();
    assert_eq!(distinct.len(), 1000);
    assert!(scheduled.sagas.iter().all(|saga| saga.job_id.is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_room_holds_in_both_steps() {
    let db = fresh().await;
    let big = backlogs(&db.url, 100, 3000).await;
    let scheduled = schedule(&db.stores(), 70, 1000).await;
    let of_big = scheduled.sagas.iter().filter(|saga| saga.subscription_id == big).count();
    assert_eq!((scheduled.sagas.len(), of_big), (170, 70));
}

#[tokio::test(flavor = "multi_thread")]
async fn small_backlogs_come_before_the_rest_of_a_large_one() {
    let db = fresh().await;
    let big = backlogs(&db.url, 100, 3000).await;
    let scheduled = schedule(&db.stores(), 4096, 101).await;
    let of_big = scheduled.sagas.iter().filter(|saga| saga.subscription_id == big).count();
    assert_eq!((scheduled.sagas.len(), of_big), (101, 1));
}

/// What a crash of the database leaves when it has lost the jobs of a pass that was answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_saga_whose_job_is_lost_is_not_moved_but_scheduled_again() {
    let db = fresh().await;
    backlogs(&db.url, 1, 1).await;
    let stores = db.stores();
    let scheduled = schedule(&stores, 10, 10).await.sagas;
    assert_eq!(scheduled.len(), 2);
    let lose = format!(
        "SET session_replication_role = replica; DELETE FROM webhook_delivery_jobs WHERE saga_id = {}",
        scheduled[0].saga_id
    );
    let client = superuser(&db.url).await;
    client.batch_execute(&lose).await.unwrap();
    // A crash ends every session.
    let end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    client.batch_execute(end).await.unwrap();
    let keys: Vec<_> = scheduled.iter().map(|saga| (saga.saga_id, saga.attempt_at)).collect();
    // The first try may be the one that notices.
    let moved = match stores.orchestrator.mark_in_progress(&keys).await {
        Err(StoreError::Unavailable(_)) => stores.orchestrator.mark_in_progress(&keys).await,
        moved => moved,
    };
    assert_eq!(moved.unwrap(), 1);
    let again = schedule(&stores, 10, 10).await.sagas;
    assert_eq!(again.len(), 1);
    assert!(again[0].saga_id == scheduled[0].saga_id && again[0].job_id.is_some(), "{again:?}");
}

/// Only what the pass before was told of needs no look.
#[tokio::test(flavor = "multi_thread")]
async fn a_saga_that_the_pass_did_not_give_a_job_is_not_moved_with_the_others() {
    let db = fresh().await;
    backlogs(&db.url, 1, 1).await;
    let stores = db.stores();
    let scheduled = schedule(&stores, 10, 1).await.sagas;
    assert_eq!(scheduled.len(), 1);
    let (given, at) = (scheduled[0].saga_id, scheduled[0].attempt_at);
    // Both were made at the same moment, so only the job tells them apart.
    let other = SagaId(if given == SagaId(1) { 2 } else { 1 });
    assert_eq!(stores.orchestrator.mark_in_progress(&[(given, at), (other, at)]).await.unwrap(), 1);
}

/// Nor is one that has an active job of another attempt, which no component makes: it would be stuck.
#[tokio::test(flavor = "multi_thread")]
async fn a_saga_whose_active_job_is_of_another_attempt_is_not_moved() {
    let db = fresh().await;
    backlogs(&db.url, 1, 0).await;
    let other = "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until)
                 SELECT id, subscription_id, event_id, 1, next_attempt_at - interval '1 hour', now()
                 FROM webhook_delivery_sagas";
    superuser(&db.url).await.batch_execute(other).await.unwrap();
    let stores = db.stores();
    let scheduled = schedule(&stores, 10, 10).await.sagas;
    assert_eq!(scheduled.iter().map(|saga| saga.job_id).collect::<Vec<_>>(), [None]);
    let keys = [(scheduled[0].saga_id, scheduled[0].attempt_at)];
    assert_eq!(stores.orchestrator.mark_in_progress(&keys).await.unwrap(), 0);
}
