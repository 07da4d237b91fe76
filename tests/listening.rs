//! The listener of the real binary: full of clients that do nothing, over TLS, and while it stops.

use crate::support::*;
use hooksaga_testkit::https::certify;
use std::{fs, time::Instant};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

/// With few descriptors and more clients than those, ingestion, deliveries and probes go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_clients_take_nothing_from_deliveries_and_probes() {
    let installation = Installation::sqlite().with("HOOKSAGA_WORKER_CONCURRENCY", "16");
    let server = Server::start_with_files(&installation, 256, &["serve", "--dev"]).await;
    let api = server.api();
    let receiver = Receiver::start().await;
    let (id, _) = api.verified_subscription("t", &receiver.url("/hook")).await;
    let mut idle = Vec::new();
    for number in 0..500 {
        let mut stream = timeout(PATIENCE, TcpStream::connect(server.address())).await.unwrap().unwrap();
        // Some send nothing; some ask, and never read what they are told.
        if number % 2 == 0 {
            stream
                .write_all("GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(50).as_bytes())
                .await
                .unwrap();
        }
        idle.push(stream);
    }
    assert_eq!(server.api_with(None).get("/readyz").await.status, 200);
    let event = api.event("t", &json!({"n": 1})).await;
    let delivery = api.delivery_with_status(event, "Completed").await;
    assert_eq!(delivery["subscription_id"], id);
    assert!(server.said("cannot accept").is_empty(), "it never runs out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_a_listener_of_their_own_where_it_is_asked_for() {
    let installation = Installation::sqlite().with("HOOKSAGA_METRICS_LISTEN", "127.0.0.1:0");
    let server = installation.serve().await;
    let said = server.said("metrics on");
    let url = said[0]["message"].as_str().unwrap().trim_start_matches("metrics on http://");
    let metrics = Api::new(url.trim_end_matches("/metrics"), None);
    assert_eq!(server.api_with(None).get("/metrics").await.status, 404);
    assert!(metrics.get("/metrics").await.text().contains("hooksaga_queue_depth"));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(metrics.get(path).await.status, 200);
        assert_eq!(server.api_with(None).get(path).await.status, 200);
    }
    assert_eq!(metrics.get("/v1/stats").await.status, 404);
}

/// Readiness goes first; the API serves until the deliveries in flight have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingestion_goes_on_while_deliveries_finish() {
    let installation = Installation::sqlite().with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "6s");
    let server = installation.serve().await;
    let api = server.api();
    let receiver = Receiver::start().await;
    receiver.answer("/hook", [Behaviour::Hang]);
    api.verified_subscription("t", &receiver.url("/hook")).await;
    api.event("t", &json!(1)).await;
    receiver.wait_for("/hook", 1, PATIENCE).await;
    server.signal("TERM").await;
    eventually("it is no longer ready", || async {
        (server.api_with(None).get("/readyz").await.status == 503).then_some(())
    })
    .await;
    for number in 0..20 {
        let event = json!({"event_type": "t", "payload": number});
        assert_eq!(api.post("/v1/events", &event).await.status, 201, "while it drains");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let address = server.address().to_owned();
    assert_eq!(server.ended().await, Some(0));
    assert!(TcpStream::connect(&address).await.is_err());
    // What was accepted meanwhile is there, and delivered by the next process.
    let server = installation.serve().await;
    let listed = server.api().get("/v1/events?event_type=t&limit=50").await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 21);
}

/// Nothing is in flight. A balancer that has asked regularly gets the time to notice, one that never asked does not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_server_stops_when_its_balancer_can_have_noticed() {
    let installation = Installation::sqlite();
    for (is_watched, least, most) in [(true, 4, 15), (false, 0, 4)] {
        let server = installation.serve().await;
        let (api, probe) = (server.api(), server.api_with(None));
        for _ in 0..if is_watched { 3 } else { 0 } {
            assert_eq!(probe.get("/readyz").await.status, 200);
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        let told = Instant::now();
        server.signal("TERM").await;
        while is_watched && told.elapsed() < Duration::from_secs(3) {
            let event = json!({"event_type": "t", "payload": 1});
            assert_eq!(api.post("/v1/events", &event).await.status, 201, "after {:?}", told.elapsed());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(server.ended().await, Some(0));
        let took = told.elapsed();
        assert!(took >= Duration::from_secs(least) && took < Duration::from_secs(most), "{took:?}");
    }
}

/// Whether `/healthz` can be had over TLS with this trust.
async fn is_trusted(client: &TlsConnector, address: &str) -> bool {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let Ok(mut stream) = client.connect(name, stream).await else { return false };
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.starts_with("HTTP/1.1 200")
}

/// The certificate is for the name that others reach it by, and from an authority that nobody here knows.
#[tokio::test]
async fn a_server_with_tls_can_be_asked_whether_it_is_ready() {
    let installation =
        Installation::sqlite().with("HOOKSAGA_TLS_CERT", "cert.pem").with("HOOKSAGA_TLS_KEY", "key.pem");
    certify(installation.folder.path());
    let server = installation.serve().await;
    let address = server.address().to_owned();
    let ask = ["serve", "--check-ready", "--listen", &address];
    let ready = run(&installation, &ask).await;
    assert_eq!(ready.status.code(), Some(0), "{ready:?}");
    assert_eq!(server.terminate().await, Some(0));
    assert_eq!(run(&installation, &ask).await.status.code(), Some(1));
}

/// `systemctl reload` sends it, whatever is configured.
#[tokio::test]
async fn a_server_without_a_certificate_goes_on_at_sighup() {
    let server = Installation::sqlite().serve().await;
    server.signal("HUP").await;
    eventually("it says that there is nothing to do", || async {
        (server.said("nothing is read again").len() == 1).then_some(())
    })
    .await;
    server.api().get("/v1/me").await.expect(200);
    assert_eq!(server.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_read_again_at_sighup() {
    let installation =
        Installation::sqlite().with("HOOKSAGA_TLS_CERT", "cert.pem").with("HOOKSAGA_TLS_KEY", "key.pem");
    let first = certify(installation.folder.path());
    let server = installation.serve().await;
    assert!(is_trusted(&first, server.address()).await);

    let second = certify(installation.folder.path());
    server.signal("HUP").await;
    eventually("the new one is in use", || async {
        is_trusted(&second, server.address()).await.then_some(())
    })
    .await;
    assert!(!is_trusted(&first, server.address()).await);

    fs::write(installation.folder.path().join("key.pem"), "nonsense").unwrap();
    server.signal("HUP").await;
    eventually("it says what is wrong", || async {
        (server.said("could not be read again").len() == 1).then_some(())
    })
    .await;
    assert!(is_trusted(&second, server.address()).await, "the one from before stays");
    assert_eq!(server.terminate().await, Some(0));
}
