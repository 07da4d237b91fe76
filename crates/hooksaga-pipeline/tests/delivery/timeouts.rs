//! One deadline over everything: lookup, connection, TLS, headers and body.

use super::{
    client::{client, failed, loopback, request},
    server::{Server, answer, hold, read_request},
};
use async_trait::async_trait;
use hooksaga_pipeline::{DeliveryClient, PostOutcome, Resolve};
use hooksaga_saga::{ErrorCode, Outcome};
use std::{io, net::IpAddr, sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt, time::sleep};

const SHORT: Duration = Duration::from_millis(300);

/// It took as long as the deadline, and not much longer even on a busy machine.
fn assert_took_the_deadline(done: &PostOutcome) {
    assert!(done.duration >= SHORT, "{:?}", done.duration);
    assert!(done.duration < SHORT + Duration::from_secs(5), "{:?}", done.duration);
}

async fn assert_times_out(client: &DeliveryClient, url: String) {
    let done = client.post(request(url), SHORT).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::TIMEOUT));
    assert_eq!((done.response_status, &done.excerpt), (None, &None));
    assert_took_the_deadline(&done);
}

#[tokio::test]
async fn a_lookup_that_hangs_times_out() {
    struct Hanging;
    #[async_trait]
    impl Resolve for Hanging {
        async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            std::future::pending().await
        }
    }
    let client = DeliveryClient::with_resolver(loopback(), None, Arc::new(Hanging)).unwrap();
    assert_times_out(&client, "https://slow.example/".into()).await;
}

#[tokio::test]
async fn a_tls_server_that_says_nothing_times_out() {
    let server = Server::start(|stream, _| hold(stream)).await;
    assert_times_out(&client(), format!("https://{}/", server.address)).await;
}

#[tokio::test]
async fn a_server_that_never_answers_times_out_and_its_connection_is_closed() {
    let (closed, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let closed = closed.clone();
        async move {
            read_request(&mut stream).await.unwrap();
            hold(stream).await;
            closed.send(()).unwrap();
        }
    })
    .await;
    assert_times_out(&client(), server.url()).await;
    seen.recv().await.expect("the client closes the connection");
}

#[tokio::test]
async fn headers_that_drip_time_out() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, b"HTTP/1.1 200 x\r\nx-slow: ").await;
        while stream.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_times_out(&client(), server.url()).await;
}

#[tokio::test]
async fn a_failure_whose_body_drips_is_cut_at_the_deadline_and_keeps_its_status() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, b"HTTP/1.1 503 x\r\n\r\n").await;
        while stream.write_all(b"z").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let done = client().post(request(server.url()), SHORT).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::http(503)));
    assert_eq!(done.response_status, Some(503));
    assert!(done.excerpt.as_ref().unwrap().starts_with('z'));
    assert_took_the_deadline(&done);
}

#[tokio::test]
async fn a_success_does_not_wait_for_its_body() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, b"HTTP/1.1 200 x\r\ncontent-length: 10\r\n\r\n").await;
        hold(stream).await;
    })
    .await;
    let long = Duration::from_secs(600);
    let done = client().post(request(server.url()), long).await.unwrap();
    assert_eq!(done.outcome, Outcome::Delivered);
    assert!(done.duration < Duration::from_secs(5), "{:?}", done.duration);
}

#[tokio::test]
async fn an_absurd_timeout_is_no_fault() {
    let server = Server::always("HTTP/1.1 204 x\r\n\r\n").await;
    let done = client().post(request(server.url()), Duration::MAX).await.unwrap();
    assert_eq!(done.outcome, Outcome::Delivered);
}
