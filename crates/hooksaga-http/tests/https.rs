//! HTTPS on the listener: certificates from files, read again while it serves.

use axum::{Router, routing::get};
use hooksaga_http::{ListenerOptions, Tls, serve};
use hooksaga_pipeline::{Shutdown, random_hex};
use hooksaga_testkit::https::certify;
use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

const PATIENCE: Duration = Duration::from_secs(15);

/// A certificate for `localhost` that is its own authority, in files.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("hooksaga-https-{}", random_hex(8)));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    /// Writes a new certificate and key; returns a client that trusts it alone.
    fn renew(&self) -> TlsConnector {
        certify(&self.0)
    }

    fn certificate(&self) -> PathBuf {
        self.0.join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.0.join("key.pem")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn start(tls: Tls) -> (SocketAddr, Shutdown) {
    let mut options = ListenerOptions { tls: Some(tls), ..ListenerOptions::new(10) };
    options.deadlines.handshake = Duration::from_millis(500);
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/big", get(|| async { vec![b'x'; 3 << 20] }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = Shutdown::new();
    tokio::spawn(serve(listener, app, options, shutdown.clone()));
    (address, shutdown)
}

/// The response, or nothing if this client does not trust the certificate.
async fn ask(client: &TlsConnector, address: SocketAddr, path: &str) -> Option<String> {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream = client.connect(ServerName::try_from("localhost").unwrap(), stream).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut response)).await.unwrap().unwrap();
    Some(String::from_utf8(response).unwrap())
}

#[tokio::test]
async fn requests_are_served_over_tls_and_nothing_else_is() {
    let files = Files::new();
    let client = files.renew();
    let (address, shutdown) = start(Tls::load(&files.certificate(), &files.key()).unwrap()).await;
    let response = ask(&client, address, "/healthz").await.expect("trusted");
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("ok\n"), "{response}");
    assert!(ask(&client, address, "/big").await.is_some_and(|response| response.len() > 3 << 20));

    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, plain.read_to_end(&mut answer)).await.expect("it is closed");
    assert!(!String::from_utf8_lossy(&answer).contains("200"));

    let mut silent = TcpStream::connect(address).await.unwrap();
    let ended = timeout(PATIENCE, silent.read(&mut [0])).await.expect("a handshake has a deadline");
    assert!(matches!(ended, Ok(0) | Err(_)));
    shutdown.trigger();
}

#[tokio::test]
async fn a_new_certificate_is_taken_and_a_bad_one_is_not() {
    let files = Files::new();
    let old = files.renew();
    let tls = Tls::load(&files.certificate(), &files.key()).unwrap();
    let (address, shutdown) = start(tls.clone()).await;
    let new = files.renew();
    assert!(ask(&old, address, "/healthz").await.is_some(), "not before it is told");
    tls.reload().unwrap();
    assert!(ask(&new, address, "/healthz").await.is_some());
    assert!(ask(&old, address, "/healthz").await.is_none());

    fs::write(files.certificate(), "nonsense").unwrap();
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("cert.pem") && !error.contains('\n'), "{error}");
    assert!(ask(&new, address, "/healthz").await.is_some(), "the one from before stays");
    shutdown.trigger();
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let (files, others) = (Files::new(), Files::new());
    files.renew();
    others.renew();
    let load = |certificate: PathBuf, key: PathBuf| Tls::load(&certificate, &key).unwrap_err().to_string();
    let error = load(files.certificate(), others.key());
    assert!(error.contains("key.pem") && error.contains("not the key of the certificate"), "{error}");
    let error = load(files.certificate(), files.certificate());
    assert!(error.contains("no private key"), "{error}");
    let error = load(files.key(), files.key());
    assert!(error.contains("no certificate"), "{error}");
    assert!(load(files.0.join("missing.pem"), files.key()).contains("missing.pem"));
}
