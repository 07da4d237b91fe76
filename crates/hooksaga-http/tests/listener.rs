//! The listener's bounds: whatever clients do, others still get in and memory stays bounded.

use axum::{
    Router,
    body::Bytes,
    routing::{get, post},
};
use hooksaga_http::{Deadlines, ListenerGauges, ListenerOptions, serve};
use hooksaga_pipeline::Shutdown;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{sleep, timeout},
};

/// More than the kernel takes for a client that does not read.
const BIG: usize = 4 << 20;

/// How long something may take on a busy machine that should take milliseconds.
const PATIENCE: Duration = Duration::from_secs(15);

struct Running {
    address: SocketAddr,
    gauges: ListenerGauges,
    served: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    /// Requests that a handler has seen.
    handled: Arc<AtomicUsize>,
    shutdown: Shutdown,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

async fn start(change: impl FnOnce(&mut ListenerOptions)) -> Running {
    let mut options = ListenerOptions::new(8);
    options.deadlines = Deadlines {
        stalled: Duration::from_millis(100),
        fresh: Duration::from_millis(50),
        ..Deadlines::default()
    };
    change(&mut options);
    let handled = Arc::new(AtomicUsize::new(0));
    let big = || async { vec![b'x'; BIG] };
    let counter = Arc::clone(&handled);
    let counted = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        async { ([("x-long", "x".repeat(8000))], "") }
    };
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/v1/big", get(big).post(big))
        .route("/v1/counted", get(counted))
        .route("/v1/body", post(|body: Bytes| async move { format!("{} bytes\n", body.len()) }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (gauges, shutdown) = (options.gauges.clone(), Shutdown::new());
    let served = Some(tokio::spawn(serve(listener, app, options, shutdown.clone())));
    Running { address, gauges, served, handled, shutdown }
}

/// A client whose kernel buffers little.
async fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    timeout(PATIENCE, socket.connect(address)).await.unwrap().unwrap()
}

async fn connect_and_send(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = connect(address).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// A whole response.
async fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = connect_and_send(address, request).await;
    let mut response = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut response)).await.expect("an end").unwrap();
    String::from_utf8(response).unwrap()
}

fn closing(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
}

async fn is_healthy(running: &Running) {
    let response = ask(running.address, &closing("GET", "/healthz")).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("ok\n"), "{response}");
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let asked = async {
        while !holds() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_clients_make_room_the_longest_idle_first() {
    let running = start(|_| {}).await;
    let mut idle = Vec::new();
    for number in 0..40 {
        // Some have sent nothing, some a part of a request.
        let sent = if number % 2 == 0 { "" } else { "GET /healthz HT" };
        idle.push(connect_and_send(running.address, sent).await);
        eventually("it is accepted", || running.gauges.connections() > number.min(7)).await;
    }
    is_healthy(&running).await;
    assert!(running.gauges.evicted() >= 33, "{}", running.gauges.evicted());
    eventually("no more than the limit stay", || running.gauges.connections() <= 8).await;
    for stream in idle.iter_mut().take(20) {
        assert!(is_closed(stream).await, "the first ones had to go");
    }
    // One of the last is still served.
    let last = idle.last_mut().unwrap();
    last.write_all(b"TP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    timeout(PATIENCE, last.read_to_string(&mut response)).await.unwrap().unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_make_room() {
    let running = start(|options| options.max_response_bytes = usize::MAX).await;
    let mut stuck = Vec::new();
    for _ in 0..30 {
        stuck.push(connect_and_send(running.address, &closing("GET", "/v1/big")).await);
    }
    is_healthy(&running).await;
    assert!(running.gauges.evicted() >= 20, "{}", running.gauges.evicted());
    assert!(running.gauges.connections() <= 8 + 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_finish_their_body_make_room() {
    let running = start(|_| {}).await;
    let mut stuck = Vec::new();
    for _ in 0..30 {
        let head = "POST /v1/body HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nx";
        stuck.push(connect_and_send(running.address, head).await);
    }
    is_healthy(&running).await;
    assert!(running.gauges.evicted() >= 20, "{}", running.gauges.evicted());
    assert!(running.gauges.connections() <= 8 + 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_nothing_is_closed_in_time() {
    let running = start(|options| options.deadlines.write = Duration::from_millis(300)).await;
    let _stuck = connect_and_send(running.address, &closing("GET", "/v1/big")).await;
    eventually("the response waits", || running.gauges.response_bytes() >= BIG).await;
    eventually("the connection is closed", || running.gauges.connections() == 0).await;
    assert_eq!(running.gauges.response_bytes(), 0, "its memory is free again");
    assert_eq!(running.gauges.evicted(), 0, "nobody needed its place");
}

/// Longer than the deadline in all, but never without progress.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_slowly_gets_everything() {
    let running = start(|options| options.deadlines.write = Duration::from_secs(3)).await;
    let mut slow = connect_and_send(running.address, &closing("GET", "/v1/big")).await;
    let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
    loop {
        let length = slow.read(&mut buffer).await.unwrap();
        if length == 0 {
            break;
        }
        read += length;
        if read < 350_000 {
            sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(read > BIG, "{read}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_does_not_end_is_cut_off() {
    let running = start(|options| options.deadlines.head = Duration::from_millis(300)).await;
    let mut silent = connect(running.address).await;
    let mut trickle = connect_and_send(running.address, "GET /healthz HTTP/1.1\r\nx: ").await;
    let trickling = async {
        while trickle.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, trickling).await.expect("a trickle is not progress");
    // One that has sent nothing may idle for longer.
    assert!(timeout(Duration::from_millis(400), silent.read(&mut [0])).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_of_waiting_responses_are_bounded() {
    let limit = 3 * BIG;
    let running = start(|options| {
        options.max_connections = 100;
        options.max_response_bytes = limit;
        options.deadlines.stalled = Duration::from_secs(3);
    })
    .await;
    let mut stuck = Vec::new();
    for _ in 0..3 {
        stuck.push(connect_and_send(running.address, &closing("GET", "/v1/big")).await);
    }
    eventually("three wait", || running.gauges.response_bytes() == limit).await;
    for _ in 0..20 {
        let refused = ask(running.address, &closing("GET", "/v1/big")).await;
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after"), "{refused:.200}");
        assert!(refused.contains("application/problem+json"), "{refused:.200}");
        assert_eq!(running.gauges.response_bytes(), limit);
    }
    // What needs no key has room of its own, and what was done is always told.
    is_healthy(&running).await;
    let done = ask(running.address, &closing("POST", "/v1/big")).await;
    assert!(done.starts_with("HTTP/1.1 200") && done.len() > BIG);
    // After a while those that do not read have to go.
    let served = async {
        while !ask(running.address, &closing("GET", "/v1/big")).await.starts_with("HTTP/1.1 200") {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, served).await.expect("there is room again");
    assert!(running.gauges.evicted() >= 1);
}

/// Requests one after another, also of the kind whose end comes after their response: each could be begun early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipelining_client_that_reads_nothing_is_not_answered_without_end() {
    const SENT: usize = 20_000;
    for request in [
        "GET /v1/counted HTTP/1.1\r\nhost: x\r\n\r\n",
        "HEAD /v1/counted HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx",
    ] {
        let running = start(|_| {}).await;
        let mut stream = connect(running.address).await;
        let sending = async {
            for _ in 0..SENT {
                stream.write_all(request.as_bytes()).await.unwrap();
            }
        };
        let all_sent = timeout(Duration::from_secs(2), sending).await.is_ok();
        let before = running.handled.load(Ordering::Relaxed);
        sleep(Duration::from_millis(300)).await;
        let after = running.handled.load(Ordering::Relaxed);
        assert_eq!(before, after, "nothing goes on");
        assert!(after > 0 && after < SENT / 4, "{after} of {SENT} were answered (all sent: {all_sent})");
    }
}

/// What hyper refuses before any route sees it looks like every other refusal.
#[tokio::test]
async fn requests_that_are_no_http_get_a_problem_document() {
    let running = start(|_| {}).await;
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(70_000));
    for (request, status) in [
        ("NONSENSE\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\nbad header\r\n\r\n", 400),
        ("GET /healthz HTTP/9.9\r\nhost: x\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nNONSENSE\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n", 400),
        (long.as_str(), 431),
    ] {
        let response = ask(running.address, request).await;
        let refusal = response.find("ok\n").map_or(response.as_str(), |at| &response[at + 3..]);
        let (head, body) = refusal.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{request:.40}: {head}");
        assert!(head.contains("content-type: application/problem+json"), "{head}");
        let problem: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(problem["status"], status);
        assert!(problem["detail"].as_str().is_some_and(|text| !text.is_empty()));
    }
    let response = ask(running.address, "GET /healthz HTTP/1.0\r\n\r\n").await;
    assert!(response.ends_with("ok\n"), "it knows no host header: {response}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_at_once_are_served_beside_idle_ones() {
    let running = start(|options| {
        options.max_connections = 32;
        options.deadlines.fresh = Duration::from_secs(1);
    })
    .await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(connect(running.address).await);
    }
    let asked: Vec<_> = (0..100).map(|_| tokio::spawn(ask_healthz(running.address))).collect();
    for one in asked {
        one.await.unwrap();
    }
    assert!(running.gauges.connections() <= 32 + 64);
}

async fn ask_healthz(address: SocketAddr) {
    let response = ask(address, &closing("GET", "/healthz")).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

/// Who has connected before the end is served, even if the server has not looked at it yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_just_come_is_served_at_the_end() {
    let mut running = start(|options| {
        options.max_connections = 100;
        options.deadlines.fresh = Duration::from_secs(2);
    })
    .await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(connect(running.address).await);
    }
    running.shutdown.trigger();
    for stream in &mut streams {
        stream.write_all(closing("GET", "/healthz").as_bytes()).await.unwrap();
        let mut response = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut response)).await.unwrap().unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }
    timeout(PATIENCE, running.served.take().unwrap()).await.expect("it ends").unwrap().unwrap();
}

/// At the end nobody is waited for in vain, and whoever moves on is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_nothing_do_not_hold_up_the_end() {
    let mut running = start(|options| {
        options.deadlines.stalled = Duration::from_secs(1);
        options.deadlines.fresh = Duration::from_secs(1);
    })
    .await;
    let post = "POST /v1/body HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 20\r\n\r\n";
    let _idle = connect(running.address).await;
    let _head = connect_and_send(running.address, "GET /heal").await;
    let _body = connect_and_send(running.address, post).await;
    let _reads_nothing = connect_and_send(running.address, &closing("GET", "/v1/big")).await;
    let mut slow = connect_and_send(running.address, post).await;
    eventually("all are there", || running.gauges.connections() == 5 && running.gauges.response_bytes() > 0)
        .await;
    running.shutdown.trigger();
    for _ in 0..20 {
        slow.write_all(b"x").await.unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    let mut response = String::new();
    timeout(PATIENCE, slow.read_to_string(&mut response)).await.unwrap().unwrap();
    assert!(response.ends_with("20 bytes\n"), "{response}");
    timeout(PATIENCE, running.served.take().unwrap()).await.expect("it ends").unwrap().unwrap();
}
