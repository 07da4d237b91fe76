//! Endpoints that send without end.

use super::{
    client::{PLENTY, client, failed, outcome_of, request},
    server::{Server, read_request},
};
use hooksaga_saga::{ErrorCode, Outcome};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{io::AsyncWriteExt, time::sleep};

/// Sends the same bytes again and again as the answer to a callback; returns how many bytes the client took
/// before it was done with them.
async fn flood_with(bytes: Vec<u8>) -> usize {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let server = Server::start(move |mut stream, _| {
        let (counter, bytes) = (Arc::clone(&counter), bytes.clone());
        async move {
            read_request(&mut stream).await.unwrap();
            while stream.write_all(&bytes).await.is_ok() {
                counter.fetch_add(bytes.len(), Ordering::Relaxed);
            }
        }
    })
    .await;
    let done = client().post(request(server.url()), PLENTY).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::RESPONSE_INVALID));
    assert!(done.duration < Duration::from_secs(1), "{:?}", done.duration);
    // The connection is closed: nothing more is taken.
    sleep(Duration::from_millis(100)).await;
    let taken = sent.load(Ordering::Relaxed);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(sent.load(Ordering::Relaxed), taken);
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_interim_responses_is_response_invalid_at_once() {
    let small = b"HTTP/1.1 103 x\r\n\r\n".repeat(1000);
    let large = format!("HTTP/1.1 103 x\r\nlink: {}\r\n\r\n", "x".repeat(32_000)).into_bytes();
    for bytes in [small, large] {
        let taken = flood_with(bytes).await;
        // What the sockets hold is some megabytes.
        assert!(taken < 16 << 20, "{taken}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_without_end_are_response_invalid_at_once() {
    for bytes in [&b"\r\n"[..], b"x", b"HTTP/1.1 200 x", b"x-header: 1"] {
        flood_with(bytes.repeat(1000)).await;
    }
}

#[tokio::test]
async fn interim_responses_that_drip_end_at_the_seventeenth() {
    let server = Server::start(|mut stream, _| async move {
        read_request(&mut stream).await.unwrap();
        while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let done = client().post(request(server.url()), PLENTY).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::RESPONSE_INVALID));
    assert!(done.duration < Duration::from_secs(2), "{:?}", done.duration);
}

#[tokio::test]
async fn sixteen_interim_responses_are_passed_over_and_no_more() {
    let interim = "HTTP/1.1 102 Processing\r\n\r\n";
    let with = |count| interim.repeat(count) + "HTTP/1.1 204 x\r\n\r\n";
    assert_eq!(outcome_of(with(16)).await.outcome, Outcome::Delivered);
    // All at once they may be through before they are counted; one by one they are not.
    let server = Server::start(move |mut stream, _| async move {
        read_request(&mut stream).await.unwrap();
        for _ in 0..17 {
            let _ = stream.write_all(interim.as_bytes()).await;
            sleep(Duration::from_millis(5)).await;
        }
        let _ = stream.write_all(b"HTTP/1.1 204 x\r\n\r\n").await;
    })
    .await;
    let done = client().post(request(server.url()), PLENTY).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::RESPONSE_INVALID));
}

#[tokio::test]
async fn a_request_after_others_has_its_own_count() {
    let server =
        Server::always(format!("{}HTTP/1.1 204 x\r\n\r\n", "HTTP/1.1 102 x\r\n\r\n".repeat(10))).await;
    let client = client();
    for _ in 0..5 {
        assert_eq!(client.post(request(server.url()), PLENTY).await.unwrap().outcome, Outcome::Delivered);
    }
    assert_eq!(server.accepted(), 1);
}
