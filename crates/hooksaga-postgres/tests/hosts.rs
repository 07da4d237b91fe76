//! Several hosts in the URL: one that accepts and never responds does not keep the product from the next.

use crate::adapter::{event, failure, fresh, options};
use hooksaga_postgres::connect;
use hooksaga_store::StoreError;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// A server that accepts connections and says nothing, for as long as the listener lives.
async fn silent() -> (TcpListener, u16) {
    // Never accepted from: the kernel takes the connections, as it does for a frozen server.
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_never_responds_is_left_for_the_next() {
    let db = fresh().await;
    let (_listener, port) = silent().await;
    let (login, rest) = db.url.split_once("127.0.0.1").unwrap();
    let url = format!("{login}127.0.0.1:{port},127.0.0.1{rest}?connect_timeout=1");
    let began = Instant::now();
    let stores = connect(options(&url)).await.unwrap().stores();
    stores.ingest.append(&[event(None, "c")]).await.unwrap();
    // Three sessions so far: the login's, the reader's, ingestion's; each finds out for itself, once.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let began = Instant::now();
    let many = (0..4).map(|_| stores.ingest.append(&[]));
    for done in many {
        done.await.unwrap();
    }
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "the host that works is remembered: {:?}",
        began.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_never_respond_are_given_up_in_time() {
    let (_one, first) = silent().await;
    let (_two, second) = silent().await;
    let url = format!("postgres://u:hunter2@127.0.0.1:{first},127.0.0.1:{second}/db?connect_timeout=1");
    let began = Instant::now();
    let error = failure(connect(options(&url)).await);
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(
        error.to_string().contains(&first.to_string()) && !error.to_string().contains("hunter2"),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}
