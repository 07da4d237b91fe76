//! TLS: who is trusted, and what is spoken inside.

use super::{
    client::{PLENTY, failed, loopback, request},
    server::{Server, answer, hold, read_request},
};
use hooksaga_pipeline::{ClientSetupError, DeliveryClient, PostOutcome};
use hooksaga_saga::{ErrorCode, Outcome};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;

/// A certificate authority of the test's own.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A TLS acceptor for a server of this name.
    pub(super) fn acceptor(&self, name: &str, alpn: &[&str]) -> TlsAcceptor {
        self.acceptor_that(name, alpn, WebPkiClientVerifier::no_client_auth())
    }

    /// A TLS acceptor that lets nobody in who has no certificate of this authority.
    fn acceptor_for_members(&self, name: &str) -> TlsAcceptor {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        self.acceptor_that(name, &[], verifier.build().unwrap())
    }

    fn acceptor_that(&self, name: &str, alpn: &[&str], clients: Arc<dyn ClientCertVerifier>) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    /// A client that trusts this authority.
    fn client(&self) -> DeliveryClient {
        DeliveryClient::new(loopback(), Some(self.pem().as_bytes())).unwrap()
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }
}

/// An HTTP/1.1 server behind TLS that answers 204.
pub(super) async fn http1(acceptor: TlsAcceptor) -> Server {
    Server::start(move |stream, _| {
        let acceptor = acceptor.clone();
        async move {
            // A client that does not trust the server ends the handshake.
            let Ok(mut tls) = acceptor.accept(stream).await else { return };
            while let Some(request) = read_request(&mut tls).await {
                assert!(request.head.contains(" HTTP/1.1\r\n"));
                tls.write_all(b"HTTP/1.1 204 x\r\n\r\n").await.unwrap();
            }
        }
    })
    .await
}

async fn post(client: &DeliveryClient, host: &str, server: &Server) -> PostOutcome {
    client.post(request(format!("https://{host}:{}/hook", server.address.port())), PLENTY).await.unwrap()
}

#[tokio::test]
async fn a_server_that_an_extra_root_vouches_for_is_called() {
    let authority = Authority::new();
    let client = authority.client();
    for name in ["localhost", "127.0.0.1"] {
        for alpn in [&["http/1.1"][..], &[]] {
            let server = http1(authority.acceptor(name, alpn)).await;
            for _ in 0..3 {
                assert_eq!(post(&client, name, &server).await.outcome, Outcome::Delivered, "{name}");
            }
            assert_eq!(server.accepted(), 1, "the connection is used again");
        }
    }
}

#[tokio::test]
async fn a_server_that_nobody_vouches_for_is_tls_failed() {
    let server = http1(Authority::new().acceptor("localhost", &[])).await;
    for client in [DeliveryClient::new(loopback(), None).unwrap(), Authority::new().client()] {
        let done = post(&client, "localhost", &server).await;
        assert_eq!(done.outcome, failed(ErrorCode::TLS_FAILED));
        assert_eq!(done.response_status, None);
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_tls_failed() {
    let authority = Authority::new();
    let server = http1(authority.acceptor("other.example", &[])).await;
    for host in ["localhost", "127.0.0.1"] {
        let done = post(&authority.client(), host, &server).await;
        assert_eq!(done.outcome, failed(ErrorCode::TLS_FAILED), "{host}");
    }
}

#[tokio::test]
async fn a_server_that_wants_a_client_certificate_is_tls_failed() {
    let authority = Authority::new();
    // In TLS 1.3 the client hears of it after the handshake, when it waits for the response.
    let server = http1(authority.acceptor_for_members("localhost")).await;
    let done = post(&authority.client(), "localhost", &server).await;
    assert_eq!(done.outcome, failed(ErrorCode::TLS_FAILED));
}

#[tokio::test]
async fn a_server_without_tls_is_tls_failed() {
    let authority = Authority::new();
    let server = Server::start(|mut stream, _| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 x\r\n\r\n").await;
        hold(stream).await;
    })
    .await;
    let done = post(&authority.client(), "localhost", &server).await;
    assert_eq!(done.outcome, failed(ErrorCode::TLS_FAILED));
}

#[tokio::test]
async fn a_server_that_closes_during_the_handshake_is_tls_failed() {
    let authority = Authority::new();
    let server = Server::start(|stream, _| async move { drop(stream) }).await;
    let done = post(&authority.client(), "localhost", &server).await;
    assert_eq!(done.outcome, failed(ErrorCode::TLS_FAILED));
}

#[tokio::test]
async fn a_tls_connection_that_closes_without_an_answer_is_response_invalid() {
    let authority = Authority::new();
    let acceptor = authority.acceptor("localhost", &["http/1.1"]);
    let server = Server::start(move |stream, _| {
        let acceptor = acceptor.clone();
        async move {
            let mut tls = acceptor.accept(stream).await.unwrap();
            answer(&mut tls, b"").await;
        }
    })
    .await;
    let done = post(&authority.client(), "localhost", &server).await;
    assert_eq!(done.outcome, failed(ErrorCode::RESPONSE_INVALID));
}

#[tokio::test]
async fn http2_is_not_offered() {
    let authority = Authority::new();
    let client = authority.client();
    let both = http1(authority.acceptor("localhost", &["h2", "http/1.1"])).await;
    assert_eq!(post(&client, "localhost", &both).await.outcome, Outcome::Delivered);
    // Nothing is agreed on with a server that speaks nothing else.
    let only = http1(authority.acceptor("localhost", &["h2"])).await;
    assert_eq!(post(&client, "localhost", &only).await.outcome, failed(ErrorCode::TLS_FAILED));
}

#[test]
fn unusable_extra_roots_are_refused() {
    let setup = |pem: &[u8]| DeliveryClient::new(loopback(), Some(pem)).err().unwrap();
    assert!(matches!(setup(b""), ClientSetupError::NoCertificate));
    assert!(matches!(setup(b"no pem at all"), ClientSetupError::NoCertificate));
    let broken = b"-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
    assert!(matches!(setup(broken), ClientSetupError::Pem(_)));
    let empty = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(setup(empty), ClientSetupError::Certificate(_)));
}
