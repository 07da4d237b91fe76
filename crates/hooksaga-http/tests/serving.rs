//! `serve`: over real connections.

use crate::support::{ROOT_KEY, TestApi};
use hooksaga_http::ListenerOptions;
use hooksaga_pipeline::Shutdown;
use std::{io, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

async fn start(api: &TestApi) -> (SocketAddr, Shutdown, JoinHandle<io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = Shutdown::new();
    let served = tokio::spawn(hooksaga_http::serve(
        listener,
        api.app.clone(),
        ListenerOptions::new(100),
        shutdown.clone(),
    ));
    (address, shutdown, served)
}

/// Reads until the text has been seen.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains(end) {
        let length = stream.read(&mut buffer).await.unwrap();
        assert_ne!(length, 0, "the connection ended after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    text
}

#[tokio::test]
async fn requests_follow_each_other_on_a_connection() {
    let api = TestApi::new().await;
    let (address, shutdown, served) = start(&api).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert!(read_until(&mut stream, "ok\n").await.starts_with("HTTP/1.1 200"));
    }
    shutdown.trigger();
    served.await.unwrap().unwrap();
    assert_eq!(stream.read(&mut [0; 10]).await.unwrap(), 0, "the idle connection was closed");
    assert!(TcpStream::connect(address).await.is_err(), "nothing more is accepted");
}

#[tokio::test]
async fn a_request_in_flight_is_served_before_the_end() {
    let api = TestApi::new().await;
    let (address, shutdown, mut served) = start(&api).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = r#"{"event_type":"t","payload":1}"#;
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ROOT_KEY}\r\n\
         content-type: application/json\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The handler asks for the body: the request is in flight.
    read_until(&mut stream, "100 Continue\r\n\r\n").await;
    shutdown.trigger();
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut served).await.is_err(), "it waits");
    stream.write_all(body.as_bytes()).await.unwrap();
    let response = read_until(&mut stream, "\"duplicate\":false").await;
    assert!(response.starts_with("HTTP/1.1 201"), "{response}");
    served.await.unwrap().unwrap();
}

/// A client that sends far too much hears why, instead of a reset connection.
#[tokio::test]
async fn an_early_refusal_is_heard() {
    let api = TestApi::new().await;
    let (address, shutdown, served) = start(&api).await;
    for (key, status) in [(ROOT_KEY, "413"), ("wrong", "401")] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let length = 20 << 20;
        let head = format!(
            "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; length]).await.unwrap();
        let response = read_until(&mut stream, "\r\n\r\n").await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{response}");
    }
    shutdown.trigger();
    served.await.unwrap().unwrap();
}

/// A client that asks before it sends is refused at once, and need not send.
#[tokio::test]
async fn a_client_that_asks_first_is_refused_at_once() {
    let api = TestApi::new().await;
    let (address, shutdown, served) = start(&api).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer wrong\r\n\
                expect: 100-continue\r\ncontent-length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let response = read_until(&mut stream, "\r\n\r\n");
    let response = tokio::time::timeout(Duration::from_secs(3), response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 401"), "{response}");
    shutdown.trigger();
    served.await.unwrap().unwrap();
}

/// Whoever has shown no key cannot make the server keep much.
#[tokio::test]
async fn endless_headers_are_cut_off() {
    let api = TestApi::new().await;
    let (address, shutdown, served) = start(&api).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx: {}", "x".repeat(100_000));
    stream.write_all(head.as_bytes()).await.unwrap();
    let response = read_until(&mut stream, "\r\n\r\n");
    let response = tokio::time::timeout(Duration::from_secs(3), response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 431"), "{response}");
    shutdown.trigger();
    served.await.unwrap().unwrap();
}
