//! Servers that misbehave: each way has its error code.

use super::{
    client::{PLENTY, client, failed, outcome_of, request},
    server::{Server, answer, read_request},
};
use hooksaga_pipeline::PostOutcome;
use hooksaga_saga::{ErrorCode, Outcome};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

async fn post(server: &Server) -> PostOutcome {
    client().post(request(server.url()), PLENTY).await.unwrap()
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_connect_failed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let done = client().post(request(format!("http://{address}/")), PLENTY).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::CONNECT_FAILED));
    assert_eq!((done.response_status, done.excerpt), (None, None));
}

#[tokio::test]
async fn a_connection_that_closes_unread_is_response_invalid() {
    let server = Server::start(|stream, _| async move { drop(stream) }).await;
    assert_eq!(post(&server).await.outcome, failed(ErrorCode::RESPONSE_INVALID));
}

#[tokio::test]
async fn a_request_without_an_answer_is_response_invalid_and_not_sent_again() {
    let server = Server::start(|mut stream, _| async move {
        read_request(&mut stream).await.unwrap();
    })
    .await;
    let done = post(&server).await;
    assert_eq!(done.outcome, failed(ErrorCode::RESPONSE_INVALID));
    assert_eq!(done.response_status, None);
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn a_reset_before_the_answer_is_response_invalid() {
    let server = Server::start(|mut stream, _| async move {
        // Closing with unread bytes resets the connection.
        stream.read_exact(&mut [0; 1]).await.unwrap();
    })
    .await;
    assert_eq!(post(&server).await.outcome, failed(ErrorCode::RESPONSE_INVALID));
}

#[tokio::test]
async fn what_is_not_http_is_response_invalid() {
    for garbage in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "\0\u{1}\u{2}\u{3}\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 99 x\r\n\r\n",
        "HTTP/1.1 200 x\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 x\r\ncontent-length: many\r\n\r\n",
        "HTTP/1.1 200 x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ] {
        let done = outcome_of(garbage).await;
        assert_eq!(done.outcome, failed(ErrorCode::RESPONSE_INVALID), "{garbage:?}");
    }
}

#[tokio::test]
async fn a_header_section_without_end_is_response_invalid() {
    let many = "x-many: 1\r\n".repeat(1000);
    let done = outcome_of(format!("HTTP/1.1 200 x\r\n{many}\r\n")).await;
    assert_eq!(done.outcome, failed(ErrorCode::RESPONSE_INVALID));

    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, b"HTTP/1.1 200 x\r\nx-long: ").await;
        while stream.write_all(&[b'x'; 1024]).await.is_ok() {}
    })
    .await;
    assert_eq!(post(&server).await.outcome, failed(ErrorCode::RESPONSE_INVALID));
}

#[tokio::test]
async fn a_failure_whose_body_breaks_off_keeps_its_status_and_what_came() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, b"HTTP/1.1 500 x\r\ncontent-length: 100\r\n\r\nonly this").await;
    })
    .await;
    let done = post(&server).await;
    assert_eq!(done.outcome, failed(ErrorCode::http(500)));
    assert_eq!(done.excerpt.as_deref(), Some("only this"));
}

#[tokio::test]
async fn a_success_whose_body_breaks_off_is_a_success() {
    for length in [100_u64, 1 << 40] {
        let server = Server::start(move |mut stream, _| async move {
            let head = format!("HTTP/1.1 200 x\r\ncontent-length: {length}\r\n\r\nonly");
            answer(&mut stream, head.as_bytes()).await;
        })
        .await;
        assert_eq!(post(&server).await.outcome, Outcome::Delivered);
    }
}

#[tokio::test]
async fn an_endless_failure_is_cut_and_its_connection_closed() {
    let (closed, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let closed = closed.clone();
        async move {
            answer(&mut stream, b"HTTP/1.1 500 x\r\n\r\n").await;
            while stream.write_all(&[b'x'; 1024]).await.is_ok() {}
            closed.send(()).unwrap();
        }
    })
    .await;
    let done = post(&server).await;
    assert_eq!(done.outcome, failed(ErrorCode::http(500)));
    assert_eq!(done.excerpt.unwrap(), "x".repeat(4096));
    seen.recv().await.expect("the client gives up on the rest");
}

#[tokio::test]
async fn an_endless_success_is_a_success_and_its_connection_closed() {
    let (closed, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let closed = closed.clone();
        async move {
            answer(&mut stream, b"HTTP/1.1 200 x\r\n\r\n").await;
            while stream.write_all(&[b'x'; 1024]).await.is_ok() {}
            closed.send(()).unwrap();
        }
    })
    .await;
    assert_eq!(post(&server).await.outcome, Outcome::Delivered);
    seen.recv().await.expect("the client gives up on the rest");
}
