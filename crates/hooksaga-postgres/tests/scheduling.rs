//! The scheduler's shares: what only this back end's statement does in two steps.

use crate::adapter::{fresh, superuser};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{Admission, Scheduled, Stores, conformance::TestDatabase as _};
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
