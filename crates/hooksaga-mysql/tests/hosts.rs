//! Several hosts in the URL: if one is down, or accepts connections and never responds, the product uses the next one.

use crate::{
    adapter::{failure, fresh, options},
    connecting::event,
};
use hooksaga_mysql::connect;
use hooksaga_store::{Stage, StoreError};
use hooksaga_testkit::proxy::Proxy;
use std::time::{Duration, Instant};

/// Two ways to the same server, and the URL that names both.
async fn two_ways(url: &str) -> (Proxy, Proxy, String) {
    let (one, first) = Proxy::for_url(url).await;
    let (two, second) = Proxy::for_url(url).await;
    let host = |url: &str| url.rsplit_once('@').unwrap().1.split_once('/').unwrap().0.to_owned();
    let url = first.replace(&host(&first), &format!("{},{}", host(&first), host(&second)));
    (one, two, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_away_is_left_for_the_next_and_found_again() {
    let db = fresh().await;
    let (one, two, url) = two_ways(&db.plain_url).await;
    let stores = connect(options(&url)).await.unwrap().stores();
    stores.ingest.append(&[event("1", None)]).await.unwrap();
    for (dead, other) in [(&one, &two), (&two, &one)] {
        other.accept_again();
        dead.refuse();
        // A call may still find a connection that has just ended; the next one does not.
        if let Err(error) = stores.ingest.append(&[event("1", None)]).await {
            assert!(error.is_transient(), "{error:?}");
        }
        stores.ingest.append(&[event("1", None)]).await.unwrap();
        stores.reader.ready().await.unwrap();
        let mut listener = stores.wakeups.listen().await.unwrap().unwrap();
        stores.wakeups.notify(&[Stage::Router]).await.unwrap();
        assert_eq!(listener.next().await.unwrap(), Stage::Router);
    }
    // One that starts meanwhile finds the other, too.
    connect(options(&url)).await.unwrap();
    one.refuse();
    let error = failure(connect(options(&url)).await);
    assert!(matches!(error, StoreError::Unavailable(_)) && !error.to_string().contains(":pw"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_never_responds_is_left_for_the_next() {
    let db = fresh().await;
    let (one, _two, url) = two_ways(&db.plain_url).await;
    let stores = connect(options(&url)).await.unwrap().stores();
    stores.ingest.append(&[event("1", None)]).await.unwrap();
    one.fall_silent();
    // The connection that is open costs its caller 15 s, as it does with one host; a new one finds out by trying.
    if let Err(error) = stores.ingest.append(&[event("1", None)]).await {
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    }
    let began = Instant::now();
    stores.ingest.append(&[event("1", None)]).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    // A pool without open connections finds out by trying.
    let began = Instant::now();
    connect(options(&url)).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

/// Probes request readiness every few seconds, and give up before the product gives up a host.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_early_gets_to_the_next_host_as_well() {
    let db = fresh().await;
    let (one, _two, url) = two_ways(&db.plain_url).await;
    let stores = connect(options(&url)).await.unwrap().stores();
    stores.reader.ready().await.unwrap();
    one.fall_silent();
    let began = Instant::now();
    while tokio::time::timeout(Duration::from_secs(2), stores.reader.ready()).await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(20), "never");
    }
}
