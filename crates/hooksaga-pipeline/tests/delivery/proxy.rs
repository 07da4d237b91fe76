//! Callbacks through an HTTP proxy.

use super::{
    client::{PLENTY, failed, loopback, request},
    https::{Authority, http1},
    server::{Server, hold},
};
use async_trait::async_trait;
use hooksaga_pipeline::{DeliveryClient, EgressPolicy, Resolve};
use hooksaga_saga::{ErrorCode, Outcome};
use std::{
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

/// A proxy that makes tunnels, or answers otherwise, and notes what it was asked for.
struct Proxy {
    server: Server,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Without an answer of its own it does what it is asked.
    async fn start(answer: Option<&'static [u8]>) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&asked);
        let server = Server::start(move |mut client, _| {
            let notes = Arc::clone(&notes);
            async move {
                let head = read_head(&mut client).await;
                let target = head.split(' ').nth(1).unwrap().to_owned();
                assert!(
                    head.starts_with(&format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n")),
                    "{head}"
                );
                notes.lock().unwrap().push(target.clone());
                if let Some(answer) = answer {
                    let _ = client.write_all(answer).await;
                    return hold(client).await;
                }
                let mut target = TcpStream::connect(target).await.unwrap();
                client
                    .write_all(b"HTTP/1.1 200 Connection established\r\nx-via: test\r\n\r\n")
                    .await
                    .unwrap();
                let _ = copy_bidirectional(&mut client, &mut target).await;
            }
        })
        .await;
        Self { server, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn policy(&self) -> EgressPolicy {
        self.policy_as(&self.server.address.to_string())
    }

    fn policy_as(&self, authority: &str) -> EgressPolicy {
        EgressPolicy { proxy: Some(format!("http://{authority}").parse().unwrap()), ..loopback() }
    }
}

/// The head of a request, byte by byte so that nothing behind it is taken.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Every name is at 127.0.0.1, but for one inside.
struct Names;

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(vec![if host.starts_with("inside") { [10, 0, 0, 1].into() } else { [127, 0, 0, 1].into() }])
    }
}

async fn outcome(policy: EgressPolicy, roots: Option<&str>, url: String) -> Outcome {
    let roots = roots.map(str::as_bytes);
    let client = DeliveryClient::with_resolver(policy, roots, Arc::new(Names)).unwrap();
    client.post(request(url), PLENTY).await.unwrap().outcome
}

#[tokio::test]
async fn a_callback_goes_through_the_proxy_to_the_address_that_was_judged() {
    let (proxy, server) = (Proxy::start(None).await, Server::always("HTTP/1.1 204 x\r\n\r\n").await);
    let url = format!("http://some.example:{}/hook", server.address.port());
    assert_eq!(outcome(proxy.policy(), None, url).await, Outcome::Delivered);
    assert_eq!(proxy.asked(), [server.address.to_string()], "an address, not the name");
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn tls_goes_through_the_tunnel_with_the_name_of_the_endpoint() {
    let (proxy, authority) = (Proxy::start(None).await, Authority::new());
    let server = http1(authority.acceptor("some.example", &["http/1.1"])).await;
    let url = |name| format!("https://{name}:{}/hook", server.address.port());
    let post = async |name| outcome(proxy.policy(), Some(&authority.pem()), url(name)).await;
    assert_eq!(post("some.example").await, Outcome::Delivered);
    assert_eq!(post("other.example").await, failed(ErrorCode::TLS_FAILED));
    assert_eq!(proxy.asked(), [server.address.to_string(), server.address.to_string()]);
}

#[tokio::test]
async fn what_is_forbidden_does_not_reach_the_proxy() {
    let proxy = Proxy::start(None).await;
    for url in ["http://inside.example/", "http://10.0.0.1/", "http://169.254.169.254/"] {
        assert_eq!(
            outcome(proxy.policy(), None, url.into()).await,
            failed(ErrorCode::BLOCKED_ADDRESS),
            "{url}"
        );
    }
    assert_eq!(proxy.server.accepted(), 0);
}

#[tokio::test]
async fn the_proxy_itself_is_not_judged_and_may_have_a_name() {
    let proxy = Proxy::start(Some(b"HTTP/1.1 502 x\r\n\r\n")).await;
    let port = proxy.server.address.port();
    let policy = proxy.policy_as(&format!("proxy.example:{port}"));
    let policy = EgressPolicy { allow_networks: Vec::new(), ..policy };
    let url = "http://93.184.216.34/hook".to_owned();
    assert_eq!(outcome(policy, None, url).await, failed(ErrorCode::CONNECT_FAILED));
    assert_eq!(proxy.asked(), ["93.184.216.34:80"]);
}

#[tokio::test]
async fn whatever_the_proxy_does_wrong_is_connect_failed() {
    for answer in [
        &b"HTTP/1.1 403 Forbidden\r\n\r\n"[..],
        b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
        b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 2\r\n\r\nno",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 x\r\n\r\nand more",
        &[b'x'; 10_000],
    ] {
        let proxy = Proxy::start(Some(answer)).await;
        let outcome = outcome(proxy.policy(), None, "http://some.example/".into()).await;
        assert_eq!(outcome, failed(ErrorCode::CONNECT_FAILED), "{}", String::from_utf8_lossy(answer));
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_there_is_connect_failed() {
    let proxy = Proxy::start(None).await;
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let policy = proxy.policy_as(&address.to_string());
    assert_eq!(outcome(policy, None, "http://some.example/".into()).await, failed(ErrorCode::CONNECT_FAILED));
}

#[tokio::test]
async fn a_proxy_that_hangs_times_out() {
    let proxy = Proxy::start(Some(b"")).await;
    let client = DeliveryClient::with_resolver(proxy.policy(), None, Arc::new(Names)).unwrap();
    let done = client.post(request("http://some.example/"), Duration::from_millis(300)).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::TIMEOUT));
}
