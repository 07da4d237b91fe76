//! Names, addresses and the guard between them.

use super::{
    client::{PLENTY, client, failed, loopback, request},
    server::Server,
};
use async_trait::async_trait;
use hooksaga_pipeline::{DeliveryClient, EgressPolicy, Resolve};
use hooksaga_saga::{ErrorCode, Outcome};
use std::{
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
};

/// Resolves every name to the same addresses (or fails), and notes what it was asked.
struct Fixed {
    answer: Option<Vec<IpAddr>>,
    asked: Mutex<Vec<String>>,
}

impl Fixed {
    fn to(addresses: &[&str]) -> Arc<Self> {
        let answer = Some(addresses.iter().map(|address| address.parse().unwrap()).collect());
        Arc::new(Self { answer, asked: Mutex::default() })
    }

    fn failing() -> Arc<Self> {
        Arc::new(Self { answer: None, asked: Mutex::default() })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Resolve for Fixed {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().unwrap().push(host.to_owned());
        self.answer.clone().ok_or_else(|| io::Error::other("no such host"))
    }
}

async fn post(policy: EgressPolicy, resolver: &Arc<Fixed>, url: String) -> Outcome {
    let resolver: Arc<dyn Resolve> = Arc::<Fixed>::clone(resolver);
    let client = DeliveryClient::with_resolver(policy, None, resolver).unwrap();
    client.post(request(url), PLENTY).await.unwrap().outcome
}

fn http_only() -> EgressPolicy {
    EgressPolicy { allow_http: true, ..EgressPolicy::default() }
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_dns_failed() {
    let url = || "http://nowhere.example/".to_owned();
    assert_eq!(post(loopback(), &Fixed::failing(), url()).await, failed(ErrorCode::DNS_FAILED));
    assert_eq!(post(loopback(), &Fixed::to(&[]), url()).await, failed(ErrorCode::DNS_FAILED));
    // The resolver proper; this top-level name is reserved never to exist.
    let done = client().post(request("http://nowhere.invalid/"), PLENTY).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::DNS_FAILED));
}

#[tokio::test]
async fn a_name_that_leads_to_forbidden_addresses_is_blocked_without_a_dial() {
    let server = Server::always("HTTP/1.1 204 x\r\n\r\n").await;
    let port = server.address.port();
    let resolver = Fixed::to(&["127.0.0.1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254"]);
    let outcome = post(http_only(), &resolver, format!("http://inside.example:{port}/")).await;
    assert_eq!(outcome, failed(ErrorCode::BLOCKED_ADDRESS));
    assert_eq!(resolver.asked(), ["inside.example"]);
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn what_the_system_resolves_passes_the_guard_as_well() {
    let server = Server::always("HTTP/1.1 204 x\r\n\r\n").await;
    let port = server.address.port();
    let guarded = DeliveryClient::new(http_only(), None).unwrap();
    // The second and third are 127.0.0.1 to the operating system, though no address in URL syntax.
    for host in ["localhost", "127.1", "0x7f000001", "127.0.0.1", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0"] {
        let done = guarded.post(request(format!("http://{host}:{port}/")), PLENTY).await;
        assert_eq!(done.unwrap().outcome, failed(ErrorCode::BLOCKED_ADDRESS), "{host}");
    }
    assert_eq!(server.accepted(), 0);
    let done = client().post(request(format!("http://localhost:{port}/")), PLENTY).await.unwrap();
    assert_eq!(done.outcome, Outcome::Delivered);
}

#[tokio::test]
async fn addresses_are_tried_in_turn() {
    let server = Server::always("HTTP/1.1 204 x\r\n\r\n").await;
    let port = server.address.port();
    // Nobody listens on 127.0.0.2 at that port.
    let resolver = Fixed::to(&["127.0.0.2", "127.0.0.1"]);
    let outcome = post(loopback(), &resolver, format!("http://some.example:{port}/")).await;
    assert_eq!(outcome, Outcome::Delivered);
    assert_eq!(server.accepted(), 1);
    assert_eq!(resolver.asked(), ["some.example"]);
}

#[tokio::test]
async fn one_forbidden_address_refuses_the_host() {
    let server = Server::always("HTTP/1.1 204 x\r\n\r\n").await;
    let url = || format!("http://some.example:{}/", server.address.port());
    let many: Vec<String> = (1..20).map(|n| format!("127.0.0.{n}")).chain(["10.0.0.1".to_owned()]).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for addresses in
        [&["127.0.0.1", "10.0.0.1"][..], &["10.0.0.1", "127.0.0.1"], &["127.0.0.1", "fd00::1"], &many]
    {
        let outcome = post(loopback(), &Fixed::to(addresses), url()).await;
        assert_eq!(outcome, failed(ErrorCode::BLOCKED_ADDRESS), "{addresses:?}");
    }
    let denied = EgressPolicy { deny_networks: vec!["127.0.0.2/32".parse().unwrap()], ..loopback() };
    let resolver = Fixed::to(&["127.0.0.1", "127.0.0.2"]);
    assert_eq!(post(denied, &resolver, url()).await, failed(ErrorCode::BLOCKED_ADDRESS));
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn an_address_in_the_url_is_not_looked_up() {
    let server = Server::always("HTTP/1.1 204 x\r\n\r\n").await;
    let resolver = Fixed::failing();
    assert_eq!(post(loopback(), &resolver, server.url()).await, Outcome::Delivered);
    let mapped = format!("http://[::ffff:127.0.0.1]:{}/", server.address.port());
    assert_eq!(post(loopback(), &resolver, mapped).await, Outcome::Delivered);
    assert!(resolver.asked().is_empty());
}

#[tokio::test]
async fn plain_http_is_blocked_unless_it_is_allowed() {
    let server = Server::always("HTTP/1.1 204 x\r\n\r\n").await;
    let policy = EgressPolicy { allow_http: false, ..loopback() };
    let resolver = Fixed::to(&["127.0.0.1"]);
    assert_eq!(post(policy, &resolver, server.url()).await, failed(ErrorCode::BLOCKED_ADDRESS));
    assert_eq!(server.accepted(), 0);
    for url in ["ftp://some.example/", "/path/only", "some.example"] {
        let outcome = post(loopback(), &resolver, url.to_owned()).await;
        assert_eq!(outcome, failed(ErrorCode::BLOCKED_ADDRESS), "{url}");
    }
    assert!(resolver.asked().is_empty());
}

#[tokio::test]
async fn a_text_that_is_no_url_is_a_fault_of_this_server() {
    let outcome = post(loopback(), &Fixed::failing(), "http://a b/".to_owned()).await;
    assert_eq!(outcome, failed(ErrorCode::INTERNAL));
}
