//! A server that never responds: connections that are open and dead. No call waits forever, and the next ones go to
//! new connections.

use crate::{
    adapter::{failure, fresh, options},
    connecting::event,
};
use hooksaga_mysql::connect;
use hooksaga_store::{Stage, StoreError, TenantScope};
use hooksaga_testkit::proxy::Proxy;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_fall_silent_are_left_for_new_ones() {
    let db = fresh().await;
    let (proxy, url) = Proxy::for_url(&db.plain_url).await;
    let stores = connect(options(&url)).await.unwrap().stores();
    let mut listener = stores.wakeups.listen().await.unwrap().unwrap();
    // Several idle connections, all of which lead nowhere from now on.
    let ingest = Arc::clone(&stores.ingest);
    let append = || async { ingest.append(&[event("1", None)]).await };
    for result in [tokio::join!(append(), append()), tokio::join!(append(), append())] {
        result.0.unwrap();
        result.1.unwrap();
    }
    // A connection is back in its pool a moment after its call has ended.
    tokio::time::sleep(Duration::from_millis(500)).await;
    proxy.lose_all();

    let began = Instant::now();
    let (appended, heard) = tokio::join!(append(), listener.next());
    let error = failure(appended);
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("did not respond"), "{error}");
    let error = failure::<Stage>(heard);
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    // No second call pays for the other idle connections.
    let began = Instant::now();
    append().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_unavailable_and_then_used_again() {
    let db = fresh().await;
    let (proxy, url) = Proxy::for_url(&db.plain_url).await;
    let stores = connect(options(&url)).await.unwrap().stores();
    stores.reader.stats(&TenantScope::All).await.unwrap();
    proxy.fall_silent();

    let began = Instant::now();
    let silent = tokio::join!(stores.reader.ready(), stores.worker.leave(1), connect(options(&url)));
    for error in [failure(silent.0), failure(silent.1), failure(silent.2)] {
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(error.to_string().contains("did not respond"), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    proxy.speak_again();
    stores.reader.ready().await.unwrap();
    stores.worker.leave(1).await.unwrap();
}
