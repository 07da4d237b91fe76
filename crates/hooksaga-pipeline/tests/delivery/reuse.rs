//! Connections are used again, and one that the server closed meanwhile harms nobody.

use super::{
    client::{PLENTY, client, failed, request},
    server::{Server, answer, hold, read_request},
};
use hooksaga_saga::{ErrorCode, Outcome};
use std::time::Duration;
use tokio::{io::AsyncWriteExt, sync::mpsc, time::sleep};

/// Posts ten times, one after the other, with time for each connection to come back to the pool.
async fn post_ten_times(server: &Server, expected: &Outcome) {
    let client = client();
    for _ in 0..10 {
        assert_eq!(client.post(request(server.url()), PLENTY).await.unwrap().outcome, *expected);
        sleep(Duration::from_millis(20)).await;
    }
}

/// Ten callbacks shared connections. On a busy machine one may come too early for the last one's.
fn assert_reused(server: &Server) {
    assert!((1..=5).contains(&server.accepted()), "{} connections", server.accepted());
}

#[tokio::test]
async fn one_connection_serves_many_callbacks() {
    for response in [
        "HTTP/1.1 204 x\r\n\r\n".to_owned(),
        "HTTP/1.1 200 x\r\ncontent-length: 2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 x\r\ncontent-length: 60000\r\n\r\n{}", "x".repeat(60_000)),
    ] {
        let server = Server::always(response).await;
        post_ten_times(&server, &Outcome::Delivered).await;
        assert_reused(&server);
    }
}

#[tokio::test]
async fn failures_keep_their_connection_too() {
    // More than the excerpt, and more than comes in one piece.
    let body = "x".repeat(60_000);
    let server =
        Server::always(format!("HTTP/1.1 500 x\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    post_ten_times(&server, &failed(ErrorCode::http(500))).await;
    assert_reused(&server);
}

#[tokio::test]
async fn a_body_that_comes_later_is_awaited_in_the_background() {
    let server = Server::start(|mut stream, _| async move {
        while read_request(&mut stream).await.is_some() {
            stream.write_all(b"HTTP/1.1 200 x\r\ncontent-length: 2\r\n\r\n").await.unwrap();
            sleep(Duration::from_millis(5)).await;
            stream.write_all(b"ok").await.unwrap();
        }
    })
    .await;
    post_ten_times(&server, &Outcome::Delivered).await;
    assert_reused(&server);
}

#[tokio::test]
async fn a_body_too_large_to_throw_away_costs_the_connection_only() {
    let server =
        Server::always(format!("HTTP/1.1 200 x\r\ncontent-length: 100000\r\n\r\n{}", "x".repeat(100_000)))
            .await;
    post_ten_times(&server, &Outcome::Delivered).await;
    assert_eq!(server.accepted(), 10);
}

#[tokio::test]
async fn a_pooled_connection_that_the_server_closed_is_no_failed_attempt() {
    let (closed, mut seen) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, number| {
        let closed = closed.clone();
        async move {
            answer(&mut stream, b"HTTP/1.1 204 x\r\n\r\n").await;
            if number <= 5 {
                sleep(Duration::from_millis(20)).await;
                drop(stream);
                closed.send(()).unwrap();
            } else {
                hold(stream).await;
            }
        }
    })
    .await;
    let client = client();
    for _ in 0..5 {
        assert_eq!(client.post(request(server.url()), PLENTY).await.unwrap().outcome, Outcome::Delivered);
        seen.recv().await.unwrap();
        // Idle for a while, as far as the client is concerned: the end of the connection has arrived.
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(client.post(request(server.url()), PLENTY).await.unwrap().outcome, Outcome::Delivered);
    assert_eq!(server.accepted(), 6);
}

#[tokio::test]
async fn a_reused_connection_that_closes_after_the_request_is_a_failed_attempt() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, b"HTTP/1.1 204 x\r\n\r\n").await;
        read_request(&mut stream).await;
    })
    .await;
    let client = client();
    assert_eq!(client.post(request(server.url()), PLENTY).await.unwrap().outcome, Outcome::Delivered);
    sleep(Duration::from_millis(20)).await;
    // The server has read the request: sending it once more would be a second attempt.
    let done = client.post(request(server.url()), PLENTY).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::RESPONSE_INVALID));
    assert_eq!(server.accepted(), 1);
}
