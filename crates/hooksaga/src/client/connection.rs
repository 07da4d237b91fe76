//! One HTTP/1.1 connection to the server, plain or TLS, kept open between requests.

use super::Target;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use std::{error::Error, sync::Arc, time::Duration};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// No answer of the API that a client command reads is larger.
const LARGEST_ANSWER: usize = 64 << 20;

/// A request that could not be carried out: no answer came.
#[derive(Debug)]
pub(super) struct Unanswered {
    /// What went wrong, in words.
    pub(super) cause: String,
    /// The connection had been idle and was closed by the server: a new one may do.
    pub(super) stale: bool,
}

impl Unanswered {
    fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), stale: false }
    }
}

pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    used: bool,
}

impl Connection {
    pub(super) async fn open(target: &Target) -> Result<Self, Unanswered> {
        let late = |_| Unanswered::new("it did not accept a connection within 10 s");
        timeout(CONNECT_TIMEOUT, Self::connect(target)).await.map_err(late)?
    }

    async fn connect(target: &Target) -> Result<Self, Unanswered> {
        let stream = TcpStream::connect((target.host.as_str(), target.port))
            .await
            .map_err(|error| Unanswered::new(error.to_string()))?;
        // Requests are small and written at once: waiting for more would only delay them.
        stream.set_nodelay(true).map_err(|error| Unanswered::new(error.to_string()))?;
        if !target.tls {
            return Self::start(stream).await;
        }
        let name = ServerName::try_from(target.host.clone())
            .map_err(|_| Unanswered::new(format!("{} cannot be the name on a certificate", target.host)))?;
        let stream = TlsConnector::from(tls_config()).connect(name, stream).await;
        Self::start(stream.map_err(|error| Unanswered::new(format!("TLS failed: {error}")))?).await
    }

    async fn start<S>(stream: S) -> Result<Self, Unanswered>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| Unanswered::new(error.to_string()))?;
        // It ends with the connection; its errors reach us through the request that they break.
        tokio::spawn(connection);
        Ok(Self { sender, used: false })
    }

    /// Sends one request and reads the whole answer.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, Unanswered> {
        let used = std::mem::replace(&mut self.used, true);
        if let Err(error) = self.sender.ready().await {
            return Err(Unanswered { cause: error.to_string(), stale: used });
        }
        let exchange = async {
            let response = self.sender.send_request(request).await.map_err(|error| Unanswered {
                stale: used && (error.is_canceled() || error.is_incomplete_message()),
                cause: deepest(&error),
            })?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, LARGEST_ANSWER).collect().await;
            let body = body.map_err(|error| Unanswered::new(format!("its answer broke off: {error}")))?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let late = |_| Unanswered::new("it did not answer within 60 s");
        timeout(ANSWER_TIMEOUT, exchange).await.map_err(late)?
    }
}

fn tls_config() -> Arc<ClientConfig> {
    let roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions of TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// The cause at the bottom of an error: the part that says something.
fn deepest(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), deepest)
}
