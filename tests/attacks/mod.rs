//! Attacks on the real binary, in sizes that a suite can afford. docs/SECURITY.md has the figures of the large ones, and the
//! variables of the environment that repeat them.

mod slow_lists;

use crate::support::*;
use hooksaga_testkit::{
    https::certify,
    server::{Server as Endpoint, read_request},
};
use std::{sync::Arc, time::Instant};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::rustls::pki_types::ServerName;

/// The size of an attack: what the environment says, or what the suite can afford.
fn size(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

fn clients(usual: usize) -> usize {
    size("HOOKSAGA_ATTACK_CLIENTS", usual)
}

#[expect(clippy::print_stdout, reason = "the figures of a run, for whoever asked for it")]
fn note(figures: &str) {
    println!("{figures}");
}

/// How long liveness, readiness, metrics and an event take while an attack lasts, the slowest of some.
async fn responds(server: &Server, attack: &str, before: u64) {
    responds_for(Duration::ZERO, server, &server.api_with(None), attack, before).await;
}

/// The same for at least this long, with probes and metrics asked for elsewhere.
async fn responds_for(lasts: Duration, server: &Server, probes: &Api, attack: &str, before: u64) {
    const PROBES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
    let (mut slowest, mut event, mut rounds) = ([Duration::ZERO; 3], Duration::ZERO, 0);
    let began = Instant::now();
    while rounds < 20 || began.elapsed() < lasts {
        for (path, slowest) in PROBES.into_iter().zip(&mut slowest) {
            let asked = Instant::now();
            let response = probes.get(path).await;
            assert_eq!(response.status, 200, "{attack}: {path}");
            let is_whole = path != "/metrics" || response.text().contains("\nhooksaga_oldest_due_seconds ");
            assert!(is_whole, "{attack}: alerts need the gauges");
            *slowest = asked.elapsed().max(*slowest);
        }
        let asked = Instant::now();
        server.api().event("during.attack", &json!(rounds)).await;
        event = event.max(asked.elapsed());
        rounds += 1;
    }
    let (peak, [healthy, ready, metrics]) = (server.peak_mib(), slowest);
    note(&format!(
        "{attack}: the slowest of {rounds}: /healthz {healthy:?}, /readyz {ready:?}, /metrics {metrics:?}, \
         an event {event:?}; {before} to {peak} MiB"
    ));
    let slowest = healthy.max(ready).max(metrics).max(event);
    assert!(slowest < Duration::from_secs(3), "{attack}: {slowest:?}");
}

/// More of them than the process has connections for, in the size of the figures and in the suite's. Deliveries go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_pipeline_and_never_read_or_never_ask_keep_nobody_out() {
    let count = clients(600);
    let files = u32::try_from(size("HOOKSAGA_ATTACK_FILES", count.clamp(512, 8192))).unwrap();
    let receiver = Receiver::start().await;
    for (attack, sent) in [
        ("clients that pipeline and never read", "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(50)),
        ("clients that never ask", String::new()),
    ] {
        let server = Server::start_with_files(&Installation::sqlite(), files, &["serve", "--dev"]).await;
        let api = server.api();
        api.verified_subscription("t", &receiver.url("/hook")).await;
        let before = server.resident_mib();
        let mut held = Vec::new();
        for _ in 0..count {
            held.push(silent(&server, &sent).await);
        }
        // From then on they have stalled for long enough to lose their place.
        sleep(Duration::from_millis(1500)).await;
        responds(&server, &format!("{count} {attack}, {files} descriptors"), before).await;
        let event = api.event("t", &json!(1)).await;
        api.delivery_with_status(event, "Completed").await;
    }
}

/// As long as idle clients hold every connection of the API, before any of them has to make room and after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_and_probes_apart_respond_while_the_api_is_full_of_idle_clients() {
    let count = clients(600);
    let files = u32::try_from(size("HOOKSAGA_ATTACK_FILES", count.clamp(512, 8192))).unwrap();
    let installation = Installation::sqlite().with("HOOKSAGA_METRICS_LISTEN", "127.0.0.1:0");
    let server = Server::start_with_files(&installation, files, &["serve", "--dev"]).await;
    let said = server.said("metrics on http://");
    let (_, address) = said[0]["message"].as_str().unwrap().split_once("http://").unwrap();
    let apart = Api::new(address.strip_suffix("/metrics").unwrap(), None);
    let before = server.resident_mib();
    let (mut held, mut slowest) = (Vec::new(), Duration::ZERO);
    for n in 0..count {
        held.push(silent(&server, "").await);
        if n % 50 == 49 {
            for path in ["/healthz", "/readyz", "/metrics"] {
                let asked = Instant::now();
                assert_eq!(apart.get(path).await.status, 200, "{path} beside {n} idle clients");
                slowest = slowest.max(asked.elapsed());
            }
        }
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    note(&format!("a listener apart, while {count} idle clients connect: {slowest:?}"));
    let attack = format!("{count} clients that never ask, {files} descriptors, metrics apart");
    responds_for(Duration::from_secs(2), &server, &apart, &attack, before).await;
    assert_eq!(server.api_with(None).get("/metrics").await.status, 404, "it is only there");
}

/// What TLS holds in encrypted form is no longer among the bytes of waiting responses: it is bounded per connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_take_no_more_memory_over_tls() {
    let installation = Installation::sqlite();
    let client = certify(installation.folder.path());
    let at = |name: &str| installation.folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (at("cert.pem"), at("key.pem"));
    let installation = installation.with("HOOKSAGA_TLS_CERT", &certificate).with("HOOKSAGA_TLS_KEY", &key);
    let server = installation.serve().await;
    let before = server.resident_mib();
    let request = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(20);
    let mut held = Vec::new();
    let count = clients(400);
    for _ in 0..count {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = socket.connect(server.address().parse().unwrap()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = client.connect(name, stream).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        held.push(stream);
    }
    sleep(Duration::from_secs(1)).await;
    let grown = server.resident_mib() - before;
    note(&format!("{count} clients over TLS that never read: {before} MiB and {grown} more"));
    assert!(grown * 1024 / (count as u64) < TLS_CLIENT_KIB, "{count} clients took {grown} MiB");
}

/// What one of them may take, its session and its buffers included: less than rustls holds by default.
const TLS_CLIENT_KIB: u64 = 70;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verification_in_a_loop_sends_a_host_only_a_few_challenges() {
    let refusal = "HTTP/1.1 404 x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let victim = Endpoint::always(refusal).await;
    let server = Installation::sqlite().serve().await;
    let api = server.api();
    let subscription = json!({"event_type": "t", "callback_url": victim.url()});
    let id = api.post("/v1/subscriptions", &subscription).await.expect(201)["id"].clone();
    let (began, mut accepted, mut refused) = (Instant::now(), 0, 0);
    while began.elapsed() < Duration::from_secs(3) {
        let response = api.send("POST", &format!("/v1/subscriptions/{id}/verify"), &[], b"").await;
        match response.status {
            202 => accepted += 1,
            429 => {
                assert_eq!(response.header("retry-after"), Some("1"));
                refused += 1;
            }
            other => panic!("{other}: {response:?}"),
        }
    }
    let allowed = 5 * (began.elapsed().as_secs() + 2);
    assert!((5..=allowed).contains(&accepted) && refused > 0, "{accepted} accepted, {refused} refused");
    // The verifier tries again by itself, within its own limit for a host that does not prove itself.
    let sent = victim.accepted() as u64;
    note(&format!(
        "verification in a loop: {accepted} accepted, {refused} refused, {sent} sent, {:?}",
        began.elapsed()
    ));
    assert!(sent <= 20 + allowed, "{sent} challenges in {:?}", began.elapsed());
}

/// Far more responses than may wait: the rest is refused, and memory stays where it was but for what may wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_large_responses_take_bounded_memory() {
    let server = Installation::sqlite().serve().await;
    let api = server.api();
    let event = api.event("t", &json!("x".repeat(1_000_000))).await;
    let before = server.resident_mib();
    let request =
        format!("GET /v1/events/{event} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ROOT_KEY}\r\n\r\n");
    let mut held = Vec::new();
    for _ in 0..clients(400) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(server.address().parse().unwrap()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        held.push(stream);
    }
    let mut most = before;
    for _ in 0..20 {
        sleep(Duration::from_millis(100)).await;
        most = most.max(server.resident_mib());
    }
    assert!(most - before < 250, "1 MB is asked for by each; {before} became {most} MiB");
    responds(&server, "clients that never read large responses", before).await;
}

/// 192 MB of events at once, far more than may wait for the database: what is not stored is refused, and nothing dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_batches_at_once_are_stored_or_refused_within_bounded_memory() {
    let server = Installation::sqlite().serve().await;
    let api = server.api();
    api.event("t", &json!(1)).await;
    let before = server.resident_mib();
    let event = json!({"event_type": "t", "payload": "x".repeat(1_000_000)});
    let batch = Arc::new(json!({"events": vec![event; 8]}));
    let mut posts = tokio::task::JoinSet::new();
    for _ in 0..24 {
        let (api, batch) = (server.api(), batch.clone());
        posts.spawn(async move { api.post("/v1/events/batch", &batch).await });
    }
    let (mut most, mut stored, mut refused) = (before, 0, 0);
    let (began, mut healthy) = (Instant::now(), Duration::ZERO);
    let meanwhile = server.api();
    let event = tokio::spawn(async move {
        sleep(Duration::from_millis(100)).await;
        let asked = Instant::now();
        let posted = meanwhile.post("/v1/events", &json!({"event_type": "t", "payload": 1})).await;
        (posted.status, asked.elapsed())
    });
    while !posts.is_empty() {
        most = most.max(server.resident_mib());
        let asked = Instant::now();
        assert_eq!(server.api_with(None).get("/healthz").await.status, 200);
        healthy = healthy.max(asked.elapsed());
        let Ok(post) = timeout(Duration::from_millis(20), posts.join_next()).await else { continue };
        let response = post.expect("posts are left").unwrap();
        match response.status {
            200 | 201 => stored += 1,
            503 => {
                assert!(response.header("retry-after").is_some(), "{response:?}");
                refused += 1;
            }
            other => panic!("{other}: {response:?}"),
        }
    }
    let took = began.elapsed();
    let event = event.await.unwrap();
    note(&format!(
        "24 batches of 8 MB: {stored} stored, {refused} refused within {took:?}; /healthz {healthy:?}, an event {event:?}; \
         {before} to {} MiB",
        server.peak_mib()
    ));
    assert!(matches!(event.0, 201 | 503), "{event:?}");
    assert!(stored > 0, "none of 24 was stored, {refused} were refused");
    assert!(most - before < 250, "{stored} stored, {refused} refused; {before} became {most} MiB");
    assert_eq!(server.api_with(None).get("/readyz").await.status, 200);
    api.event("t", &json!(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_floods_interim_responses_costs_one_attempt_and_delays_nobody() {
    let flooding = Endpoint::start(|mut stream, _| async move {
        while let Some(request) = read_request(&mut stream).await {
            let json: Value = serde_json::from_slice(&request.body).unwrap();
            if let Some(challenge) = json["challenge"].as_str() {
                let response =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{challenge}", challenge.len());
                stream.write_all(response.as_bytes()).await.unwrap();
                continue;
            }
            let interim = b"HTTP/1.1 103 x\r\nlink: </x>\r\n\r\n".repeat(1000);
            while stream.write_all(&interim).await.is_ok() {}
            return;
        }
    })
    .await;
    let installation = Installation::sqlite().with("HOOKSAGA_RETRY_MAX_RETRY_LIMIT", "1");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("flood", &flooding.url()).await;
    api.verified_subscription("good", &receiver.url("/hook")).await;
    let before = server.resident_mib();
    let (mut floods, began, cpu) = (Vec::new(), Instant::now(), server.cpu_seconds());
    for n in 0..size("HOOKSAGA_ATTACK_FLOODS", 16) {
        floods.push(api.event("flood", &json!(n)).await);
    }
    let good = api.event("good", &json!(1)).await;
    api.delivery_with_status(good, "Completed").await;
    for event in floods {
        let saga = api.delivery_with_status(event, "DeadLettered").await;
        assert_eq!(saga["final_error_code"], "RESPONSE_INVALID");
        assert!(saga["attempts"][0]["duration_ms"].as_i64().unwrap() < 5000, "{saga}");
    }
    note(&format!(
        "floods of interim responses: all within {:?}, {:.2} s of CPU time; {before} to {} MiB",
        began.elapsed(),
        server.cpu_seconds() - cpu,
        server.peak_mib()
    ));
    assert!(server.resident_mib() < before + 64, "{before} became {} MiB", server.resident_mib());
}

/// Creating is not refused; what is sent to a host that does not prove itself is bounded, whichever its ports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_in_a_loop_send_a_host_only_a_few_challenges() {
    let refusal = "HTTP/1.1 404 x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let victims = [Endpoint::always(refusal).await, Endpoint::always(refusal).await];
    let server = Installation::sqlite().serve().await;
    let (api, began) = (server.api(), Instant::now());
    for n in 0..60 {
        let url = format!("{}/{n}", victims[n % 2].url());
        let subscription = json!({"event_type": "t", "callback_url": url});
        api.post("/v1/subscriptions", &subscription).await.expect(201);
    }
    sleep(Duration::from_secs(2)).await;
    let sent: usize = victims.iter().map(Endpoint::accepted).sum();
    note(&format!("subscriptions in a loop: {sent} challenges in {:?}", began.elapsed()));
    let allowed = 20 + 5 * (began.elapsed().as_secs() + 1);
    assert!((1..=allowed).contains(&(sent as u64)), "{sent} challenges in {:?}", began.elapsed());
}

/// A connection that sends this and then nothing.
async fn silent(server: &Server, sent: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    stream
}

/// Without a key, twice as many as once filled the room of all small requests; with one, as many as fill it now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_announce_a_body_and_send_nothing_keep_nobody_out() {
    let server = Installation::sqlite().serve().await;
    let (api, mut held) = (server.api(), Vec::new());
    for n in 0..1024 {
        let path = ["/sign-in", "/portal/sign-in"][n % 2];
        let length = [65_536, 4000][n / 2 % 2];
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\n\
             sec-fetch-site: same-origin\r\ncontent-length: {length}\r\n\r\n"
        );
        held.push(silent(&server, &head).await);
    }
    sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    api.event("t", &json!(1)).await;
    let without_key = began.elapsed();
    assert!(without_key < Duration::from_secs(1), "{without_key:?}");
    let form = format!("key={ROOT_KEY}");
    let headers = [("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-site", "same-origin")];
    let signed_in = server.api_with(None).send("POST", "/sign-in", &headers, form.as_bytes()).await;
    assert_eq!(signed_in.status, 303, "{signed_in:?}");

    for _ in 0..160 {
        let head = format!(
            "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ROOT_KEY}\r\n\
             content-type: application/json\r\ncontent-length: 262144\r\n\r\n"
        );
        held.push(silent(&server, &head).await);
    }
    sleep(Duration::from_millis(300)).await;
    let mut slowest = Duration::ZERO;
    for n in 0..3 {
        let asked = Instant::now();
        api.event("t", &json!(n)).await;
        slowest = slowest.max(asked.elapsed());
    }
    note(&format!(
        "bodies that do not come: an event {without_key:?} beside 1,024 sign-ins, {slowest:?} beside 160 with a key, too; {} MiB",
        server.peak_mib()
    ));
}
