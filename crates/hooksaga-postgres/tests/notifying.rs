//! Signals from one process to another.

use crate::adapter::{fresh, superuser};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_store::{Stage, StoreError};

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_reaches_the_other_process() {
    let db = fresh().await;
    let mut listener = db.second_instance().await.wakeups.listen().await.unwrap().unwrap();
    let wakeups = db.stores().wakeups;
    wakeups.notify(&[]).await.unwrap();
    wakeups.notify(&[Stage::Router, Stage::DeadLetters]).await.unwrap();
    assert_eq!(listener.next().await.unwrap(), Stage::Router);
    assert_eq!(listener.next().await.unwrap(), Stage::DeadLetters);
    wakeups.notify(&[Stage::Apply]).await.unwrap();
    assert_eq!(listener.next().await.unwrap(), Stage::Apply);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_newer_version_says_is_passed_over() {
    let db = fresh().await;
    let mut listener = db.stores().wakeups.listen().await.unwrap().unwrap();
    superuser(&db.url).await.batch_execute("NOTIFY hooksaga_wake, 'telepathy,worker'").await.unwrap();
    assert_eq!(listener.next().await.unwrap(), Stage::Worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_whose_connection_ends_says_so() {
    let db = fresh().await;
    let mut listener = db.stores().wakeups.listen().await.unwrap().unwrap();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    superuser(&db.url).await.batch_execute(end).await.unwrap();
    let error = listener.next().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}
