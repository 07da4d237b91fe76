//! Name resolution against a real name server on loopback, which answers, denies, or keeps silent.

use super::{
    client::{PLENTY, failed, loopback, request},
    server::Server,
};
use hooksaga_pipeline::{DeliveryClient, EgressPolicy, NameResolver, PostOutcome, Resolve};
use hooksaga_saga::{ErrorCode, Outcome};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    net::UdpSocket,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

const A: u16 = 1;
const AAAA: u16 = 28;

/// What the name server does about a name.
#[derive(Clone, Copy)]
enum Does {
    /// 127.0.0.1, and no IPv6 address, with this TTL.
    Answer(u32),
    /// Both kinds of address.
    Address(Ipv4Addr),
    /// There is no such name; its SOA has this TTL.
    Deny(u32),
    /// 127.0.0.1, and nothing about IPv6.
    HalfSilent,
    /// Nothing.
    Silent,
    /// A failure of the server.
    Fail,
}

/// A name server that goes by the first label of a name, and counts the questions for IPv4 addresses.
struct NameServer {
    address: SocketAddr,
    asked: Arc<Mutex<HashMap<String, usize>>>,
    task: JoinHandle<()>,
}

impl NameServer {
    async fn start(does: impl Fn(&str) -> Does + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(HashMap::new()));
        let counts = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            let mut buffer = [0; 1500];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                let (name, kind, question) = question(&buffer[..length]);
                if kind == A {
                    *counts.lock().unwrap().entry(name.clone()).or_default() += 1;
                }
                if let Some(answer) = answer(&buffer[..2], question, kind, does(&name)) {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        });
        Self { address, asked, task }
    }

    fn asked(&self, name: &str) -> usize {
        self.asked.lock().unwrap().get(name).copied().unwrap_or_default()
    }

    fn client(&self) -> DeliveryClient {
        self.client_with(loopback())
    }

    fn client_with(&self, policy: EgressPolicy) -> DeliveryClient {
        let resolver = Arc::new(NameResolver::of_server(self.address));
        DeliveryClient::with_resolver(policy, None, resolver).unwrap()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The name, the type and the bytes of a query's question.
fn question(query: &[u8]) -> (String, u16, &[u8]) {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8(query[at + 1..end].to_vec()).unwrap().to_lowercase());
        at = end;
    }
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    (labels.join("."), kind, &query[12..at + 5])
}

fn answer(id: &[u8], question: &[u8], kind: u16, does: Does) -> Option<Vec<u8>> {
    let record = |kind: u16, ttl: u32, data: &[u8]| {
        let mut record = vec![0xc0, 12];
        record.extend(kind.to_be_bytes());
        record.extend([0, 1]);
        record.extend(ttl.to_be_bytes());
        record.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        record.extend(data);
        record
    };
    let soa = |ttl: u32| {
        let mut data = vec![0, 0];
        for number in [1, 60, 60, 60, ttl] {
            data.extend(number.to_be_bytes());
        }
        record(6, ttl, &data)
    };
    let home = Ipv4Addr::LOCALHOST.octets();
    let (code, answers, authorities) = match does {
        Does::Silent => return None,
        Does::HalfSilent if kind == AAAA => return None,
        Does::HalfSilent => (0, vec![record(A, 60, &home)], vec![]),
        Does::Answer(ttl) if kind == A => (0, vec![record(A, ttl, &home)], vec![]),
        Does::Answer(ttl) => (0, vec![], vec![soa(ttl)]),
        Does::Address(address) if kind == A => (0, vec![record(A, 60, &address.octets())], vec![]),
        Does::Address(_) => (0, vec![record(AAAA, 60, &std::net::Ipv6Addr::LOCALHOST.octets())], vec![]),
        Does::Deny(ttl) => (3, vec![], vec![soa(ttl)]),
        Does::Fail => (2, vec![], vec![]),
    };
    let mut message = id.to_vec();
    message.extend([0x81, 0x80 | code, 0, 1, 0, u8::try_from(answers.len()).unwrap()]);
    message.extend([0, u8::try_from(authorities.len()).unwrap(), 0, 0]);
    message.extend(question);
    message.extend(answers.concat());
    message.extend(authorities.concat());
    Some(message)
}

async fn post(client: &DeliveryClient, name: &str, server: &Server) -> PostOutcome {
    let url = format!("http://{name}:{}/hook", server.address.port());
    client.post(request(url), PLENTY).await.unwrap()
}

/// Closes the connection after each answer, so that every callback looks its name up.
async fn endpoint() -> Server {
    Server::always("HTTP/1.1 204 x\r\nconnection: close\r\n\r\n").await
}

#[tokio::test]
async fn an_answer_is_asked_for_once_until_its_ttl_ends() {
    let names = NameServer::start(|name| Does::Answer(if name.starts_with("short") { 1 } else { 60 })).await;
    let (client, server) = (names.client(), endpoint().await);
    for _ in 0..5 {
        for name in ["short.example", "long.example", "LONG.example"] {
            assert_eq!(post(&client, name, &server).await.outcome, Outcome::Delivered, "{name}");
        }
    }
    assert_eq!(names.asked("short.example"), 1);
    sleep(Duration::from_millis(1100)).await;
    for name in ["short.example", "long.example"] {
        assert_eq!(post(&client, name, &server).await.outcome, Outcome::Delivered);
    }
    assert_eq!((names.asked("short.example"), names.asked("long.example")), (2, 1));
}

#[tokio::test]
async fn a_denial_is_remembered_too() {
    let names = NameServer::start(|name| Does::Deny(if name.starts_with("short") { 1 } else { 60 })).await;
    let (client, server) = (names.client(), endpoint().await);
    for _ in 0..3 {
        for name in ["short.example", "long.example"] {
            assert_eq!(post(&client, name, &server).await.outcome, failed(ErrorCode::DNS_FAILED));
        }
    }
    assert_eq!((names.asked("short.example"), names.asked("long.example")), (1, 1));
    sleep(Duration::from_millis(1100)).await;
    for name in ["short.example", "long.example"] {
        assert_eq!(post(&client, name, &server).await.outcome, failed(ErrorCode::DNS_FAILED));
    }
    assert_eq!((names.asked("short.example"), names.asked("long.example")), (2, 1));
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn a_name_server_that_fails_is_dns_failed() {
    let names = NameServer::start(|_| Does::Fail).await;
    let done = post(&names.client(), "some.example", &endpoint().await).await;
    assert_eq!(done.outcome, failed(ErrorCode::DNS_FAILED));
    let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let resolver = Arc::new(NameResolver::of_server(nobody));
    let client = DeliveryClient::with_resolver(loopback(), None, resolver).unwrap();
    let done = post(&client, "some.example", &endpoint().await).await;
    assert_eq!(done.outcome, failed(ErrorCode::DNS_FAILED));
}

#[tokio::test]
async fn a_hundred_at_once_cost_one_lookup() {
    let names = NameServer::start(|_| Does::Answer(60)).await;
    let resolver = NameResolver::of_server(names.address);
    let mut lookups = JoinSet::new();
    for _ in 0..100 {
        let resolver = resolver.clone();
        lookups.spawn(async move { resolver.resolve("some.example").await.unwrap() });
    }
    for found in lookups.join_all().await {
        assert_eq!(found, [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    }
    assert_eq!(names.asked("some.example"), 1);
}

#[tokio::test]
async fn a_thousand_who_wait_for_one_name_that_hangs_take_one_place() {
    let names =
        NameServer::start(|name| if name.starts_with("good") { Does::Answer(60) } else { Does::Silent })
            .await;
    let resolver = NameResolver::of_server(names.address);
    let mut hanging = JoinSet::new();
    for _ in 0..1000 {
        let resolver = resolver.clone();
        hanging.spawn(async move { resolver.resolve("hangs.example").await.unwrap_err().kind() });
    }
    sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    resolver.resolve("good.example").await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
    for kind in hanging.join_all().await {
        assert_eq!(kind, std::io::ErrorKind::TimedOut);
    }
}

/// Names that hang, and how long a callback to a good name took beside them.
async fn beside_hanging(count: usize) -> (JoinSet<PostOutcome>, Duration) {
    let names =
        NameServer::start(|name| if name.starts_with("good") { Does::Answer(60) } else { Does::Silent })
            .await;
    let (client, server) = (names.client(), endpoint().await);
    let mut hanging = JoinSet::new();
    for n in 0..count {
        let (client, url) = (client.clone(), format!("http://hangs-{n}.example/"));
        hanging.spawn(async move {
            // One that finds no room is not sent, which is no attempt.
            let unsent = PostOutcome {
                outcome: Outcome::Delivered,
                response_status: None,
                duration: Duration::ZERO,
                excerpt: None,
                retry_after: None,
            };
            client.post(request(url), PLENTY).await.unwrap_or(unsent)
        });
    }
    sleep(Duration::from_millis(200)).await;
    let started = Instant::now();
    assert_eq!(post(&client, "good.example", &server).await.outcome, Outcome::Delivered);
    let took = started.elapsed();
    // The name server must live as long as the lookups.
    hanging.spawn(async move {
        let _names = names;
        sleep(Duration::from_secs(8)).await;
        PostOutcome {
            outcome: failed(ErrorCode::DNS_FAILED),
            response_status: None,
            duration: Duration::from_secs(5),
            excerpt: None,
            retry_after: None,
        }
    });
    (hanging, took)
}

#[tokio::test]
async fn forty_names_that_hang_delay_nobody_and_fail_as_such() {
    let (hanging, took) = beside_hanging(40).await;
    assert!(took < Duration::from_millis(100), "{took:?}");
    for done in hanging.join_all().await {
        assert_eq!(done.outcome, failed(ErrorCode::DNS_FAILED));
        assert!(done.duration > Duration::from_secs(3) && done.duration < Duration::from_secs(8), "{done:?}");
    }
}

#[tokio::test]
async fn a_flood_of_names_that_hang_makes_a_new_name_wait_for_a_moment() {
    let (_, took) = beside_hanging(300).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn an_attempt_that_ends_before_the_lookup_is_a_timeout() {
    let names = NameServer::start(|_| Does::Silent).await;
    let client = names.client();
    let short = Duration::from_millis(300);
    let done = client.post(request("http://hangs.example/"), short).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::TIMEOUT));
    // The next one waits for the same lookup.
    let asked = names.asked("hangs.example");
    let done = client.post(request("http://hangs.example/"), PLENTY).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::DNS_FAILED));
    assert!(asked >= 1 && done.duration < Duration::from_secs(5), "{done:?}");
    // And for a moment the name is known not to be answered.
    let done = client.post(request("http://hangs.example/"), PLENTY).await.unwrap();
    assert_eq!(done.outcome, failed(ErrorCode::DNS_FAILED));
    assert!(done.duration < Duration::from_millis(500), "{done:?}");
}

#[tokio::test]
async fn a_name_that_is_answered_for_one_family_only_is_called_there() {
    let names = NameServer::start(|_| Does::HalfSilent).await;
    let done = post(&names.client(), "half.example", &endpoint().await).await;
    assert_eq!(done.outcome, Outcome::Delivered);
    assert!(done.duration < Duration::from_secs(6), "{done:?}");
}

#[tokio::test]
async fn every_address_that_dns_gives_is_judged() {
    let names = NameServer::start(|name| {
        Does::Address(if name.starts_with("inside") {
            Ipv4Addr::new(10, 0, 0, 1)
        } else {
            Ipv4Addr::LOCALHOST
        })
    })
    .await;
    let server = endpoint().await;
    let client = names.client();
    assert_eq!(post(&client, "home.example", &server).await.outcome, Outcome::Delivered);
    assert_eq!(post(&client, "inside.example", &server).await.outcome, failed(ErrorCode::BLOCKED_ADDRESS));
    // The IPv6 address beside a permitted one is enough to refuse.
    let policy = EgressPolicy { allow_networks: vec!["127.0.0.0/8".parse().unwrap()], ..loopback() };
    let done = post(&names.client_with(policy), "home.example", &server).await;
    assert_eq!(done.outcome, failed(ErrorCode::BLOCKED_ADDRESS));
}
