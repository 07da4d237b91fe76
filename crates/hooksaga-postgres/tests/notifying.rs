//! Signals from one process to another.

use crate::adapter::{failure, fresh, options, superuser};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_postgres::connect;
use hooksaga_store::{Stage, StoreError, WakeListener};
use hooksaga_testkit::proxy::Proxy;
use std::time::{Duration, Instant};

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

/// A server that is frozen, or a connection that is dead, says as little as one on which nothing happens. A listener asks after
/// ten quiet seconds, and gives the server five.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_notices_that_nobody_is_there_any_more_and_a_quiet_one_goes_on() {
    let db = fresh().await;
    let (quiet, lost, silent) =
        (listening(&db.url).await, listening(&db.url).await, listening(&db.url).await);
    lost.0.lose_all();
    silent.0.fall_silent();
    let ends = async |mut listener: Box<dyn WakeListener>| {
        let began = Instant::now();
        let ended = tokio::time::timeout(Duration::from_secs(30), listener.next()).await;
        let error = failure(ended.expect("a listener does not wait for ever"));
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(began.elapsed() > Duration::from_secs(10), "{:?}", began.elapsed());
    };
    let goes_on = async |mut listener: Box<dyn WakeListener>| {
        let wakes = async {
            tokio::time::sleep(Duration::from_secs(12)).await;
            db.stores().wakeups.notify(&[Stage::Apply]).await.unwrap();
        };
        let (heard, ()) = tokio::join!(listener.next(), wakes);
        assert_eq!(heard.unwrap(), Stage::Apply);
    };
    tokio::join!(ends(lost.1), ends(silent.1), goes_on(quiet.1));
    // What was lost is lost; a new listener of the same process hears again.
    let mut again =
        connect(options(&lost.2)).await.unwrap().stores().wakeups.listen().await.unwrap().unwrap();
    db.stores().wakeups.notify(&[Stage::Worker]).await.unwrap();
    assert_eq!(again.next().await.unwrap(), Stage::Worker);
}

/// A listener through a proxy of its own: the proxy, the listener, and the URL through the proxy.
async fn listening(url: &str) -> (Proxy, Box<dyn WakeListener>, String) {
    let (proxy, url) = Proxy::for_url(url).await;
    let listener = connect(options(&url)).await.unwrap().stores().wakeups.listen().await.unwrap().unwrap();
    (proxy, listener, url)
}
